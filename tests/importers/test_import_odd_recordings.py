"""What is odd in published recordings, one oddity a test: each is a way in which some writer differs from the rest."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recordings

from tokentrace import gpu_events
from tokentrace.errors import UsageError
from tokentrace.importers import load
from tokentrace.importers._analysis import Analysis
from tokentrace.importers.join import by_external_id


def raw(path: Path) -> dict[str, Any]:
    """The file as it is, times as exact decimals."""
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    return document


def named(found: Analysis, rows: np.ndarray[Any, Any]) -> Counter[str]:
    return Counter(found.events.names[code] for code in found.events.name[rows].tolist())


def kinds(found: Analysis) -> dict[str, int]:
    return {gpu_events.KIND_NAMES[kind]: count for kind, count in Counter(found.events.kind.tolist()).items()}


def told(path: Path) -> str:
    return "\n".join(f"{finding.status} {finding.sentence} {finding.evidence}" for finding in load(path).findings)


OLD = "kineto/v100_dgx_resnet_w4_2021_old_schema.pt.trace.json.gz"


def test_the_categories_of_2021_are_known() -> None:
    """Operator, Runtime, Kernel, Memcpy and Memset. Of the operators 24 are annotations: steps, optimizer, loader."""
    assert kinds(recordings.analysed(recordings.large(OLD))) == {
        "operator": 20562 - 24, "mark": 24, "runtime": 12085, "kernel": 8868, "memset": 378, "memcpy": 12,
        "envelope": 1,
    }  # fmt: skip


def test_the_external_id_of_2021_is_written_in_lower_case() -> None:
    found = recordings.analysed(recordings.large(OLD))
    assert int((by_external_id(found.events, found.joined) >= 0).sum()) == 8868


def test_a_thread_told_as_text_and_a_stream_called_stream_7_are_one_track_each() -> None:
    found = recordings.analysed(recordings.large(OLD))
    assert sorted(found.events.tracks) == [
        ("0", "stream 7"), ("5555", "5555"), ("5555", "5786"), ("Traces", "PyTorch Profiler"),
    ]  # fmt: skip
    assert (found.events.streams, found.events.devices) == (["7"], ["0"])


def test_a_step_of_2021_is_written_as_an_operator_and_read_as_an_annotation() -> None:
    found = recordings.analysed(recordings.large(OLD))
    assert [(step["index"], step["kernels"]) for step in found.step_figures] == [(n, 1478) for n in range(5, 11)]
    assert {found.events.kind[step.row] for step in found.steps.steps} == {gpu_events.ANNOTATION}


def test_a_synchronisation_drawn_on_thread_minus_one_is_no_work_and_no_stream() -> None:
    path = recordings.large("hta/a100_alexnet_cuda_sync.json.gz")
    found = recordings.analysed(path)
    events = found.events
    sync = np.flatnonzero(events.kind == gpu_events.SYNC)
    drawn = [events.tracks[track][1] for track in events.track[sync].tolist()]
    assert (len(sync), drawn.count("-1")) == (41, 5)
    assert not set(sync.tolist()) & set(np.concatenate((found.joined.kernels, found.joined.copies)).tolist())
    assert "79 kernels on 2 streams" in told(path)


def test_a_thread_with_a_negative_number_is_a_thread_of_the_host() -> None:
    found = recordings.analysed(recordings.large("hta/v100_dlrm_cudagraph_2rank.json.gz"))
    events = found.events
    here = events.track == events.tracks.index(("2568503", "-19360192"))
    assert set(events.kind[here].tolist()) == {gpu_events.RUNTIME} and int(here.sum()) == 293
    assert events.devices == ["1"]


def test_without_flow_events_the_ids_join_all_the_same() -> None:
    path = recordings.large("hta/unknowngpu_sampled_rank0of128_noflow.json.gz")
    assert not {"s", "t", "f"} & {event.get("ph") for event in raw(path)["traceEvents"]}
    found = recordings.analysed(path)
    assert (found.joined.launch_of >= 0).sum() == 1154 and (found.joined.copy_call >= 0).sum() == 50
    trace = load(path).trace
    ids = {span.span_id: span.name for span in trace.spans}
    kernels = [span for span in trace.spans if span.name.startswith("kernel ")]
    assert kernels
    for span in kernels:
        (link,) = span.links
        assert ids[link.span_id] == "launch cudaLaunchKernel"


def test_a_gpu_without_a_header_is_a_gpu() -> None:
    """No deviceProperties: what it is called is unknown, not what it did."""
    path = recordings.large("hta/unknowngpu_sampled_rank0of128_noflow.json.gz")
    found = load(path)
    assert "devices" not in recordings.analysed(path).events.facts
    assert [device["device"] for device in found.figures["devices"]] == ["0"]
    assert "CPU" not in told(path)


def test_flows_that_begin_at_memory_calls_launch_nothing() -> None:
    """ROCm gives hipMalloc and hipFree a flow's beginning, too: twice as many begin as end."""
    path = recordings.large("tracelens/mi300_ddp_resnet18_train.json.gz")
    flows = Counter(event["ph"] for event in raw(path)["traceEvents"] if event.get("cat") == "ac2g")
    assert flows == {"s": 5185, "f": 2777}
    found = recordings.analysed(path)
    assert set(named(found, found.joined.launch_of)) == {"hipExtModuleLaunchKernel", "hipLaunchKernel"}
    assert set(named(found, found.joined.copy_call)) == {"hipMemsetAsync", "hipMemcpyWithStream"}
    assert named(found, found.measures.memory_calls) == {"hipMalloc": 1460, "hipFree": 1360, "hipHostMalloc": 1}
    assert len(found.joined.launches) == len(found.joined.kernels) == 2360


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("mi250_minitoy_train_small.json.gz", ["AMD Radeon Graphics"] * 4),
        ("mi300_vllm_decode_full_graph_step.json.gz", ["unnamed"] * 8),
    ],
)
def test_a_gpu_goes_by_its_number_whatever_it_is_called(name: str, called: list[str]) -> None:
    """One that is called like a desktop card and one with an empty name are the third of their machine."""
    path = recordings.SMALL / name
    assert recordings.analysed(path).events.facts["devices"] == called
    found = load(path)
    assert [(device["device"], device["kernels"]) for device in found.figures["devices"]] == [
        ("2", found.figures["kernels"])
    ]


