"""rocprofv3 results: what is joined, and what is left of a damaged one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import recordings

from tokentrace.errors import UsageError
from tokentrace.importers import Imported, load


def result(kernels: int = 40, pid: int = 7) -> dict[str, Any]:
    """A result as rocprofv3 writes it: one GPU, a HIP call for each dispatch, calls named by number."""
    calls, dispatches = [], []
    for n in range(kernels):
        shared = {"size": 80, "thread_id": pid, "correlation_id": {"internal": n + 1, "external": 0}}
        calls.append({**shared, "kind": 1, "operation": 1, "start_timestamp": 1000 * n, "end_timestamp": 1000 * n + 90})
        dispatches.append(
            {
                **shared, "kind": 2, "operation": 0, "start_timestamp": 1000 * n + 200, "end_timestamp": 1000 * n + 700,
                "dispatch_info": {
                    "agent_id": {"handle": 5}, "queue_id": {"handle": 1}, "kernel_id": 1 + n % 2,
                    "workgroup_size": {"x": 64, "y": 1, "z": 1}, "grid_size": {"x": 128, "y": 1, "z": 1},
                },
            }
        )  # fmt: skip
    return {
        "metadata": {"node": {"hostname": "h"}, "pid": pid},
        "agents": [{"id": {"handle": 5}, "type": 2, "product_name": "AMD Instinct MI300X", "logical_node_type_id": 0}],
        "counters": [],
        "strings": {"buffer_records": [{"kind": "NONE", "operations": []},
                                       {"kind": "HIP_RUNTIME_API", "operations": ["none", "hipLaunchKernel"]}]},
        "code_objects": [],
        "kernel_symbols": [{"kernel_id": 1, "formatted_kernel_name": "gemm"},
                           {"kernel_id": 2, "formatted_kernel_name": "softmax"}],
        "buffer_records": {"kernel_dispatch": dispatches, "hip_api": calls, "memory_copy": []},
    }  # fmt: skip


def imported(path: Path, *tools: dict[str, Any], edit: Any = lambda text: text) -> Imported:
    path.write_bytes(edit(json.dumps({"rocprofiler-sdk-tool": list(tools)}).encode()))
    return load(path)


def test_a_whole_result_is_joined_by_process(tmp_path: Path) -> None:
    found = imported(tmp_path / "r.json", result(40, 7), result(10, 8))
    counts = {key: found.figures[key] for key in ("kernels", "launches", "matched", "orphan_kernels")}
    assert counts == {"kernels": 50, "launches": 50, "matched": 50, "orphan_kernels": 0}
    assert found.lost == {"events": 0, "reason": ""} and found.source["devices"] == ["AMD Instinct MI300X"] * 2
    recordings.check_tree(found.trace)


def test_gpus_are_called_by_their_number_among_the_gpus(tmp_path: Path) -> None:
    """A copy to the host is one of the GPU that it comes from: a processor is no device."""
    tool = result()
    tool["agents"] = [
        {"id": {"handle": 4}, "type": 1, "product_name": "EPYC", "logical_node_type_id": 0},
        {"id": {"handle": 5}, "type": 2, "product_name": "AMD Instinct MI300X", "logical_node_type_id": 3},
    ]
    tool["buffer_records"]["memory_copy"] = [
        {"start_timestamp": 50_000, "end_timestamp": 50_100, "bytes": 4, "kind": -1, "operation": 1, "thread_id": 7,
         "correlation_id": {"internal": 900}, "src_agent_id": {"handle": 5}, "dst_agent_id": {"handle": 4}},
    ]  # fmt: skip
    found = imported(tmp_path / "r.json", tool)
    assert [device["device"] for device in found.figures["devices"]] == ["3"]
    named = {attributes.get("hw.id") for attributes in map(found.trace.attributes, range(len(found.trace)))}
    assert named - {None} == {"3"}
    del tool["agents"]
    assert [d["device"] for d in imported(tmp_path / "s.json", tool).figures["devices"]] == ["5"]


def with_gpu(tool: dict[str, Any], **told: Any) -> dict[str, Any]:
    """The result of a process whose only GPU has these properties."""
    tool["agents"] = [{**tool["agents"][0], **told}]
    return tool


def devices(found: Imported) -> list[tuple[str, int]]:
    return [(device["device"], device["kernels"]) for device in found.figures["devices"]]


def test_gpus_that_two_containers_call_by_one_number_are_two(tmp_path: Path) -> None:
    """Each container sees one GPU, so each calls it 0; the kernel's nodes and the serial numbers tell them apart."""
    gpus = ({"node_id": 2, "location_id": 29952, "domain": 0, "uuid": {"bytes": {"value0": 203}}},
            {"node_id": 9, "location_id": 38144, "domain": 0, "uuid": {"bytes": {"value0": 217}}})  # fmt: skip
    one, other = with_gpu(result(40, 7), **gpus[0]), with_gpu(result(10, 8), **gpus[1])
    found = imported(tmp_path / "r.json", one, other)
    assert devices(found) == [("0", 40), ("0 of process 8", 10)]
    assert found.figures["busy_ns"] == 50 * 500, "side by side on two GPUs, not one behind the other"
    busy = next(f for f in found.findings if f.sentence.startswith("The GPU was busy"))
    assert "2 devices together" in busy.evidence and "count as one" not in busy.evidence
    recordings.check_tree(found.trace)


