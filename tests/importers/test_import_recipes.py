"""What people reported: blind profilers, CPU runs, odd files, graphs that hide their launches."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import recordings
from recordings import call, kernel, launches, op, trace_file

from tokentrace.errors import UsageError
from tokentrace.importers import Imported, load


def text(found: Imported) -> str:
    return "\n".join(f"L{f.layer} {f.status} {f.sentence} {f.evidence}" for f in found.findings)


def test_launches_without_kernels_mean_a_blind_profiler_not_an_idle_gpu(tmp_path: Path) -> None:
    events = []
    for n in range(20):
        events += [op("aten::mm", n * 100, 50), call("cudaLaunchKernel", n * 100 + 10, 5, 100 + n)]
    found = load(trace_file(tmp_path / "a.json", events))
    assert "L4 fail Launches were seen but their kernels were not recorded: the profiler was blind" in text(found)
    assert "idle" not in text(found).lower() and "busy" not in text(found).lower()
    assert found.figures["idle_share"] is None and found.figures["launches"] == 20


def test_operators_alone_ran_on_cpu(tmp_path: Path) -> None:
    found = load(trace_file(tmp_path / "b.json", [op("aten::mm", n * 5000, 4000) for n in range(20)]))
    assert "L5 warn The model ran on the CPU, or its device was not recorded" in text(found)
    assert "blind" not in text(found)
    kernel_layer = next(state for state in found.layers if state.layer == 3)
    assert kernel_layer.status == "unseen" and "not applicable" in kernel_layer.reason


def test_a_cut_gzip_file_is_used_up_to_the_cut(tmp_path: Path) -> None:
    plain = json.dumps({"traceEvents": [op(f"aten::op{n}", n * 10, 5) for n in range(500)]}).encode()
    path = tmp_path / "c.json.gz"
    path.write_bytes(gzip.compress(plain)[:-40])
    found = load(path)
    assert 300 < found.source["events"] < 500
    assert "L4 warn The recording is damaged" in text(found)


def test_control_characters_and_times_as_text(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text('{"traceEvents":[{"ph":"X","name":"a\x01","ts":1,"dur":1},{"ph":"X","name":"b","ts":2,"dur":1}]}')
    assert load(path).source["events"] == 2
    path.write_text(
        '{"traceEvents":[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":"1700000000000000.250","dur":"1.5"}]}'
    )
    found = load(path)
    assert found.source["events"] == 1 and found.lost["events"] == 0
    (span,) = [span for span in found.trace.spans if span.name == "kernel k"]
    assert (span.start_ns, span.duration_ns) == (1_700_000_000_000_000_250, 1500)


def test_an_empty_file_says_that_its_writer_died(tmp_path: Path) -> None:
    (tmp_path / "f.json.gz").touch()
    with pytest.raises(UsageError, match="empty file: its writer died"):
        load(tmp_path / "f.json.gz")


def test_graph_launches_own_their_kernels_and_overlap_counts_once(tmp_path: Path) -> None:
    events = [call("cudaGraphLaunch", 0, 5, 500), call("cudaGraphLaunch", 400, 5, 501),
              call("cuLaunchKernelEx", 800, 5, 600)]  # fmt: skip
    for graph, begin in ((500, 100), (501, 500)):
        events += [kernel("node", begin + n * 10, 8, graph, 7) for n in range(30)]
        events += [kernel("side", begin + n * 10, 8, graph, 8) for n in range(10)]
    events.append(kernel("single", 900, 20, 600))
    found = load(trace_file(tmp_path / "g.json", events))
    figures = found.figures
    assert (figures["kernels"], figures["matched"], figures["orphan_kernels"]) == (81, 81, 0)
    assert (figures["launches"], figures["graph_launches"]) == (3, 2)
    assert figures["busy_ns"] == 500_000 and figures["kernel_sum_ns"] == 660_000
    assert "80 of 81 kernels (99 %) ran inside a graph: host ops unknown there" in text(found)
    recordings.check_tree(found.trace)
    marked = [
        s for s in found.trace.spans if s.name.startswith("kernel ") and s.attributes.get("tokentrace.kernel.graph")
    ]
    assert len(marked) == 80 and all(span.links for span in marked)


def test_a_graph_of_very_many_kernels_stays_within_the_budget(tmp_path: Path) -> None:
    events = [call("cudaGraphLaunch", 0, 5, 500)]
    events += [kernel(f"node{n % 40}", 100 + n * 10, 8, 500) for n in range(15_000)]
    found = load(trace_file(tmp_path / "big.json", events))
    assert found.figures["matched"] == 15_000
    recordings.check_tree(found.trace)
    root = found.trace.attributes(0)
    assert root["tokentrace.import.shown"] + root["tokentrace.import.folded"] == 15_001


def test_many_steps_stay_within_the_budget(tmp_path: Path) -> None:
    events = []
    for n in range(12_000):
        events.append({"ph": "X", "cat": "user_annotation", "name": f"step {n}", "pid": 1, "tid": 1,
                       "ts": n * 100, "dur": 90 + n % 7})  # fmt: skip
        events += [call("cudaLaunchKernel", n * 100 + 5, 2, n), kernel("k", n * 100 + 10, 20, n)]
    found = load(trace_file(tmp_path / "steps.json", events))
    assert len(found.steps) == 12_000 and found.steps[7]["kernels"] == 1
    recordings.check_tree(found.trace)


def test_a_kernel_before_its_launch_shows_clocks_that_disagree(tmp_path: Path) -> None:
    events = [call("cudaLaunchKernel", n * 100 + 80, 5, n) for n in range(20)]
    events += [kernel("k", n * 100, 10, n) for n in range(20)]
    found = load(trace_file(tmp_path / "x.json", events))
    assert "20 kernels start before their launch: the clocks of host and device disagree" in text(found)
    assert "aunch-bound" not in text(found)
    recordings.check_tree(found.trace)


def test_compiles_are_seen(tmp_path: Path) -> None:
    def annotation(name: str, ts: int, dur: int) -> dict[str, object]:
        return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}

    events = [annotation("_compile.compile_inner (dynamo_timed)", 0, 900),
              annotation("inductor_compile (dynamo_timed)", 100, 700), op("TorchDynamo Cache Lookup", 950, 10),
              call("cuModuleLoadData", 970, 20, 1), kernel("k", 1000, 5, 2)]  # fmt: skip
    found = load(trace_file(tmp_path / "x.json", events))
    assert "L2 warn Code was compiled for 900 µs" in text(found)
    assert "Device code was loaded for 20.0 µs" in text(found)
    names = {span.name for span in found.trace.spans if span.layer == 2}
    assert names == {
        "compile _compile.compile_inner (dynamo_timed)",
        "cache TorchDynamo lookup",
        "compile cuModuleLoadData",
    }


def test_xpu_and_hip_launches_count(tmp_path: Path) -> None:
    events = [call("hipModuleLaunchKernel", 0, 1, 1), call("urEnqueueKernelLaunch", 2, 1, 2, cat="xpu_runtime"),
              call("hipGraphLaunch", 4, 1, 3), call("cudaMalloc", 6, 1, 4),
              *(kernel("k", 10 + n, 1, n) for n in range(1, 5))]  # fmt: skip
    figures = load(trace_file(tmp_path / "x.json", events)).figures
    assert (figures["launches"], figures["graph_launches"], figures["matched"], figures["orphan_kernels"]) == (
        3,
        1,
        3,
        0,
    )


def test_where_the_clocks_disagree_no_step_is_told_how_long_it_waited(tmp_path: Path) -> None:
    """Launch to kernel compares the two clocks, so neither a delay of 0 nor a lack of launches is made up."""
    rows = [op("ProfilerStep#1", -10, 4000), *launches(20, 100, 50)]
    (before,) = load(trace_file(tmp_path / "good.json", rows)).steps
    assert before["tklqt_ns"] > 0 and before["queue_delay_median_ns"] > 0 and before["starved_ns"] > 0
    wrong = [{**row, "ts": row["ts"] - 30} if row["cat"] == "kernel" else row for row in rows]
    found = load(trace_file(tmp_path / "wrong.json", wrong))
    (step,) = found.steps
    keys = ("tklqt_ns", "queue_delay_median_ns", "starved_ns", "starved_share")
    assert [step[key] for key in keys] == [None] * 4 and step["busy_ns"] == before["busy_ns"]
    kernels = [span.attributes for span in found.trace.spans if span.name == "kernel gemm"]
    assert len(kernels) == 20 and not any("tokentrace.kernel.queue_ns" in told for told in kernels)


def test_a_mark_on_the_device_stands_for_its_own_step_among_many_of_one_name(tmp_path: Path) -> None:
    """Engines call each decode step alike. Its kernels come without launches; the host runs a step ahead."""
    name = "execute_context_0(0)_generation_1(1)"
    rows = []
    for n in range(3):
        rows.append({**op(name, n * 100, 90, **{"External id": 10 + n}), "cat": "user_annotation"})
        on_device = kernel(name, 200 + n * 100, 90, None, **{"External id": 10 + n})
        rows += [{**on_device, "cat": "gpu_user_annotation"}]
        rows += [kernel("gemm", 205 + n * 100 + k * 10, 5, None) for k in range(n + 1)]
    found = load(trace_file(tmp_path / "t.json", rows))
    assert [step["kernels"] for step in found.steps] == [1, 2, 3]
    for row in rows:
        row["args"].pop("External id", None)
    nameless = load(trace_file(tmp_path / "u.json", rows))
    assert sum(step["kernels"] for step in nameless.steps) == 1, "only what lies in a step's own time is known"


def test_a_kernel_of_another_thread_than_its_step_says_how_it_got_there(tmp_path: Path) -> None:
    """The backward pass runs on a thread of its own."""
    rows = [op("ProfilerStep#1", 0, 1000), *launches(2, 100, 50, delay=20)]
    rows[4] = {**rows[4], "tid": 2}
    rows[5] = {**rows[5], "tid": 2}
    found = load(trace_file(tmp_path / "t.json", [rows[0], *rows[1:4], *rows[4:]]))
    told = [span.attributes.get("tokentrace.step.join") for span in found.trace.spans if span.name == "kernel gemm"]
    assert sorted(told, key=str) == [None, "time"]