def test_a_header_with_an_empty_name_still_tells_of_a_device(tmp_path: Path) -> None:
    path = recordings.trace_file(
        tmp_path / "t.json", [recordings.op("aten::mm", 0, 5)], deviceProperties=[{"name": ""}]
    )
    assert "1 × unnamed" in told(path) and "ran on the CPU" not in told(path)


def test_overhead_on_process_minus_one_is_neither_device_nor_kernel() -> None:
    path = recordings.large("tracelens/b200_vllm_tp8_prefill_eager.json.gz")
    found = recordings.analysed(path)
    assert found.events.devices == ["0"] and kinds(found)["overhead"] == 9
    assert "Device code was loaded for 441 µs during the recording. 8 events: Lazy Function Loading ×8" in told(path)


def test_launches_of_the_driver_and_of_the_runtime_count_together() -> None:
    found = recordings.analysed(recordings.large("tracelens/b200_vllm_tp8_prefill_eager.json.gz"))
    assert named(found, found.joined.launches) == {
        "cudaLaunchKernel": 367, "cuLaunchKernelEx": 220, "cudaLaunchKernelExC": 180, "cuLaunchKernel": 1,
    }  # fmt: skip
    assert (found.joined.launch_of >= 0).all()


def test_a_call_of_a_compiled_graph_is_no_compile() -> None:
    text = told(recordings.large("tracelens/b200_vllm_tp8_prefill_eager.json.gz"))
    assert "1 call of compiled graphs; nothing was compiled." in text


def test_a_kernel_of_triton_is_known_by_the_operator_that_launched_it() -> None:
    """The kernel itself is just called triton_."""
    (kernel,) = (
        span
        for span in load(recordings.SMALL / "a100_triton_one_kernel.json.gz").trace.spans
        if span.name.startswith("kernel ")
    )
    assert kernel.name == "kernel triton_"
    assert "triton_poi_fused_add_cos_sin_0 launched 100 % of all kernel time" in told(
        recordings.SMALL / "a100_triton_one_kernel.json.gz"
    )


def test_a_call_of_no_length_at_the_end_of_its_operator_lies_in_it() -> None:
    """A recording of whole microseconds has hundreds of them."""
    found = recordings.analysed(recordings.large("segment-anything-fast/a100_sam_amg_triton.json.gz"))
    events, calls = found.events, found.joined.runtime
    none = calls[events.start[calls] == events.end[calls]]
    parent = found.tree.parent[none]
    assert len(none) == 668 and (parent >= 0).all()
    assert (events.end[parent] == events.start[none]).sum() == 245


def test_what_was_compiled_at_run_time_is_launched_by_the_driver() -> None:
    found = recordings.analysed(recordings.large("segment-anything-fast/a100_sam_amg_triton.json.gz"))
    by_driver = found.events.names_matching(re.compile("^cuLaunchKernel$"))[found.events.name[found.joined.launch_of]]
    names = named(found, found.joined.kernels[by_driver])
    assert sum(names.values()) == 320
    assert {name.partition("_0d")[0] for name in names} == {"triton_", "_fwd_kernel_aligned", "reduction_prod_kernel"}


def test_calls_named_invalid_launch_nothing() -> None:
    path = recordings.SMALL / "v100_dlrm_8rank_worker3_step_12.1694128201557.pt.trace.json.gz"
    found = recordings.analysed(path)
    assert named(found, found.joined.runtime)["INVALID"] == 8
    assert set(named(found, found.joined.all_launches)) == {"cudaLaunchKernel"}
    assert "64 of 315 kernels have no launch in the recording: they were queued before the recording began" in told(
        path
    )