def test_gpus_of_containers_whose_processes_have_one_number_are_as_many(tmp_path: Path) -> None:
    """The program of a container is often its process 1."""
    tools = [with_gpu(result(kernels, 1), node_id=node, location_id=100 * node, domain=0)
             for node, kernels in ((2, 40), (3, 10), (4, 5))]  # fmt: skip
    assert devices(imported(tmp_path / "r.json", *tools)) == [
        ("0", 40), ("0 of process 1", 10), ("0 of process 1 (2)", 5)
    ]  # fmt: skip


def test_a_gpu_that_two_processes_use_is_one(tmp_path: Path) -> None:
    """Also where they call it by different numbers, for one sees more GPUs than the other."""
    same = {"node_id": 3, "location_id": 1280, "domain": 0, "uuid": {"bytes": {"value0": 100}}}
    tools = with_gpu(result(40, 7), **same), with_gpu(result(10, 8), **same, logical_node_type_id=1)
    found = imported(tmp_path / "r.json", *tools)
    assert devices(found) == [("0", 50)] and found.figures["busy_ns"] == 40 * 500


def test_gpus_of_which_only_the_number_is_known_are_said_to_count_as_one(tmp_path: Path) -> None:
    told = "GPUs that several processes call by one number count as one"
    found = imported(tmp_path / "r.json", result(40, 7), result(10, 8))
    assert devices(found) == [("0", 50)] and any(told in finding.evidence for finding in found.findings)
    alone = imported(tmp_path / "s.json", result(40, 7))
    assert not any(told in finding.evidence for finding in alone.findings)


def test_the_published_result_tells_its_gpus_apart() -> None:
    """Eight GPUs; the process used the first one, and every one has a node, a place and a serial number."""
    found = load(recordings.large("tracelens/mi350x_rocprofv3_908_results.json.gz"))
    assert devices(found) == [("0", 43_915)]
    assert found.source["devices"] == ["AMD Instinct MI350X"] * 8 and "gpus_by_number" not in found.source


def test_markers_are_called_by_their_text_and_mark_steps(tmp_path: Path) -> None:
    """rocprofv3 names a range "roctxThreadRangeA" and keeps what the program wrote under its correlation id."""
    tool = result()
    ranges = {"kind": "MARKER_CORE_RANGE_API", "operations": ["roctxMarkA", "roctxThreadRangeA"]}
    tool["strings"]["buffer_records"] += [{"kind": "KERNEL_DISPATCH", "operations": []}, ranges]
    tool["strings"]["marker_api"] = [{"key": 900 + n, "value": f"step {n}"} for n in (4, 5)]
    tool["buffer_records"]["marker_api"] = [
        {"size": 56, "kind": 3, "operation": 1, "thread_id": 7, "correlation_id": {"internal": 900 + n, "external": 0},
         "start_timestamp": 20_000 * (n - 4), "end_timestamp": 20_000 * (n - 3) - 1} for n in (4, 5)
    ]  # fmt: skip
    found = imported(tmp_path / "r.json", tool)
    assert [(step["index"], step["name"], step["kernels"]) for step in found.steps] == [
        (4, "step 4", 20), (5, "step 5", 20)]  # fmt: skip
    assert "roctx" not in " ".join(found.trace.names)


def test_a_cut_result_gives_what_came_before_the_cut(tmp_path: Path) -> None:
    whole = json.dumps({"rocprofiler-sdk-tool": [result()]}).encode()
    records = whole.index(b'"kernel_dispatch"')
    for part in (0.2, 0.5, 0.9):
        end = records + int((len(whole) - records) * part)
        found = imported(tmp_path / "r.json", result(), edit=lambda text, end=end: text[:end])
        complete = whole[records:end].count(b'"grid_size": {"x": 128, "y": 1, "z": 1}}}')
        assert found.figures["kernels"] == complete
        assert found.lost["events"] == 1 and "cut" in found.lost["reason"]
        assert {kernel["name"] for kernel in found.figures["top_kernels"]} <= {"gemm", "softmax"}
        assert any(finding.status == "warn" and "damaged" in finding.sentence for finding in found.findings)
        recordings.check_tree(found.trace)


