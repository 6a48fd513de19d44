"""A Jaeger file keeps the invariants its UI relies on: a whole tree, children inside parents, red only for errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from support.records import T0 as RUN_T0
from support.records import request_pass
from support.traces import T0, run_trace, traces

from tokentrace.emit import _critical_path, jaeger
from tokentrace.model import IdSource, Process, Record, Trace
from tokentrace.stitch import stitch


def data(trace: Trace, environ: dict[str, str] | None = None) -> dict[str, Any]:
    parsed = json.loads(b"".join(jaeger.parts(trace, environ or {})), parse_constant=pytest.fail)
    return parsed["data"][0]


def tags(items: list[dict[str, Any]]) -> dict[str, Any]:
    found = {item["key"]: item["value"] for item in items}
    assert len(found) == len(items), "a tag came twice"
    return found


def parents(found: dict[str, Any]) -> dict[str, str]:
    return {
        span["spanID"]: next((r["spanID"] for r in span["references"] if r["refType"] == "CHILD_OF"), "")
        for span in found["spans"]
    }


@given(traces())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_of_any_trace(trace: Trace) -> None:
    found = data(trace)
    assert len(found["spans"]) == len(trace)
    above = parents(found)
    assert list(above.values()).count("") == 1
    assert set(above.values()) - {""} <= set(above)
    for row, span in enumerate(found["spans"]):
        assert span["traceID"] == found["traceID"] == trace.trace_id_hex
        assert span["startTime"] == trace.start_ns[row] // 1000
        assert span["duration"] >= 0
        assert span["startTime"] + span["duration"] == trace.end_ns[row] // 1000
        seen = tags(span["tags"])
        status, _ = trace.statuses.get(row, (0, ""))
        assert seen.get("error") is (True if status == 2 else None)
        assert seen["internal.span.format"] == "otlp"
        for item in span["tags"]:
            kinds = {"string": str, "bool": bool, "int64": int, "float64": float}
            assert type(item["value"]) is kinds[item["type"]]
            assert item["type"] != "int64" or abs(item["value"]) < 2**53
        assert span["processID"] in found["processes"]
    for process in found["processes"].values():
        assert process["serviceName"]
        assert {"host.id", "host.name"} & set(tags(process["tags"]))


def test_children_lie_inside_their_parents_in_microseconds_too() -> None:
    trace = Trace(ids=IdSource(5))
    trace.processes["1"] = Process("1", {"host.id": "h"})
    trace.add("run", 0, T0, T0 + 9_999, -1, process="1")
    for offset in range(0, 9_000, 37):  # every remainder of the division by 1000
        row = trace.add("step", 6, T0 + offset, T0 + offset + 990, 0, process="1")
        trace.add("forward", 5, T0 + offset + 1, T0 + offset + 989, row, process="1")
        trace.add("kernel", 3, T0 + offset + 400, T0 + offset + 700, row, process="1")
    found = data(trace)
    spans = {span["spanID"]: span for span in found["spans"]}
    for span_id, parent_id in parents(found).items():
        if parent_id:
            span, parent = spans[span_id], spans[parent_id]
            assert parent["startTime"] <= span["startTime"]
            assert span["startTime"] + span["duration"] <= parent["startTime"] + parent["duration"]
            assert span["warnings"] is None


def test_a_real_run_has_no_warning_and_no_second_root() -> None:
    trace = run_trace(500)
    found = data(trace)
    assert all(span["warnings"] is None for span in found["spans"])
    services = {found["processes"][span["processID"]]["serviceName"] for span in found["spans"]}
    assert {"tokentrace", "L8 client request", "L3 kernel launch", "L1 chip power"} <= services
    assert {tags(p["tags"])["host.id"] for p in found["processes"].values()} == {"host-a"}


def test_nothing_is_made_longer_and_the_true_length_stays() -> None:
    trace = Trace(ids=IdSource(1))
    trace.add("run", 0, T0, T0 + 5000, -1)
    trace.add("kernel a", 3, T0 + 50, T0 + 650, 0)
    trace.add("cache x", 2, T0 + 50, T0 + 50, 0)
    spans = data(trace)["spans"]
    assert [tags(span["tags"])["tokentrace.duration_ns"] for span in spans] == [5000, 600, 0]
    assert sum(span["duration"] for span in spans[1:]) <= 1


def test_what_lies_outside_its_parent_or_was_cut_is_warned_of() -> None:
    trace = Trace(ids=IdSource(1))
    trace.add("run", 0, T0, T0 + 5000, -1)
    trace.add("early", 8, T0 - 7, T0 + 10, 0)
    trace.add("late", 8, T0, T0 + 5003, 0)
    trace.add("cut", 8, T0, T0 + 10, 0, {"tokentrace.clamped_ns": 12})
    assert [span["warnings"] for span in data(trace)["spans"]] == [
        None,
        ["starts 7 ns before its parent"],
        ["ends 3 ns after its parent"],
        ["was cut by 12 ns to fit into its parent"],
    ]


@pytest.mark.parametrize("value", ["false", False, 0, "", "boom", 1])
def test_an_attribute_called_error_does_not_turn_a_span_red(value: Any) -> None:
    trace = Trace(ids=IdSource(1))
    trace.add("run", 0, T0, T0 + 5000, -1, {"error": value, "error.type": "timeout"})
    found = tags(data(trace)["spans"][0]["tags"])
    assert "error" not in found
    assert found["attribute.error"] == value
    assert found["error.type"] == "timeout"


def test_links_status_events_and_kinds_are_there() -> None:
    trace = run_trace(60)
    spans = data(trace)["spans"]
    chat = spans[1]
    assert tags(chat["tags"])["span.kind"] == "client"
    assert tags(chat["tags"])["otel.status_code"] == "OK"
    assert [tags(log["fields"])["form"] for log in chat["logs"]] == ["H", "é", "!"]
    assert tags(chat["logs"][0]["fields"])["event"] == "tokentrace.token"
    assert chat["logs"][0]["timestamp"] == (T0 + 500) // 1000
    failed = tags(spans[-1]["tags"])
    assert (failed["error"], failed["otel.status_description"]) == (True, "out of memory")
    kernel = next(span for span in spans if span["operationName"] == "kernel sgemm")
    assert [r["refType"] for r in kernel["references"]] == ["CHILD_OF", "FOLLOWS_FROM"]
    launch = kernel["references"][1]["spanID"]
    assert next(s for s in spans if s["spanID"] == launch)["operationName"] == "launch cudaLaunchKernel"


def test_lost_spans_are_told_in_the_trace_and_the_file_is_whole(tmp_path: Path) -> None:
    trace = run_trace(60)
    trace.meta.update(lost=7, lost_reason="line 3: not JSON")
    jaeger.write(trace, tmp_path / "t.jaeger.json", {"OTEL_SERVICE_NAME": "mine"})
    found = json.loads((tmp_path / "t.jaeger.json").read_bytes())["data"][0]
    assert found["warnings"] == ["7 spans were lost: line 3: not JSON"]
    assert {p["serviceName"] for p in found["processes"].values()} == {"mine"}


def three_passes(steps: int = 3) -> Trace:
    """A default run with a sensor that is on for the whole request."""
    ids = IdSource(3)
    passes = [
        request_pass("cold", ids=ids, deep=False, compile_ms=30, steps=steps),
        request_pass("warm", ids=ids, deep=False, at=RUN_T0 + 10**9, steps=steps),
        request_pass("deep", ids=ids, at=RUN_T0 + 2 * 10**9, prefill_ms=60, decode_ms=15, steps=steps),
    ]
    for one in passes:
        asked = one.exchange
        assert asked is not None
        one.records.append(Record("power nvml", 1, asked.start_ns, asked.end_ns, parent_key="chat", process="100"))
    return stitch(passes, ids=ids)


def critical_path(found: dict[str, Any]) -> tuple[list[tuple[dict[str, Any], int]], int]:
    """(span, its time on the path in µs) from the end backwards, and how deep Jaeger's recursion gets.

    As jaeger-ui does it: from a span into the child that ended last, from a child's start to the sibling that ended
    before it. Producers and consumers are left out with all that is below them.
    """
    spans, above = {span["spanID"]: span for span in found["spans"]}, parents(found)
    children: dict[str, list[str]] = {}
    for span_id, parent in above.items():
        if tags(spans[span_id]["tags"]).get("span.kind") not in ("consumer", "producer"):
            children.setdefault(parent, []).append(span_id)

    def end(span_id: str) -> int:
        return int(spans[span_id]["startTime"] + spans[span_id]["duration"])

    at, until, path, calls = next(s for s, parent in above.items() if not parent), None, [], 0
    while at:
        calls += 1
        fitting = [c for c in children.get(at, ()) if until is None or end(c) < until]
        last = max(fitting, key=end, default=None)
        stop = end(at) if until is None else until
        path.append((spans[at], stop - (end(last) if last else spans[at]["startTime"])))
        if last:
            at, until = last, None
        else:
            at, until = above[at], spans[at]["startTime"]
    return path, calls


def test_the_critical_path_covers_the_trace_and_runs_through_the_warm_requests_work() -> None:
    trace = three_passes()
    found = data(trace)
    path, _ = critical_path(found)
    assert sum(spent for _, spent in path) == found["spans"][0]["duration"]
    on_it: dict[str, int] = {}
    for span, spent in path:
        on_it[span["operationName"]] = on_it.get(span["operationName"], 0) + spent
    assert {"pass warm", "POST /v1/chat/completions", "request", "step", "forward"} <= set(on_it)
    assert not {"power nvml", "wait", "stream", "pass cold", "pass deep"} & set(on_it)
    forward = sum(s["duration"] for s in found["spans"] if s["operationName"] == "forward"
                  and tags(s["tags"])["tokentrace.pass"] == "warm")  # fmt: skip
    assert on_it["forward"] == forward


def test_without_a_look_into_the_server_the_path_is_the_clients_waiting() -> None:
    ids = IdSource(3)
    one = request_pass("once", ids=ids, deep=False)
    one.records = [record for record in one.records if record.process == "100"]
    names = {span["operationName"] for span, _ in critical_path(data(stitch([one], ids=ids)))[0]}
    assert "stream" in names  # and what ended in the very microsecond in which it began is passed over


def test_a_browsers_stack_takes_the_critical_path_of_a_long_reply() -> None:
    # A headless Chromium gave up after 5,900 calls.
    _, calls = critical_path(data(three_passes(steps=200)))
    assert calls < 4_000


@pytest.mark.parametrize("shape", ["once", "import", "calls"])
def test_a_browsers_stack_takes_the_critical_path_of_ten_thousand_spans(shape: str) -> None:
    trace = Trace(ids=IdSource(2))
    trace.add("run", 0, T0, T0 + 10**10, -1)
    if shape == "import":  # one kernel behind the other
        for number in range(9_999):
            trace.add("kernel", 3, T0 + number * 10**6, T0 + number * 10**6 + 900_000, 0)
    for step in range(100 if shape == "once" else 0):  # a step, its modules, their operators
        at = T0 + step * 10**8
        row = trace.add("step", 6, at, at + 9 * 10**7, 0)
        for module in range(9):
            start = at + module * 10**7
            inner = trace.add("module", 5, start, start + 9 * 10**6, row)
            for operator in range(10):
                trace.add("aten::mm", 4, start + operator * 9 * 10**5, start + operator * 9 * 10**5 + 800_000, inner)
    for number in range(2_500 if shape == "calls" else 0):  # a program's calls
        at = T0 + number * 10**6
        row = trace.add("pass call", 0, at, at + 900_000, 0)
        row = trace.add("chat", 8, at, at + 800_000, row)
        trace.add("wait", 8, at, at + 100_000, row)
        trace.add("stream", 8, at + 100_000, at + 800_000, row)
    found = data(trace)
    path, calls = critical_path(found)
    assert calls <= _critical_path.MOST_CALLS
    assert sum(spent for _, spent in path) == found["spans"][0]["duration"]
    level = {"once": 2, "import": 0, "calls": 0}[shape]
    root = tags(found["spans"][0]["tags"])
    assert root["tokentrace.critical_path.level"] == level
    assert f"down to level {level}" in found["warnings"][0]
    marked = [s for s in found["spans"] if "tokentrace.beside_critical_path" in tags(s["tags"])]
    assert len(marked) == {"once": 9_000, "import": 9_999, "calls": 2_500}[shape]
    assert {tags(span["tags"])["span.kind"] for span in marked} == {"consumer"}
    # One level more would be too much, and of a trace that fits nothing is left out.
    assert _critical_path.beyond(trace, 10**6) == (max(level + 1, {"once": 3, "import": 1, "calls": 3}[shape]), [])
    assert data(three_passes())["warnings"] is None


@given(traces())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_path_is_as_long_as_it_is_said_to_be(trace: Trace) -> None:
    found = data(trace)
    _, calls = critical_path(found)
    depth = _critical_path._depths(trace)
    assert calls == _critical_path.calls(trace, depth, max(depth))
    for level in range(max(depth)):
        assert _critical_path.calls(trace, depth, level) <= _critical_path.calls(trace, depth, level + 1)


def test_services_sort_by_layer_and_every_layer_is_one() -> None:
    found = data(three_passes())
    of_layer: dict[int, set[str]] = {}
    for span in found["spans"]:
        layer = tags(span["tags"]).get("tokentrace.layer", 0)
        of_layer.setdefault(layer, set()).add(found["processes"][span["processID"]]["serviceName"])
    assert all(len(names) == 1 for names in of_layer.values())
    names = [of_layer[layer].pop() for layer in sorted(of_layer) if layer]
    assert names == sorted(names)
    assert all(span["warnings"] is None for span in found["spans"])
