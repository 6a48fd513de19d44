"""Every recording there is here: figures equal to the independent ones, a sound trace, findings that fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import recordings

from tokentrace.importers import load
from tokentrace.importers.join import by_external_id

KNOWN = recordings.known()


def us(ns: int) -> float:
    return round(ns / 1000, 3)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_figures_equal_the_independent_ones(name: str) -> None:
    path, truth = KNOWN[name]
    found = load(path)
    figures = found.figures
    got: dict[str, Any] = {
        "kernels": figures["kernels"],
        "launches": figures["launches"],
        "matched_launch": figures["matched"],
        "busy_us": us(figures["busy_ns"]),
        "busy_us_by_device": {device["device"]: us(device["busy_ns"]) for device in figures["devices"]},
        "top5_kernels": [
            {"name": k["name"], "total_us": us(k["total_ns"]), "count": k["count"]} for k in figures["top_kernels"]
        ],
    }
    if truth["kind"] != "rocprofv3":
        got["orphan"] = figures["orphan_kernels"]
    if truth["kind"] == "kineto":
        got |= {
            "graph_launches": figures["graph_launches"],
            "kernel_sum_us": us(figures["kernel_sum_ns"]),
            "span_us": us(figures["span_ns"]),
            "idle_share_span": figures["idle_share"],
            "events": found.source["events"],
        }
    expected = {key: truth[key] for key in got}
    if truth["kind"] == "rocprofv3":  # the count names a GPU by its handle in the file, here it has its number
        expected["busy_us_by_device"] = dict(zip(["0"], truth["busy_us_by_device"].values(), strict=True))
    assert got == expected
    assert found.lost == {"events": 0, "reason": ""}


@pytest.mark.parametrize("name", sorted(n for n, (_, facts) in KNOWN.items() if facts["kind"] == "kineto"))
def test_joins_equal_the_independent_ones(name: str) -> None:
    path, truth = KNOWN[name]
    found = recordings.analysed(path)
    joined = found.joined
    launched_in = found.tree.operator[joined.call_of[joined.call_of >= 0]]
    assert {
        "ext_id_link_right": int((by_external_id(found.events, joined) >= 0).sum()),
        "kernels_under_cpu_op": int((launched_in >= 0).sum()),
        "graph_kernels": int(joined.under_graph.sum()),
        "matched_runtime": int((joined.call_of >= 0).sum()),
    } == {key: truth[key] for key in ("ext_id_link_right", "kernels_under_cpu_op", "graph_kernels", "matched_runtime")}
    delays = found.measures.delay[found.measures.delay >= 0]
    if truth["launch_to_start_us_median"] is not None:
        assert us(sorted(delays.tolist())[len(delays) // 2]) == truth["launch_to_start_us_median"]


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_trace_is_one_tree_within_the_budget_and_counts_what_it_folds(name: str) -> None:
    path = KNOWN[name][0]
    found = load(path)
    recordings.check_tree(found.trace)
    root = found.trace.attributes(0)
    shown, folded = root["tokentrace.import.shown"], root["tokentrace.import.folded"]
    assert shown + folded == recordings.spannable(recordings.analysed(path))
    left_out = sum(found.trace.attributes(row).get("tokentrace.folded.spans", 0) for row in range(len(found.trace)))
    assert left_out == folded
    own = {state.layer: state.facts["own_ns"] for state in found.layers if state.status == "seen"}
    assert all(value >= 0 for value in own.values()) and sum(own.values()) <= found.figures["span_ns"]
    assert [state.layer for state in found.layers] == [8, 7, 6, 5, 4, 3, 2, 1]
    for state in found.layers:
        assert state.status == "seen" or (state.reason and state.fix)
    for finding in found.findings:
        assert (
            finding.sentence.endswith(".") and finding.evidence and finding.status in ("ok", "warn", "fail", "unknown")
        )


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_steps_hold_no_more_than_the_whole(name: str) -> None:
    found = recordings.analysed(KNOWN[name][0])
    whole = {key: found.figures[key] for key in ("kernels", "graph_launches", "launches")}
    whole |= {key: getattr(found.measures, key) for key in ("tklqt_ns", "starved_ns", "graph_kernels")}
    for key, most in whole.items():
        assert sum(step[key] for step in found.step_figures) <= most, key
    for step in found.step_figures:
        assert 0 <= step["busy_ns"] <= step["span_ns"] * max(1, len(step["devices"]))
        assert step["host_ns"] <= step["span_ns"]


def test_known_steps() -> None:
    decode = load(recordings.SMALL / "mi300_vllm_decode_full_graph_step.json.gz")
    (step,) = decode.steps
    assert (step["phase"], step["batch"], step["tokens"], step["graph_kernels"]) == ("decode", 32, 32, 421)
    training = load(recordings.SMALL / "mi250_minitoy_train_small.json.gz")
    assert [(step["index"], step["kernels"]) for step in training.steps] == [(1, 14), (2, 0)]


def test_a_kernel_links_to_its_launch_and_names_its_operator() -> None:
    trace = load(recordings.SMALL / "mi300_torch_compile_triton_small.json.gz").trace
    spans = {span.span_id: span for span in trace.spans}
    kernels = [span for span in spans.values() if span.name.startswith("kernel ")]
    assert len(kernels) == 12
    for span in kernels:
        (link,) = span.links
        launch = spans[link.span_id]
        assert launch.name.startswith("launch hip")
        assert launch.start_ns <= span.start_ns
        assert span.attributes["tokentrace.join"] == "correlation_id"
        assert span.attributes["tokentrace.kernel.queue_ns"] == span.start_ns - launch.start_ns
        assert span.attributes["tokentrace.duration_ns"] == span.duration_ns
        assert span.attributes["tokentrace.op.join"] == "external_id"
        assert span.attributes["tokentrace.kernel.grid"].startswith("[")


def test_times_are_unix_times_to_the_nanosecond() -> None:
    trace = load(recordings.SMALL / "a100_triton_one_kernel.json.gz").trace
    (kernel,) = [span for span in trace.spans if span.name.startswith("kernel ")]
    assert kernel.duration_ns == 2240
    assert 1_719_853_884_000_000_000 < kernel.start_ns < 1_730_000_000_000_000_000


def test_nothing_of_the_metadata_gets_into_the_trace() -> None:
    path = recordings.large("tracelens/h100_hf_bert-small_forward.json.gz")
    import gzip
    import json

    header = json.loads(gzip.decompress(path.read_bytes()))
    header.pop("traceEvents")
    found = load(path)
    text = repr(
        [found.trace.values, found.trace.names, found.source, found.findings, found.steps, found.trace.processes]
    )
    for secret in _strings(header.get("metadata", {})):
        if len(secret) > 12:
            assert secret not in text
    assert "/home/" not in text and "site-packages" not in text


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for text in (str(pair[0]), *_strings(pair[1]))]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return [value] if isinstance(value, str) else []


def sentences(path: Any, **options: Any) -> str:
    return "\n".join(f"L{f.layer} {f.status} {f.sentence}" for f in load(path, **options).findings)


def test_graph_capture_is_told_from_a_blind_profiler() -> None:
    text = sentences(recordings.large("tracelens/mi300_vllm_graph_capture.pt.trace.json.gz"))
    assert "421 launches were captured into a graph" in text
    assert "blind" not in text


def test_orphans_at_the_head_are_explained() -> None:
    text = sentences(recordings.large("tracelens/h100_hf_qwen1.5-0.5b_forward.json.gz"))
    assert "436 of 1,465 kernels have no launch in the recording: they were queued before the recording began" in text
    assert "Not launch-bound" in text


def test_annotations_on_the_gpu_track_are_not_busy_time() -> None:
    found = load(recordings.large("hta/gp100_gpu_user_annotation_small.json.gz"))
    assert found.figures["busy_ns"] == 290_000


def test_launch_bound_and_not() -> None:
    assert "Launch-bound" in sentences(recordings.large("tracelens/b200_vllm_tp8_prefill_eager.json.gz"))
    assert "Not launch-bound" in sentences(recordings.large("hta/v100_resnet_ns_absolute_ts.pt.trace.json.gz"))


def test_a_wait_for_something_outside_the_recording_is_not_called_starvation() -> None:
    """One step was cut out of a longer run: the host waits in a copy for kernels of the step before."""
    text = sentences(recordings.large("tracelens/mi300_sglang_qwen3-8b_extend_step.json.gz"))
    assert "the host waited for a device then" in text
    assert "Launch-bound" not in text


def test_a_device_in_the_header_without_launches_is_unknown_not_cpu() -> None:
    text = sentences(recordings.large("hta/cpu_part_rank_missing.json.gz"))
    assert "L4 unknown Only the host was recorded" in text and "ran on the CPU" not in text


def test_graphs_collectives_and_waits_are_told() -> None:
    text = sentences(recordings.large("hta/v100_dlrm_cudagraph_2rank.json.gz"))
    assert "4,464 of 9,876 kernels (45 %) ran inside a graph" in text
    assert "Collectives ran for 251 ms" in text
    assert "60 copies that made the host wait" in text


def test_allocations_are_named_as_the_cause_of_the_gap() -> None:
    text = sentences(recordings.large("tracelens/mi300_ddp_resnet18_train.json.gz"))
    assert "while the host was in hipFree" in text


def test_nsys_ids_count_per_process() -> None:
    path = recordings.large("nsys-ai/h100_2gpu_1s.sqlite.gz")
    truth = KNOWN["nsys-ai/h100_2gpu_1s.sqlite.gz"][1]
    assert truth["matched_if_process_is_ignored"] != truth["matched_launch"]
    found = load(path)
    assert found.figures["matched"] == truth["matched_launch"]
    assert found.figures["idle_share"] is None and len(found.figures["devices"]) == 2
    assert any(span.name == "aten::mm" for span in found.trace.spans)


def test_rocprofv3_says_what_it_lacks() -> None:
    found = load(recordings.large("tracelens/mi350x_rocprofv3_908_results.json.gz"))
    text = "\n".join(f.sentence for f in found.findings)
    assert "No launch was recorded" in text and "aunch-bound" not in text
    assert found.source["clock"] == "unknown origin"


def test_a_step_alone() -> None:
    path = recordings.large("hta/a100_recsys_rank3of8.json.gz")
    whole = load(path)
    one = load(path, step=1010)
    entry = next(step for step in whole.steps if step["index"] == 1010)
    assert one.figures["kernels"] == entry["kernels"] == one.figures["matched"]
    assert one.figures["busy_ns"] == entry["busy_ns"]
    recordings.check_tree(one.trace)


def test_windows_cover_the_recording_once() -> None:
    for name in ("hta/a100_recsys_rank3of8.json.gz", "nsys-ai/h100_2gpu_1s.sqlite.gz"):
        path = recordings.large(name)
        whole = load(path)
        span = whole.figures["span_ns"]
        parts = [load(path, window=(span * n // 4, span * (n + 1) // 4 + (n == 3))) for n in range(4)]
        assert sum(part.figures["kernels"] for part in parts) == whole.figures["kernels"]
        assert sum(part.figures["matched"] for part in parts) == whole.figures["matched"]
        assert sum(part.figures["orphan_kernels"] for part in parts) == whole.figures["orphan_kernels"]
        for part in parts:
            recordings.check_tree(part.trace)


def test_a_window_is_no_longer_than_it_is() -> None:
    """Steps and kernels that reach out of it are cut off, and calls before it do not lengthen it."""
    path = recordings.large("hta/a100_recsys_rank3of8.json.gz")
    found = load(path, window=(100_000_000, 200_000_000))
    assert 95_000_000 < found.figures["span_ns"] <= 100_000_000
    # 74.492 ms by a count of the raw events; kernels that began before the window belong to the one before.
    assert found.figures["busy_ns"] == pytest.approx(74_492_000, rel=0.03)
    tiny = load(path, window=(0, 1_000_000))
    assert tiny.figures["span_ns"] <= 1_000_000
    nsys = load(recordings.large("nsys-ai/h100_2gpu_1s.sqlite.gz"), window=(100_000_000, 150_000_000))
    assert nsys.figures["span_ns"] <= 50_000_000


def test_a_folder_of_ranks_is_one_trace_with_a_lane_each() -> None:
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for name in recordings.SMALL.glob("v100_dlrm*"):
            shutil.copy(name, folder)
        (Path(folder) / "notes.json").write_text('{"hello": 1}')
        found = load(folder)
        recordings.check_tree(found.trace)
        lanes = [span for span in found.trace.spans if span.parent == 0 and span.layer == 0]
        assert [span.name for span in lanes] == ["rank 0", "rank 3"]
        assert found.figures["kernels"] == 245 + 315
        assert [lane["kernels"] for lane in found.figures["lanes"]] == [245, 315]
        assert "notes.json" in found.lost["reason"]
        text = "\n".join(f.sentence for f in found.findings)
        assert "The least busy of 2 recordings is rank 0" in text
        only = load(folder, rank=3)
        assert only.figures["kernels"] == 315


def test_the_leading_kernel_of_all_ranks_need_not_lead_in_any(tmp_path: Path) -> None:
    for rank in range(2):
        own = [recordings.kernel(f"rank {rank} kernel {n}", n * 100, 30, n) for n in range(5)]
        own.append(recordings.kernel("shared", 900, 20, 9))
        recordings.trace_file(tmp_path / f"rank{rank}.json", own)
    assert load(tmp_path).figures["top_kernels"][0] == {"name": "shared", "count": 2, "total_ns": 40_000}


def test_files_of_one_name_get_labels_of_their_own(tmp_path: Path) -> None:
    paths = []
    for folder in "ab":
        (tmp_path / folder).mkdir()
        paths.append(recordings.trace_file(tmp_path / folder / "t (x).json", [recordings.kernel("k", 1, 2, 1)]))
    assert [lane["label"] for lane in load(paths).figures["lanes"]] == ["t (x).json", "t (x).json (2)"]
