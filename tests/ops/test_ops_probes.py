"""What the operator and the kernel probe make of a request's events, on a CPU and on a GPU."""

from __future__ import annotations

import time
from typing import Any

import pytest
from ops_support import columns
from support.answering import Answering, context

from tokentrace.model import Record
from tokentrace.probe import Columns, Probe, ProbeUnavailable, Raw
from tokentrace.probes.kernel import COMPILED, EAGER, KernelProbe
from tokentrace.probes.operator_profiler import OperatorProfilerProbe

LINEAR: list[dict[str, Any]] = [
    {"name": "aten::linear", "start": 100, "end": 200, "shapes": "[[31, 576], [1536, 576], []]"},
    {"name": "aten::t", "start": 105, "end": 115, "shapes": "[[1536, 576]]"},
    {"name": "aten::transpose", "start": 106, "end": 114},
    {"name": "aten::mm", "start": 120, "end": 190, "shapes": "[[31, 576], [576, 1536]]"},
    {"name": "aten::resolve_conj", "start": 121, "end": 122},
    {"name": "aten::add", "start": 210, "end": 220, "shapes": "[[31, 576], [31, 576], []]"},
]


def collect(probe: Any, agent: Answering, **more: Any) -> list[Record]:
    ctx = context(agent, **more)
    assert isinstance(probe, Probe)
    probe.arm(ctx)
    probe.disarm()
    return list(probe.collect(ctx))


def test_on_a_cpu_the_operators_that_work_are_the_leaves_and_the_rest_stands_above_them() -> None:
    agent = Answering([columns(LINEAR, activities=["CPU"])])
    operators = collect(OperatorProfilerProbe(), agent)
    kernel = KernelProbe()
    leaves = collect(kernel, agent)
    assert [r.name for r in operators] == ["aten::linear", "aten::t"]
    assert [r.name for r in leaves] == ["leaf aten::transpose", "leaf aten::mm", "leaf aten::resolve_conj",
                                        "leaf aten::add"]  # fmt: skip
    assert {r.attributes["tokentrace.kernel.kind"] for r in leaves} == {"leaf operator"}
    assert kernel.state.status == "seen" and kernel.state.reason == EAGER
    assert {(r.process, r.thread, r.join) for r in operators + leaves} == {("7", 1, "time")}


def test_shapes_own_time_and_flops_of_an_operator() -> None:
    probe = OperatorProfilerProbe()
    agent = Answering([columns(LINEAR, activities=["CPU"])])
    linear = collect(probe, agent)[0]
    assert linear.attributes == {
        "tokentrace.op.name": "aten::linear",
        "tokentrace.op.self_ns": 100 - 10 - 70,
        "tokentrace.op.input_shapes": "[[31, 576], [1536, 576], []]",
    }
    table = {row["name"]: row for row in probe.state.facts["operators"]}
    assert table["aten::mm"] == {"name": "aten::mm", "calls": 1, "total_ns": 70, "self_ns": 69,
                                 "flops": 2 * 31 * 576 * 1536}  # fmt: skip
    assert table["aten::add"]["flops"] is None
    assert probe.state.facts["operators"][0]["name"] == "aten::mm"
    assert probe.state.facts["calls"] == 6
    mm = next(r for r in collect(KernelProbe(), agent) if r.name == "leaf aten::mm")
    assert mm.attributes["tokentrace.op.flops"] == 2 * 31 * 576 * 1536


def test_compiled_kernels_on_a_cpu_are_kernels() -> None:
    rows = [
        {"name": "Torch-Compiled Region: 0/0", "start": 0, "end": 100},
        {"name": "graph_0_cpp_fused_mul_silu_0", "start": 10, "end": 50},
        {"name": "aten::mm", "start": 60, "end": 90},
    ]
    agent = Answering([columns(rows, activities=["CPU"])])
    probe = KernelProbe()
    records = collect(probe, agent)
    assert [(r.name, r.attributes["tokentrace.kernel.kind"]) for r in records] == [
        ("kernel graph_0_cpp_fused_mul_silu_0", "compiled C++ kernel"),
        ("leaf aten::mm", "leaf operator"),
    ]
    assert probe.state.reason == COMPILED
    assert [r.name for r in collect(OperatorProfilerProbe(), agent)] == ["op Torch-Compiled Region: 0/0"]


def test_phases_of_a_compilation_are_left_to_layer_2() -> None:
    rows = [{"name": "entire_frame_compile", "start": 0, "end": 100}, {"name": "my own mark", "start": 200, "end": 300}]
    raw = Raw("jit", "compile", 0, 100, 1, "7", {"phase": "entire_frame_compile"})
    assert [r.name for r in collect(OperatorProfilerProbe(), Answering([columns(rows)], [raw]))] == ["op my own mark"]


