"""Compile logs and power dumps: read alone, and joined to a recording by time."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import recordings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokentrace.errors import UsageError
from tokentrace.importers import jit_logs, load, power_dumps

T0 = 1_700_000_000_000_000  # µs


def entry(payload: dict[str, Any]) -> str:
    text = json.dumps(payload, indent=0).replace("\n", "\n\t")
    return (
        'V1206 15:20:13.926000 154 torch/_dynamo/utils.py:1288] {"chromium_event": {}, "has_payload": "bb"}\n'
        f"\t{text}\n"
    )


def mark(ph: str, name: str, at: float, **args: Any) -> str:
    return entry({"name": name, "ts": T0 + at, "args": {"compile_id": "1/0", **args}, "ph": ph, "tid": 0, "pid": 0})


LOG = (
    'V1206 15:20:13.900000 154 torch/_logging/structured.py:22] {"str": ["/home/anna/secret.py", 0]}\n'
    + mark("B", "dynamo", 0)
    + mark("B", "backend_compile", 100)
    + mark("B", "inductor_compile", 200)
    + mark("i", "fx_graph_cache_miss", 300, key="fk1", cache_state="miss")
    + mark("E", "inductor_compile", 700)
    + mark("E", "backend_compile", 800)
    + mark("E", "dynamo", 900)
    + mark("B", "dynamo", 1000)
    + mark("i", "fx_graph_cache_hit", 1010.5, key="fk1", cache_state="hit", time_saved_ns=4_000_000)
    + mark("i", "autograd_cache_bypass", 1020, cache_bypass_reason="not\nsupported")
    + mark("E", "dynamo", 1100)
)


def test_phases_nest_and_lookups_keep_key_result_and_saving(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(LOG)
    found = load(tmp_path / "x.log")
    recordings.check_tree(found.trace)
    spans = {span.name: span for span in found.trace.spans if span.layer == 2}
    assert spans["compile inductor_compile"].duration_ns == 500_000
    parent = found.trace.span(spans["cache inductor miss"].parent)
    assert parent.name == "compile inductor_compile"
    hit = spans["cache inductor hit"]
    assert hit.start_ns == (T0 + 1010) * 1000 + 500
    assert hit.attributes["tokentrace.jit.key"] == "fk1" and hit.attributes["tokentrace.jit.saved_ns"] == 4_000_000
    assert spans["cache aotautograd bypass"].attributes["tokentrace.jit.reason"] == "not supported"
    text = " ".join(f.sentence + f.evidence for f in found.findings)
    assert "shows 1.00 ms of compiling" in text and "hits 1, misses 1" in text and "hits saved 4.00 ms" in text
    assert "anna" not in repr([found.trace.values, found.trace.names, found.source])
    assert [state.status for state in found.layers] == ["unseen"] * 6 + ["seen", "unseen"]


def test_a_log_joins_its_recording_by_time(tmp_path: Path) -> None:
    events = [recordings.op("aten::mm", T0 + 1200, 50), recordings.call("cudaLaunchKernel", T0 + 1210, 5, 1),
              recordings.kernel("k", T0 + 1220, 5, 1)]  # fmt: skip
    trace = recordings.trace_file(tmp_path / "t.json", events)
    (tmp_path / "x.log").write_text(LOG)
    found = load([trace, tmp_path / "x.log"])
    recordings.check_tree(found.trace)
    assert found.figures == load(trace).figures
    assert {"compile dynamo", "kernel k"} <= set(found.trace.names)
    assert next(state for state in found.layers if state.layer == 2).status == "seen"
    far = recordings.trace_file(tmp_path / "far.json", [recordings.kernel("k", T0 * 2, 5, 1)])
    apart = load([far, tmp_path / "x.log"])
    assert any("is of another run" in f.sentence for f in apart.findings)
    assert "compile dynamo" not in apart.trace.names


def test_unfinished_and_unmatched_phases_are_told(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(
        mark("B", "dynamo", 0)
        + mark("E", "never_begun", 5)
        + mark("B", "inductor_compile", 10)
        + "V1206 15:20:13.9 cut"
    )
    found = load(tmp_path / "x.log")
    assert found.lost["events"] == 1
    assert any(f.sentence.startswith("Compile phases without an end: 2") for f in found.findings)
    recordings.check_tree(found.trace)


def test_a_compile_that_failed_is_told(tmp_path: Path) -> None:
    good, bad = mark("E", "dynamo", 900), mark("E", "dynamo", 900, fail_type="BackendCompilerFailed")
    (tmp_path / "one.log").write_text(mark("B", "dynamo", 0) + bad)
    found = load(tmp_path / "one.log")
    (told,) = (f for f in found.findings if "failed" in f.sentence)
    assert told.status == "warn" and told.sentence.startswith("1 of 1 compile failed: BackendCompilerFailed.")
    assert not any("keep the compile cache" in f.fix for f in found.findings), "there is nothing to keep"
    (span,) = (span for span in found.trace.spans if span.name == "compile dynamo")
    assert span.attributes["tokentrace.jit.failure"] == "BackendCompilerFailed"
    late = mark("E", "dynamo", 1900, fail_type="BackendCompilerFailed")
    (tmp_path / "two.log").write_text(mark("B", "dynamo", 0) + good + mark("B", "dynamo", 1000) + late)
    sentences = [f.sentence for f in load(tmp_path / "two.log").findings]
    assert any(text.startswith("1 of 2 compiles failed") for text in sentences)
    (tmp_path / "none.log").write_text(mark("B", "dynamo", 0) + good)
    assert not any("failed" in f.sentence for f in load(tmp_path / "none.log").findings)


def test_a_published_log_of_a_failed_compile_is_read_right() -> None:
    told = " ".join(f.sentence for f in load(recordings.large("tlparse/torch_trace_chromium_events.log")).findings)
    assert "1 of 1 compile failed: BackendCompilerFailed" in told


def test_what_came_from_the_cache_was_not_compiled() -> None:
    found = load(recordings.large("tritonparse/triton_compile_raw.ndjson.gz"))
    assert any(
        f.evidence.startswith("compiles: 0, from the cache: 2; slowest: add_kernel 3.16 s") for f in found.findings
    )


def test_published_logs() -> None:
    log = jit_logs.read(recordings.large("tlparse/torch_trace_cache_hit_miss.log.gz"))
    results = [event.result for event in log.events if event.result]
    assert (results.count("hit"), results.count("miss"), results.count("bypass")) == (1, 2, 3)
    # The log's own compilation metrics give these totals for the second frame's three compiles.
    frames = [e.end_ns - e.start_ns for e in log.events if e.name == "entire_frame_compile" and e.compile_id == "1/0"]
    assert [ns // 1000 for ns in frames] == [4298670, 242984, 3438591]
    triton = jit_logs.read(recordings.large("tritonparse/triton_compile_raw.ndjson.gz"))
    assert [(e.name, e.result, e.end_ns - e.start_ns) for e in triton.events] == [
        ("add_kernel", "hit", 3_162_100_000),
        ("triton_poi_fused_add_0", "hit", 1_247_000),
    ]
    assert triton.events[0].resolution_ns == 10**9
    for name in ("tlparse/torch_trace_chromium_events.log", "tritonparse/triton_compile_raw.ndjson.gz"):
        found = load(recordings.large(name))
        recordings.check_tree(found.trace)
        assert "/home/" not in repr(found.trace.values) and "scratch" not in repr(found.trace.values)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80)
@given(
    marks=st.lists(
        st.tuples(st.sampled_from("BEBEi"), st.sampled_from(["a", "b", "fx_graph_cache_hit"]), st.integers(0, 50)),
        max_size=20,
    ),
    junk=st.binary(max_size=40),
)
def test_any_order_of_marks_gives_one_tree(tmp_path: Path, marks: list[tuple[str, str, int]], junk: bytes) -> None:
    text = mark("B", "dynamo", 0) + "".join(mark(ph, name, at) for ph, name, at in marks)
    (tmp_path / "x.log").write_bytes(text.encode() + junk + b"\n" + mark("E", "dynamo", 60).encode())
    recordings.check_tree(load(tmp_path / "x.log").trace)


def test_a_log_without_compiles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text('V1206 15:20:13.900000 154 torch/x.py:22] {"str": ["a", 0]}\n')
    with pytest.raises(UsageError, match="no compile event"):
        load(tmp_path / "x.log")


def test_power_sampled_beside_a_recording_becomes_a_span(tmp_path: Path) -> None:
    rows = "".join(f"2023/11/14 22:13:{20 + n}.000, GPU-1, {100 + 50 * (n % 2)}.00 W\n" for n in range(8))
    (tmp_path / "p.csv").write_text("timestamp, uuid, power.draw [W]\n" + rows)
    events = [
        recordings.call("cudaLaunchKernel", T0 + 1_000_000, 5, 1),
        recordings.kernel("k", T0 + 1_000_100, 5_000_000, 1),
    ]
    trace = recordings.trace_file(tmp_path / "t.json", events)
    found = load([trace, tmp_path / "p.csv"])
    recordings.check_tree(found.trace)
    (power,) = [span for span in found.trace.spans if span.layer == 1 and span.name != "unseen"]
    assert power.attributes["tokentrace.join"] == "time"
    assert next(state for state in found.layers if state.layer == 1).status == "seen"
    (used,) = [f for f in found.findings if f.layer == 1 and " J (" in f.sentence]
    assert "read as UTC" in used.evidence
    late = recordings.trace_file(tmp_path / "late.json", [recordings.kernel("k", T0 * 2, 5, 1)])
    assert any("No sample of p.csv lies" in f.sentence for f in load([late, tmp_path / "p.csv"]).findings)


def test_what_beside_a_recording_has_another_clock_is_not_called_another_run(tmp_path: Path) -> None:
    """Times from the start of the machine say nothing about a day."""
    (tmp_path / "x.log").write_text(LOG)
    (tmp_path / "p.csv").write_text("timestamp, index, power.draw [W]\n2023/11/14 22:13:20.000, 0, 100.00 W\n")
    trace = recordings.trace_file(tmp_path / "t.json", [recordings.kernel("k", 5_000, 10, 1)])
    found = load([trace, tmp_path / "x.log", tmp_path / "p.csv"])
    recordings.check_tree(found.trace)
    told = {f.sentence: f.status for f in found.findings}
    for name in ("x.log", "p.csv"):
        sentence = f"{name} cannot be joined to the recording, whose clock has no known origin."
        assert told[sentence] == "unknown"
    assert not any("another run" in sentence or "No sample" in sentence for sentence in told)
    assert found.trace.end_ns[0] - found.trace.start_ns[0] == 10_000


def triton_log(stamp: str) -> str:
    payload = {"metadata": {"name": "add", "hash": "h"}, "times": {"ir_initialization": 2_000_000}}
    return json.dumps({"event_type": "compilation", "timestamp": stamp, "payload": payload}) + "\n"


def test_a_triton_log_tells_local_times(tmp_path: Path) -> None:
    """It writes them with a Z behind them all the same, so a zone is asked for and the reading is told."""
    path = tmp_path / "x.ndjson"
    path.write_text(triton_log("2023-11-14T23:13:20.%fZ"))
    (event,) = jit_logs.read(path, timezone(timedelta(hours=1))).events
    assert event.end_ns == T0 * 1000 and event.resolution_ns == 10**9
    told = jit_logs.findings(jit_logs.read(path))
    assert "were read as UTC" in told[0].evidence
    kernel = recordings.kernel("k", T0 - 1_000_000, 1_000_000, 1)
    trace = recordings.trace_file(tmp_path / "t.json", [kernel])
    found = load([trace, path], zone=timezone(timedelta(hours=1)))
    (span,) = [span for span in found.trace.spans if span.name == "compile add"]
    assert span.attributes["tokentrace.join"] == "time" and span.end_ns == T0 * 1000
    alone = [span for span in load(path).trace.spans if span.name == "compile add"]
    assert "tokentrace.join" not in alone[0].attributes, "there is nothing to join it to"


def test_a_log_of_some_minutes_before_is_called_of_the_same_run_by_inference(tmp_path: Path) -> None:
    trace = recordings.trace_file(tmp_path / "t.json", [recordings.kernel("k", T0 + 600_000_000, 10, 1)])
    (tmp_path / "x.log").write_text(LOG)
    told = [f.evidence for f in load([trace, tmp_path / "x.log"]).findings if "of compiling" in f.sentence]
    assert len(told) == 1 and "apart from the recording, taken to be of the same run" in told[0]


def test_a_dump_that_names_no_card_says_so(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("timestamp, power.draw [W]\n2023/11/14 22:13:20.000, 100.00 W\n")
    dump = power_dumps.read(tmp_path / "p.csv")
    assert dump.devices == ["0"] and any("no column names the card" in note for note in dump.notes)


def test_a_folder_holds_recording_log_and_power_together(tmp_path: Path) -> None:
    shutil.copy(recordings.SMALL / "a100_triton_one_kernel.json.gz", tmp_path)
    (tmp_path / "x.log").write_text(LOG)
    (tmp_path / "p.csv").write_text("timestamp, uuid, power.draw [W]\n2023/11/14 22:13:20.000, GPU-1, 100.00 W\n")
    found = load(tmp_path)
    recordings.check_tree(found.trace)
    assert found.figures["kernels"] == 1
    # Log and dump are of another day, and that is told of each.
    told = "\n".join(finding.sentence for finding in found.findings)
    assert "x.log is of another run" in told and "No sample of p.csv lies in the recording's time" in told
