"""A Jaeger file keeps the invariants its UI relies on: a whole tree, children inside parents, red only for errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from support.jaeger_page import of_file, parents, tags
from support.records import three_passes
from support.traces import T0, run_trace, traces

from tokentrace.emit import jaeger
from tokentrace.fold import fold
from tokentrace.model import IdSource, Process, Trace


def data(trace: Trace, environ: dict[str, str] | None = None) -> dict[str, Any]:
    content = b"".join(jaeger.parts(trace, environ or {}))
    json.loads(content, parse_constant=pytest.fail)
    return of_file(content)


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


def test_a_folded_trace_says_that_it_is() -> None:
    trace = three_passes(modules=20, operators=20)
    assert data(trace)["warnings"] is None
    folded = fold(trace, 1_000)
    (warning,) = data(folded)["warnings"]
    assert warning.startswith(f"{len(trace) - len(folded)} of {len(trace)} spans were folded")


def test_services_sort_by_layer_and_every_layer_is_one() -> None:
    found = data(three_passes(power=True))
    of_layer: dict[int, set[str]] = {}
    for span in found["spans"]:
        layer = tags(span["tags"]).get("tokentrace.layer", 0)
        of_layer.setdefault(layer, set()).add(found["processes"][span["processID"]]["serviceName"])
    assert all(len(names) == 1 for names in of_layer.values())
    names = [of_layer[layer].pop() for layer in sorted(of_layer) if layer]
    assert names == sorted(names)
    assert all(span["warnings"] is None for span in found["spans"])