GPU: list[dict[str, Any]] = [
    {"name": "aten::linear", "start": 100, "end": 130},
    {"name": "aten::addmm", "start": 105, "end": 128},
    {"name": "cudaLaunchKernel", "start": 110, "end": 112, "activity": "cuda_runtime", "correlation": 5},
    {"name": "cudaGraphLaunch", "start": 300, "end": 305, "activity": "cuda_runtime", "correlation": 6},
    {"name": "cudaStreamSynchronize", "start": 310, "end": 390, "activity": "cuda_runtime", "correlation": 7},
    {"name": "void gemm<float>(float*)", "start": 150, "end": 190, "activity": "kernel", "correlation": 5, "stream": 7,
     "device": 0},
    {"name": "a", "start": 306, "end": 340, "activity": "kernel", "correlation": 6, "stream": 7, "device": 0},
    {"name": "b", "start": 340, "end": 380, "activity": "kernel", "correlation": 6, "stream": 7, "device": 0},
    {"name": "early", "start": 101, "end": 102, "activity": "kernel", "correlation": 3, "stream": 9, "device": 0},
    {"name": "Memcpy DtoH (Device -> Pageable)", "start": 381, "end": 385, "activity": "gpu_memcpy", "correlation": 8,
     "stream": 7, "device": 0, "bytes": 8},
]  # fmt: skip


def step(index: int, start: int, end: int, **reqs: int) -> Raw:
    return Raw("engine", "step", start, end, 1, "7", {"index": index, "reqs": reqs})


def test_on_a_gpu_kernels_hang_on_their_step_and_link_to_their_launch() -> None:
    agent = Answering([columns(GPU, activities=["CPU", "CUDA"])], [step(0, 90, 200, r1=31), step(1, 290, 400, r1=1)])
    probe = KernelProbe()
    records = {r.name: r for r in collect(probe, agent)}
    assert set(records) == {"launch cudaLaunchKernel", "launch cudaGraphLaunch", "sync cudaStreamSynchronize",
                            "kernel gemm", "kernel a", "kernel b", "kernel early", "copy Memcpy DtoH"}  # fmt: skip
    gemm, launch = records["kernel gemm"], records["launch cudaLaunchKernel"]
    assert gemm.link_keys == (launch.key,) and gemm.parent_key == "step:7:0" and gemm.flow
    assert gemm.attributes["tokentrace.kernel.queue_delay_ns"] == 40
    assert gemm.attributes["tokentrace.kernel.name"] == "void gemm<float>(float*)"
    assert launch.thread == 1 and not launch.flow and launch.join == "time"
    graph = records["launch cudaGraphLaunch"]
    assert graph.attributes["tokentrace.kernel.calls"] == 2
    for name in ("kernel a", "kernel b"):
        assert records[name].link_keys == (graph.key,)
        assert records[name].attributes["tokentrace.kernel.graph"] is True
        assert records[name].parent_key == "step:7:1"
    assert records["kernel early"].link_keys == () and records["kernel early"].join == "time"
    assert records["copy Memcpy DtoH"].attributes["tokentrace.kernel.bytes"] == 8
    assert probe.state.facts["orphans"] == 2 and "2 of 5" in probe.state.reason
    assert [r.name for r in collect(OperatorProfilerProbe(), agent)] == ["aten::linear", "aten::addmm"]


def test_a_kernel_that_runs_on_after_its_step_belongs_to_the_step_that_launched_it() -> None:
    agent = Answering([columns(GPU)], [step(0, 90, 160, r1=31), step(1, 290, 400, r1=1)])
    gemm = next(r for r in collect(KernelProbe(), agent) if r.name == "kernel gemm")
    assert gemm.parent_key == "step:7:0"


def test_without_steps_a_kernel_belongs_to_the_request() -> None:
    gemm = next(r for r in collect(KernelProbe(), Answering([columns(GPU)])) if r.name == "kernel gemm")
    assert gemm.parent_key == "" and gemm.request == "r1"


def test_steps_of_other_requests_are_not_ours() -> None:
    agent = Answering([columns(GPU)], [step(0, 90, 200, other=31), step(1, 290, 400, r1=1, other=1)])
    assert collect(OperatorProfilerProbe(), agent) == []
    names = [r.name for r in collect(KernelProbe(), agent)]
    assert "kernel a" in names and "kernel gemm" not in names


def test_a_request_whose_id_the_server_lengthened_is_still_ours() -> None:
    others = Raw("engine", "step", 290, 400, 1, "7", {"index": 1, "reqs": {"other": 1}})
    mine = Raw("engine", "step", 90, 200, 1, "7", {"index": 0, "reqs": {"r1-1a2b3c4d": 31}})
    names = [r.name for r in collect(KernelProbe(), Answering([columns(GPU)], [mine, others]))]
    assert "kernel gemm" in names and "kernel a" not in names


def test_a_gpu_that_reports_no_kernel_is_said_to_report_none() -> None:
    probe = KernelProbe()
    collect(probe, Answering([columns(LINEAR, activities=["CPU", "CUDA"])]))
    assert "got no kernel" in probe.state.reason and "NVreg_RestrictProfilingToAdminUsers" in probe.state.fix


