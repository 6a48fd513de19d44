"""Jaeger's critical path of a trace runs through the work and can be computed, of a file and of what was sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.jaeger_page import critical_path, of_file, of_otlp, parents, tags
from support.otlp_receiver import OtlpReceiver
from support.records import request_pass, three_passes
from support.traces import T0, run_trace, traces

from tokentrace.emit import _critical_path, jaeger
from tokentrace.emit._shown import shown
from tokentrace.emit.otlp_encode import encode
from tokentrace.emit.otlp_send import OtlpTarget, send
from tokentrace.model import KIND_CLIENT, KIND_CONSUMER, IdSource, Trace
from tokentrace.stitch import stitch

FORMS = ["file", "otlp"]
#: Making a failing trace smaller takes minutes.
PHASES = [phase for phase in Phase if phase != Phase.shrink]


def data(trace: Trace, form: str) -> dict[str, Any]:
    return of_file(b"".join(jaeger.parts(trace, {}))) if form == "file" else of_otlp(encode(trace, {}))


def on_path(found: dict[str, Any]) -> dict[str, int]:
    """Time on the path by name; the path has no hole."""
    path, _ = critical_path(found)
    root = next(s for s in found["spans"] if not parents(found)[s["spanID"]])
    assert sum(spent for _, spent in path) == root["duration"]
    by_name: dict[str, int] = {}
    for span, spent in path:
        by_name[span["operationName"]] = by_name.get(span["operationName"], 0) + spent
    return by_name


@pytest.mark.parametrize("form", FORMS)
def test_the_path_of_a_run_goes_through_the_warm_requests_work(form: str) -> None:
    found = data(three_passes(power=True), form)
    passed = on_path(found)
    assert {"pass warm", "POST /v1/chat/completions", "request", "step", "forward"} <= set(passed)
    assert not {"power nvml", "wait", "stream", "pass cold", "pass deep"} & set(passed)
    forward = [
        s["duration"]
        for s in found["spans"]
        if s["operationName"] == "forward" and tags(s["tags"])["tokentrace.pass"] == "warm"
    ]
    assert abs(passed["forward"] - sum(forward)) <= len(forward)  # a microsecond's rounding each


@pytest.mark.parametrize("form", FORMS)
def test_without_a_look_into_the_server_the_path_is_the_clients_waiting(form: str) -> None:
    ids = IdSource(3)
    one = request_pass("once", ids=ids, deep=False)
    one.records = [record for record in one.records if record.process == "100"]
    assert "stream" in on_path(data(stitch([one], ids=ids), form))


@pytest.mark.parametrize("form", FORMS)
def test_what_accompanies_a_request_lies_beside_it_and_says_where_it_was_recorded(form: str) -> None:
    trace = three_passes(power=True)
    found = data(trace, form)
    spans, above = {span["spanID"]: span for span in found["spans"]}, parents(found)
    beside = [s for s in found["spans"] if s["operationName"] in ("power nvml", "wait", "stream")]
    assert len(beside) == 9
    for span in beside:
        told = tags(span["tags"])
        holder = spans[above[span["spanID"]]]
        assert holder["operationName"] == f"pass {told['tokentrace.pass']}"
        assert spans[told["tokentrace.accompanies"]]["operationName"].startswith("chat ")
        assert told["span.kind"] == "consumer"
    of = {s["operationName"]: tags(s["tags"])["span.kind"] for s in found["spans"]}
    assert of["chat smollm2"] == "client"
    assert {of["tokentrace run"], of["pass warm"]} == {"producer"}
    assert {of["pass cold"], of["pass deep"]} == {"consumer"}
    # The trace itself, and so the saved run, stays as it was recorded.
    for row in range(len(trace)):
        if trace.names[trace.name[row]] in ("power nvml", "wait", "stream"):
            assert trace.layer[trace.parent[row]] == 8
            assert "tokentrace.accompanies" not in trace.attributes(row)
    assert 4 not in trace.kinds.values()


def test_a_mark_of_a_sensor_that_is_not_there_stays_where_it_is() -> None:
    trace = Trace(ids=IdSource(2))
    trace.add("run", 0, T0, T0 + 10**6, -1)
    trace.add("chat", 8, T0, T0 + 10**6, 0, kind=KIND_CLIENT)
    trace.add("unseen", 1, T0, T0, 1)
    assert shown(trace) is trace


def long_trace(shape: str) -> Trace:
    """Ten thousand spans without a pass that speaks for them."""
    trace = Trace(ids=IdSource(2))
    trace.add("run", 0, T0, T0 + 10**10, -1)
    if shape == "import":  # one kernel behind the other
        for number in range(9_999):
            trace.add("kernel", 3, T0 + number * 10**6, T0 + (number + 1) * 10**6, 0)
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
        row = trace.add("chat", 8, at, at + 800_000, row, kind=KIND_CLIENT)
        trace.add("wait", 8, at, at + 100_000, row)
        trace.add("stream", 8, at + 100_000, at + 800_000, row)
    return trace


LEVELS = {"once": 2, "import": 0, "calls": 0}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", LEVELS)
def test_a_browsers_stack_takes_the_path_of_ten_thousand_spans(shape: str, form: str) -> None:
    trace = long_trace(shape)
    found = data(trace, form)
    _, calls = critical_path(found)
    assert calls <= _critical_path.MOST_CALLS  # a headless Chromium gave up after 5,900
    on_path(found)
    assert len(found["spans"]) == len(trace)
    level, count = LEVELS[shape], {"once": 9_000, "import": 9_999, "calls": 2_500}[shape]
    root = tags(found["spans"][0]["tags"])
    assert (root["tokentrace.critical_path.level"], root["tokentrace.critical_path.beside"]) == (level, count)
    marked = [s for s in found["spans"] if "tokentrace.beside_critical_path" in tags(s["tags"])]
    assert len(marked) == count
    assert {tags(span["tags"])["span.kind"] for span in marked} == {"consumer"}
    if shape == "calls":  # the calls themselves are not touched
        assert {tags(s["tags"])["span.kind"] for s in found["spans"] if s["operationName"] == "chat"} == {"client"}
    if form == "file":
        assert f"down to level {level}" in found["warnings"][0]


@pytest.mark.parametrize("shape", LEVELS)
def test_one_level_more_would_be_too_much_and_of_what_fits_nothing_is_left_out(shape: str) -> None:
    trace = long_trace(shape)
    one_more = shown(trace, 10**6)
    assert one_more is trace
    deeper = max(_critical_path.Walk(trace, way).calls(LEVELS[shape] + 1) for way in _critical_path.WAYS)
    assert deeper > _critical_path.MOST_CALLS
    assert data(three_passes(power=True), "file")["warnings"] is None


@pytest.mark.parametrize("form", FORMS)
def test_a_long_reply_keeps_its_whole_path(form: str) -> None:
    found = data(three_passes(power=True, steps=200), form)
    assert critical_path(found)[1] <= _critical_path.MOST_CALLS
    assert "tokentrace.critical_path.level" not in tags(found["spans"][0]["tags"])


def test_a_kind_that_gives_way_is_told() -> None:
    trace = Trace(ids=IdSource(2))
    trace.add("run", 0, T0, T0 + 10**9, -1)
    for number in range(10):
        at = T0 + number * 10**6
        trace.add("chat", 8, at, at + 900_000, 0, kind=KIND_CLIENT)
    made = shown(trace, 5)
    assert made.kinds == dict.fromkeys(range(1, 11), KIND_CONSUMER) | {0: 4}
    assert {made.attributes(row)["tokentrace.span.kind"] for row in range(1, 11)} == {"client"}
    assert trace.kinds == dict.fromkeys(range(1, 11), KIND_CLIENT)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("shape", ["run", *LEVELS])
def test_what_a_receiver_got_has_a_path_that_fits(shape: str, protocol: str) -> None:
    trace = three_passes(power=True, steps=100) if shape == "run" else long_trace(shape)
    with OtlpReceiver() as receiver:
        url = receiver.grpc_url if protocol == "grpc" else f"{receiver.http_url}/v1/traces"
        assert send(trace, OtlpTarget(url, protocol, timeout_s=60.0), environ={}).ok
        found = of_otlp(receiver.bodies)
    assert len(found["spans"]) == len(trace)
    assert critical_path(found)[1] <= _critical_path.MOST_CALLS
    on_path(found)


@given(traces(max_spans=12), st.integers(1, 12))
@settings(max_examples=100, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
def test_of_any_trace_the_walk_is_as_long_as_it_is_said_to_be_and_no_longer_than_allowed(
    trace: Trace, most: int
) -> None:
    made = shown(trace, most)
    assert shown(made) is made
    order = {f"{span_id:016x}": row for row, span_id in enumerate(made.span_id)}
    for form in FORMS:
        found = data(made, form)
        if len(order) == len(trace):
            found["spans"].sort(key=lambda span: order[span["spanID"]])
            _, calls = critical_path(found)
            assert calls == _critical_path.Walk(made, form).calls(len(made))
            assert calls <= most


def test_levels_never_shorten_the_walk() -> None:
    for trace in (run_trace(3000), three_passes(power=True, steps=30)):
        for way in _critical_path.WAYS:
            walk = _critical_path.Walk(trace, way)
            lengths = [walk.calls(level) for level in range(max(walk.depth) + 1)]
            assert lengths == sorted(lengths)
