"""A Perfetto file draws every span, at its nanosecond, on tracks whose slices nest."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from support.traces import T0, run_trace, traces

from tokentrace.emit import perfetto
from tokentrace.model import Event, IdSource, Trace


def events(trace: Trace) -> list[dict[str, Any]]:
    text = b"".join(perfetto.parts(trace))
    return json.loads(text, parse_float=Decimal, parse_constant=pytest.fail)["traceEvents"]


def ns(value: Any) -> int:
    found = Decimal(value) * 1000
    assert found == int(found)
    return int(found)


def assert_nested(found: list[dict[str, Any]]) -> None:
    """In file order, as a viewer reads it: sorted by start, and each slice inside the one it opens in."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in found:
        if event["ph"] == "X":
            start = ns(event["ts"])
            tracks.setdefault((event["pid"], event["tid"]), []).append((start, start + ns(event["dur"])))
    for slices in tracks.values():
        assert slices == sorted(slices, key=lambda s: (s[0], -s[1]))
        open_slices: list[int] = []
        for start, end in slices:
            while open_slices and open_slices[-1] <= start:
                open_slices.pop()
            assert not open_slices or end <= open_slices[-1]
            open_slices.append(end)


def overlapping(seed: int) -> Trace:
    rng = random.Random(seed)
    trace = Trace(ids=IdSource(seed))
    trace.add("run", 0, T0, T0 + 10_000, -1)
    for _ in range(60):
        start = T0 + rng.randrange(9_000)
        trace.add("stream", 8, start, start + rng.choice((0, 1, 500, 999)), 0, process="1", thread=rng.randrange(2))
    return trace


@pytest.mark.parametrize("seed", range(10))
def test_overlapping_spans_of_one_thread_go_to_tracks_that_nest(seed: int) -> None:
    trace = overlapping(seed)
    found = events(trace)
    assert_nested(found)
    assert sum(event["ph"] == "X" for event in found) == len(trace)


@given(traces())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_trace_is_valid_and_complete(trace: Trace) -> None:
    found = json.loads(b"".join(perfetto.parts(trace)), parse_constant=pytest.fail)["traceEvents"]
    assert sum(event["ph"] == "X" for event in found) == len(trace)


def test_a_run_keeps_every_nanosecond_and_its_layers() -> None:
    trace = run_trace(300)
    text = json.loads(b"".join(perfetto.parts(trace)))
    epoch = int(text["otherData"]["epoch_ns"])
    found = events(trace)
    assert_nested(found)
    seen = {e["args"]["span_id"]: (epoch + ns(e["ts"]), ns(e["dur"]), e["name"]) for e in found if e["ph"] == "X"}
    assert seen == {f"{s.span_id:016x}": (s.start_ns, s.duration_ns, s.name) for s in trace.spans}
    titles = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert [titles[pid] for pid in sorted(titles)] == [
        "run", "L8 client request", "L7 tokenizer", "L6 engine queue", "L5 tensor op", "L4 operator profiler",
        "L3 kernel launch", "L2 JIT cache", "L1 chip power",
    ]  # fmt: skip
    named = {(e["pid"], e["tid"]) for e in found if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in found if e["ph"] == "X"} == named


def test_links_are_arrows_from_launch_to_kernel() -> None:
    trace = run_trace(60)
    found = events(trace)
    slices = {(e["pid"], e["tid"], e["ts"]): e["name"] for e in found if e["ph"] == "X"}
    ends = {"s": {}, "f": {}}
    for event in found:
        if event["ph"] in ends:
            ends[event["ph"]][event["id"]] = slices[event["pid"], event["tid"], event["ts"]]
    assert len(ends["s"]) == sum(map(len, trace.links.values())) > 5
    assert set(ends["s"].values()) == {"launch cudaLaunchKernel"}
    assert set(ends["f"].values()) == {"kernel sgemm"}


def test_power_samples_are_counters_in_order_of_time() -> None:
    trace = Trace(ids=IdSource(1))
    trace.add("run", 0, T0, T0 + 10_000_000, -1)
    late, early = Event("s", T0 + 2_000_000, {"hw.power": 20.5}), Event("s", T0 + 1_000_000, {"hw.power": 10})
    trace.add("power", 1, T0, T0 + 9_000_000, 0, {"hw.id": "gpu0"}, events=[late, early])
    listed = {"tokentrace.power.samples_w": [7.0, 8.0], "tokentrace.power.samples_ms": [0.5, 1.5]}
    trace.add("power", 1, T0 + 1000, T0 + 9_000_000, 0, {"hw.id": "gpu1", **listed})
    counters = [(e["name"], ns(e["ts"]), float(e["args"]["value"])) for e in events(trace) if e["ph"] == "C"]
    assert counters == [
        ("power (W) gpu1", 501_000, 7.0),
        ("hw.power gpu0", 1_000_000, 10.0),
        ("power (W) gpu1", 1_501_000, 8.0),
        ("hw.power gpu0", 2_000_000, 20.5),
    ]


def test_token_events_are_instants_on_their_track() -> None:
    trace = run_trace(60)
    found = events(trace)
    instants = [e for e in found if e["ph"] == "i"]
    assert [e["args"]["form"] for e in instants] == ["H", "é", "!"]
    chat = next(e for e in found if e["name"] == "chat smollm2")
    assert {(e["pid"], e["tid"]) for e in instants} == {(chat["pid"], chat["tid"])}