def test_the_profiler_is_stopped_and_its_cost_told() -> None:
    agent = Answering([columns(LINEAR, stop_cost_ns=5, read_cost_ns=6, events=6, steps=2)])
    probe = OperatorProfilerProbe()
    collect(probe, agent)
    assert agent.log == [("enable", "ops"), ("disable", "ops")]
    assert probe.state.facts["profiler"] == [
        {"events": 6, "steps": 2, "stop_cost_ns": 5, "read_cost_ns": 6, "outside_request": 0}
    ]


def test_a_recording_of_some_steps_only_says_so() -> None:
    probe = KernelProbe()
    collect(probe, Answering([columns(LINEAR, limited="the profiler recorded the first 2 steps only")]))
    assert probe.state.reason.startswith("the profiler recorded the first 2 steps only; eager mode")


@pytest.mark.parametrize(
    ("at", "told"),
    [
        ((100, 290), "the profiler recorded the first 2 steps only"),
        ((100, 190), "the profiler recorded the first step only"),
        ((300, 390), "the profiler recorded 1 of this request's 4 steps (number 3): it records the first ones after"),
        ((200, 390), "the profiler recorded 2 of this request's 4 steps (number 2 to 3): it records the first ones"),
        ((100, 490), "eager mode"),
    ],
)
def test_which_of_a_requests_steps_were_recorded_is_told_by_their_times(at: tuple[int, int], told: str) -> None:
    begin, end = at
    limits = {"limited": "the profiler recorded the first 2 steps only", "recorded_steps": 2}
    rows = [{**row, "start": row["start"] + begin - 100, "end": row["end"] + begin - 100} for row in LINEAR[:1]]
    steps = [step(0, 1, 95, b=1), *(step(n, 100 * n, 100 * n + 90, a=1, b=1) for n in range(1, 5))]
    agent = Answering([columns(rows, start_ns=begin, end_ns=end, **limits)], steps)
    probe = KernelProbe()
    collect(probe, agent, request="a")
    assert probe.state.reason.startswith(told)


def test_a_recording_of_other_requests_steps_says_nothing_of_this_one() -> None:
    limited = "the profiler recorded the first 2 steps only"
    recorded = columns([{"name": "aten::mm", "start": 10, "end": 90}], start_ns=1, end_ns=95, limited=limited)
    agent = Answering([recorded], [step(0, 1, 95, b=1), step(1, 500, 590, a=1), step(2, 600, 690, a=1)])
    with pytest.raises(ProbeUnavailable, match="steps of other requests only"):
        collect(OperatorProfilerProbe(), agent, request="a")


@pytest.mark.parametrize("probe", [OperatorProfilerProbe, KernelProbe])
def test_reasons_for_seeing_nothing(probe: Any) -> None:
    with pytest.raises(ProbeUnavailable, match="inside the server's process"):
        probe().arm(context(None))
    light = context(Answering())
    light.deep = False
    with pytest.raises(ProbeUnavailable, match="deep pass"):
        probe().arm(light)
    with pytest.raises(ProbeUnavailable, match="no recording came"):
        probe().collect(context(Answering()))
    with pytest.raises(ProbeUnavailable, match="recorded no operator"):
        probe().collect(context(Answering([columns(LINEAR)]), start_ns=5000, end_ns=6000))
    broken = Answering([columns([], problem="the profiler did not stop cleanly: CUPTI")])
    with pytest.raises(ProbeUnavailable, match="CUPTI"):
        probe().collect(context(broken))
    assert next(iter(probe().check(context(None)))).status == "unknown"
    assert next(iter(probe().check(context(Answering(facts={"versions": {"torch": "2.13.0"}}))))).status == "ok"


def test_a_step_of_a_large_model_is_quick_to_read() -> None:
    rows = []
    for call in range(15_000):
        at = call * 1000
        rows += [
            {"name": "aten::linear", "start": at, "end": at + 900, "shapes": "[[1, 576], [576, 576], []]"},
            {"name": "aten::t", "start": at + 10, "end": at + 50},
            {"name": "aten::mm", "start": at + 60, "end": at + 890, "shapes": "[[1, 576], [576, 576]]"},
            {"name": "aten::resolve_conj", "start": at + 61, "end": at + 62},
        ]
    recorded: list[Columns] = [columns(rows)]
    # A bound on the work, not on the machine: the unit is a plain loop of ten million turns.
    before = time.process_time()
    for _ in range(10_000_000):
        pass
    unit = time.process_time() - before
    before = time.process_time()
    count = len(collect(OperatorProfilerProbe(), Answering(recorded))) + len(
        collect(KernelProbe(), Answering(recorded))
    )
    took = time.process_time() - before
    assert count == 60_000
    assert took < 20 * unit, f"{took:.2f} s for 60,000 events, a loop of ten million turns takes {unit:.2f} s"