def test_a_damaged_entry_is_skipped_and_counted(tmp_path: Path) -> None:
    def tear(text: bytes) -> bytes:
        at = text.index(b'"start_timestamp"', text.index(b'"kernel_dispatch"'))
        return text[: at + 3] + b"\x00{" + text[at + 5 :]

    found = imported(tmp_path / "r.json", result(), edit=tear)
    assert (found.figures["kernels"], found.figures["matched"], found.lost["events"]) == (39, 39, 1)


def test_an_entry_with_a_strange_value_is_skipped_and_counted(tmp_path: Path) -> None:
    odd = result()
    odd["buffer_records"]["kernel_dispatch"][3]["start_timestamp"] = "soon"
    odd["buffer_records"]["hip_api"][4] = 12
    found = imported(tmp_path / "r.json", odd)
    assert (found.figures["kernels"], found.figures["launches"], found.lost["events"]) == (39, 39, 2)


def test_a_kernel_whose_name_was_lost_is_told_by_its_number(tmp_path: Path) -> None:
    found = imported(
        tmp_path / "r.json", result(), edit=lambda text: text.replace(b'"kernel_id": 2, "form', b'"ke"form')
    )
    assert [kernel["name"] for kernel in found.figures["top_kernels"]] == ["gemm", "kernel 2"]
    assert found.lost["events"] == 1 and "kernel_symbols" in found.lost["reason"]


def test_flipped_bytes_never_break_it(tmp_path: Path) -> None:
    whole = json.dumps({"rocprofiler-sdk-tool": [result(12)]}).encode()
    draw = random.Random(5)
    for _ in range(150):
        text = bytearray(whole)
        for _ in range(draw.choice((1, 1, 3, 20))):
            text[draw.randrange(len(text))] = draw.randrange(256)
        (tmp_path / "r.json").write_bytes(text)
        try:
            found = load(tmp_path / "r.json")
        except UsageError as error:
            assert "\n" not in str(error) and error.fix and len(str(error)) < 300
        else:
            assert found.figures["kernels"] <= 12
            recordings.check_tree(found.trace)


def test_the_published_result_when_cut() -> None:
    path = recordings.large("tracelens/mi350x_rocprofv3_908_results.json.gz")
    import gzip
    import tempfile

    text = gzip.decompress(path.read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        cut = Path(folder) / "r_results.json"
        cut.write_bytes(text[: int(len(text) * 0.9)])
        found = load(cut)
    assert 0 < found.figures["kernels"] < 43_915 and found.lost["events"] == 1
    assert any("No launch is left in the recording" in finding.sentence for finding in found.findings)


@pytest.mark.parametrize("content", [b'{"rocprofiler-sdk-tool": 3}', b'{"rocprofiler-sdk-tool": [{"metadata": 1}]}'])
def test_a_result_without_a_record_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(UsageError):
        load(tmp_path / "r.json")


@pytest.mark.parametrize("at", [2**63, 2**62, -5_000, -(2**70)])
def test_a_time_that_no_clock_shows_is_lost_and_counted(tmp_path: Path, at: int) -> None:
    tool = result()
    record = tool["buffer_records"]["kernel_dispatch"][7]
    record |= {"start_timestamp": at, "end_timestamp": at + 100}
    found = imported(tmp_path / "r.json", tool)
    if abs(at) < 2**62:  # a clock of unknown origin may begin below zero
        assert found.figures["kernels"] == 40 and found.figures["span_ns"] == 39_700 + 5_000
    else:
        assert (
            found.figures["kernels"] == 39 and found.lost["events"] == 1 and "times that cannot be" in str(found.lost)
        )
        assert found.figures["span_ns"] == 39_700


def test_what_rocprofv3_calls_a_queue_is_not_called_a_stream(tmp_path: Path) -> None:
    tool = result()
    tool["agents"].append({**tool["agents"][0], "id": {"handle": 6}, "logical_node_type_id": 1})
    for record in tool["buffer_records"]["kernel_dispatch"][20:]:
        record["dispatch_info"]["agent_id"] = {"handle": 6}
    (busy,) = (f for f in imported(tmp_path / "r.json", tool).findings if f.sentence.startswith("The GPU was busy"))
    assert busy.evidence.startswith("40 kernels on 2 queues;"), "one on each device, by the same number"
