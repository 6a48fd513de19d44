"""What an event is, what encloses it and what launched it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_support import columns

from tokentrace import gpu_events
from tokentrace.probes import _kineto
from tokentrace.probes._kineto import from_columns, join_launches, last_visible, nest, self_times, short_name


@pytest.mark.parametrize(
    ("activity", "name", "device", "kind"),
    [
        ("cpu_op", "aten::mm", "CPU", _kineto.OPERATOR),
        ("cpu_op", "mkldnn::_linear_pointwise", "CPU", _kineto.OPERATOR),
        ("cpu_op", "Torch-Compiled Region: 0/0", "CPU", _kineto.MARK),
        ("cpu_op", "graph_1_cpp_fused__unsafe_view_mul_silu_0", "CPU", _kineto.COMPILED),
        ("cpu_op", "cpp_fused_add_0", "CPU", _kineto.COMPILED),
        ("cpu_op", "triton_poi_fused_add_0", "CPU", _kineto.MARK),
        ("user_annotation", "aten::mm", "CPU", _kineto.MARK),
        ("cuda_runtime", "cudaLaunchKernel", "CPU", _kineto.RUNTIME),
        ("cuda_driver", "cuLaunchKernelEx", "CPU", _kineto.RUNTIME),
        ("kernel", "ampere_sgemm_32x128_tn", "CUDA", _kineto.KERNEL),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", "CUDA", _kineto.MEMCPY),
        # Where torch does not tell the activity, the device and the name do.
        ("", "cudaLaunchKernel", "CPU", _kineto.RUNTIME),
        ("", "hipModuleLaunchKernel", "CPU", _kineto.RUNTIME),
        ("", "cuLaunchKernel", "CPU", _kineto.RUNTIME),
        ("", "Memset (Device)", "CUDA", _kineto.MEMSET),
        ("", "void at::native::reduce_kernel<512>()", "CUDA", _kineto.KERNEL),
        ("", "aten::mm", "CPU", _kineto.OPERATOR),
        ("something new", "x", "CPU", _kineto.OTHER),
    ],
)
def test_each_event_is_what_the_profiler_means(activity: str, name: str, device: str, kind: int) -> None:
    assert _kineto.classify(activity, name, device) == kind


def test_launch_calls_are_recognized_in_every_spelling() -> None:
    for name in ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchKernel_ptsz", "cuLaunchKernelEx",
                 "cudaLaunchCooperativeKernel", "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipLaunchKernelExC",
                 "hipModuleLaunchKernel"):  # fmt: skip
        assert gpu_events.LAUNCH.match(name), name
    for name in ("cudaStreamSynchronize", "cudaMemcpyAsync", "cudaGraphLaunch", "cudaLaunchHostFunc"):
        assert not gpu_events.LAUNCH.match(name), name
    assert gpu_events.GRAPH_LAUNCH.match("cudaGraphLaunch_v10000")


def test_only_the_requests_own_events_are_taken() -> None:
    given_columns = columns(
        [
            {"name": "aten::before", "start": 0, "end": 9},
            {"name": "aten::across", "start": 5, "end": 15},
            {"name": "aten::inside", "start": 20, "end": 30},
            {"name": "aten::for_another_request", "start": 42, "end": 44},
            {"name": "aten::inside_too", "start": 50, "end": 60},
            {"name": "aten::after", "start": 101, "end": 110},
        ]
    )
    others = (np.array([40]), np.array([50]))
    found = from_columns(given_columns, (10, 100), others)
    assert [found.names[n] for n in found.name] == ["aten::across", "aten::inside", "aten::inside_too"]
    assert found.outside == 3


def test_an_empty_recording_has_no_rows() -> None:
    found = from_columns(columns([]))
    assert len(found) == 0
    assert len(join_launches(found).work) == 0


intervals = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 80), st.integers(1, 3)).map(lambda t: (t[0], t[0] + t[1], t[2])),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(intervals)
def test_any_row_that_is_enclosed_gets_a_parent_that_encloses_it(rows: list[tuple[int, int, int]]) -> None:
    start, end, thread = (
        (np.array(c, np.int64) for c in zip(*rows, strict=True)) if rows else (np.empty(0, np.int64),) * 3
    )
    parent = nest(start, end, thread)
    for row, above in enumerate(parent.tolist()):
        seen = set()
        while above >= 0:  # encloses, on the same thread, and never in a circle
            assert start[above] <= start[row] and end[row] <= end[above] and thread[above] == thread[row]
            assert above not in seen
            seen.add(above)
            above = int(parent[above])
        larger = (
            (start <= start[row]) & (end >= end[row]) & (thread == thread[row]) & (end - start > end[row] - start[row])
        )
        if larger.any():
            assert parent[row] >= 0


tree = st.recursive(st.integers(1, 5), lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=20)


@settings(max_examples=200, deadline=None)
@given(tree)
def test_a_nested_program_is_rebuilt_and_its_self_times_add_up(program: object) -> None:
    rows: list[tuple[int, int, int]] = []  # start, end, parent

    def run(node: object, now: int, parent: int) -> int:
        row = len(rows)
        rows.append((now, now, parent))
        end = now + 1
        for child in node if isinstance(node, list) else []:
            end = run(child, end, row) + 1
        end += node if isinstance(node, int) else 0
        rows[row] = (now, end, parent)
        return end

    total = run(program, 0, -1)
    start, end, expected = (np.array(c, np.int64) for c in zip(*rows, strict=True))
    parent = nest(start, end, np.ones(len(rows), np.int64))
    assert parent.tolist() == expected.tolist()
    assert int(self_times(start, end, parent).sum()) == total


def test_a_product_is_the_last_visible_operator_though_it_asks_for_conjugates() -> None:
    names = ["aten::linear", "aten::t", "aten::transpose", "aten::as_strided", "aten::mm", "aten::resolve_conj"]
    parent = np.array([-1, 0, 1, 2, 0, 4])
    seen = last_visible(names, np.arange(6), parent)
    assert [n for n, last in zip(names, seen, strict=True) if last] == [
        "aten::as_strided", "aten::mm", "aten::resolve_conj"]  # fmt: skip


def test_a_product_that_first_copies_its_bias_still_computes_itself() -> None:
    names = ["aten::linear", "aten::addmm", "aten::copy_", "aten::custom", "aten::empty"]
    parent = np.array([-1, 0, 1, -1, 3])
    seen = last_visible(names, np.arange(5), parent)
    assert [n for n, last in zip(names, seen, strict=True) if not last] == ["aten::linear"]


def test_kernels_are_joined_to_their_launches() -> None:
    events = from_columns(
        columns(
            [
                {"name": "cudaLaunchKernel", "start": 10, "end": 12, "activity": "cuda_runtime", "correlation": 5},
                {"name": "cuLaunchKernel", "start": 9, "end": 13, "activity": "cuda_driver", "correlation": 6},
                {"name": "cudaGraphLaunch", "start": 20, "end": 22, "activity": "cuda_runtime", "correlation": 7},
                {"name": "cudaMemcpyAsync", "start": 30, "end": 32, "activity": "cuda_runtime", "correlation": 8},
                {"name": "a", "start": 50, "end": 60, "activity": "kernel", "correlation": 5},
                {"name": "b", "start": 60, "end": 70, "activity": "kernel", "correlation": 7},
                {"name": "c", "start": 70, "end": 80, "activity": "kernel", "correlation": 7},
                {"name": "Memcpy HtoD", "start": 80, "end": 90, "activity": "gpu_memcpy", "correlation": 8},
                {"name": "lost", "start": 90, "end": 95, "activity": "kernel", "correlation": 99},
                {"name": "without id", "start": 96, "end": 97, "activity": "kernel", "correlation": 0},
            ]
        )
    )
    joined = join_launches(events)
    caller = {
        events.names[events.name[w]]: (events.names[events.name[c]] if c >= 0 else None)
        for w, c in zip(joined.work, joined.call_of, strict=True)
    }
    assert caller == {"a": "cudaLaunchKernel", "b": "cudaGraphLaunch", "c": "cudaGraphLaunch",
                      "Memcpy HtoD": "cudaMemcpyAsync", "lost": None, "without id": None}  # fmt: skip
    assert {events.names[events.name[r]] for r in joined.orphans} == {"lost", "without id"}
    assert len(joined.calls) == 3 and int(joined.graphs.sum()) == 1


def test_a_launch_wins_over_another_call_with_its_id() -> None:
    rows = [
        {"name": "cudaFuncGetAttributes", "start": 1, "end": 2, "activity": "cuda_runtime", "correlation": 5},
        {"name": "cudaLaunchKernel", "start": 3, "end": 4, "activity": "cuda_runtime", "correlation": 5},
        {"name": "k", "start": 9, "end": 10, "activity": "kernel", "correlation": 5},
    ]
    events = from_columns(columns(rows))
    assert events.names[events.name[join_launches(events).call_of[0]]] == "cudaLaunchKernel"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::F<float>>(int, float)",
         "at::native::vectorized_elementwise_kernel"),
        ("ampere_sgemm_32x128_tn", "ampere_sgemm_32x128_tn"),
        ("void (anonymous namespace)::softmax<float>(float*)", "{anonymous}::softmax"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
        ("<lambda>", "<lambda>"),
        ("", ""),
    ],
)  # fmt: skip
def test_kernel_names_are_short_enough_to_read(name: str, short: str) -> None:
    assert short_name(name) == short