def test_an_external_id_that_repeats_the_correlation_id_names_no_operator() -> None:
    """Their operators are found by time instead."""
    found = recordings.analysed(recordings.large("hta/v100_dlrm_cudagraph_2rank.json.gz"))
    kernels = found.joined.kernels
    assert (found.events.external[kernels] == found.events.correlation[kernels]).all()
    assert (by_external_id(found.events, found.joined) < 0).all()
    assert (found.tree.operator[found.joined.call_of[found.joined.call_of >= 0]] >= 0).sum() == 9282


def test_one_id_for_hundreds_of_kernels_is_one_graph() -> None:
    found = recordings.analysed(recordings.large("hta/v100_dlrm_cudagraph_2rank.json.gz"))
    graphs = Counter(found.joined.launch_of[found.joined.under_graph].tolist())
    assert len(graphs) == 12 and set(graphs.values()) == {315, 429}


def test_unix_times_with_fractions_are_exact_to_the_nanosecond() -> None:
    """1712195495406752.750 µs and no base: a float of it is off by up to 125 ns."""
    path = recordings.large("hta/v100_resnet_ns_absolute_ts.pt.trace.json.gz")
    document = raw(path)
    assert "baseTimeNanoseconds" not in document
    expected = sorted(int(e["ts"] * 1000) for e in document["traceEvents"] if e.get("cat") == "kernel")
    events = recordings.analysed(path).events
    assert events.base_ns == 0
    assert sorted(events.start[events.kind == gpu_events.KERNEL].tolist()) == expected


def test_ids_beyond_63_bits_and_kernels_without_arguments_are_read() -> None:
    found = load(recordings.SMALL / "uint64_comms_id.pt.trace.json")
    assert found.lost == {"events": 0, "reason": ""}
    assert (found.figures["kernels"], found.figures["orphan_kernels"], found.figures["busy_ns"]) == (1, 1, 50_000)


def test_without_a_gpu_busy_and_idle_are_not_told() -> None:
    path = recordings.large("hta/cpu_only_gloo_rank34of300.pt.trace.json.gz")
    found = load(path)
    assert found.figures["devices"] == [] and found.figures["idle_share"] is None
    text = told(path)
    assert "The model ran on the CPU, or its device was not recorded" in text and "GPU was busy" not in text
    assert [step["index"] for step in found.steps] == [551, 552, 553, 554, 555]


def test_without_operators_kernels_have_their_launch_and_nothing_is_made_up() -> None:
    found = load(recordings.large("tracelens/mi210_gpu_only.json.gz"))
    assert found.figures["matched"] == 562
    states = {state.layer: state for state in found.layers}
    assert states[4].status == "unseen" and states[4].reason == "operators were not recorded"
    assert states[3].status == "seen" and found.operators == []
    assert not any(finding.layer == 4 for finding in found.findings)


def test_a_recording_that_was_almost_idle_is_not_called_busy_or_all_idle() -> None:
    found = load(recordings.large("hta/a100_alexnet_cuda_sync.json.gz"))
    assert 0.999 < found.figures["idle_share"] < 1
    assert "10.6 ms of 43.4 s, <0.1 %" in "\n".join(finding.sentence for finding in found.findings)


def test_a_collective_is_known_by_its_kernel() -> None:
    path = recordings.large("hta/a100_ddp_nccl_2rank.json.gz")
    events = raw(path)["traceEvents"]
    own = [event for event in events if event.get("cat") == "kernel" and "Collective name" in event["args"]]
    assert len(own) == 21
    found = recordings.analysed(path)
    assert int(found.measures.collective.sum()) == 21
    assert found.measures.collective_ns == sum(int(event["dur"] * 1000) for event in own)


def test_an_export_of_nsys_without_its_table_of_gpus_still_tells_them_apart() -> None:
    found = recordings.analysed(recordings.large("nsys-ai/h100_2gpu_1s.sqlite.gz"))
    assert "devices" not in found.events.facts and found.events.devices == ["0", "1"]


def test_an_export_of_nsys_from_windows_is_read() -> None:
    found = recordings.analysed(recordings.large("nsys-ai/mock.sqlite.gz"))
    assert found.events.facts["devices"] == ["NVIDIA GeForce RTX 3080"]
    assert (found.joined.launch_of >= 0).sum() == found.figures["kernels"] == 2


@pytest.mark.parametrize("form", ["timing", "timeline"])
def test_the_text_of_unitrace_is_refused_in_one_sentence(form: str) -> None:
    with pytest.raises(UsageError, match="is not a recording: it is neither JSON nor an nsys export") as refused:
        load(recordings.large(f"pti-gpu/unitrace_dpc_gemm_device_{form}.txt"))
    assert refused.value.fix
