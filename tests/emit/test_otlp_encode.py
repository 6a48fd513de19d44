"""What leaves as OTLP is the trace: field by field against the protobuf classes, byte for byte re-serialised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.otlp_receiver import value_of
from support.traces import T0, run_trace, traces

from tokentrace.emit.otlp_encode import Batch, batches, encode
from tokentrace.model import Event, IdSource, Process, Trace


def text(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode()


def any_value(value: Any) -> AnyValue:
    """The value as OTLP has it, by the protobuf classes."""
    if isinstance(value, str):
        return AnyValue(string_value=text(value))
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value) if -(2**63) <= value < 2**63 else AnyValue(string_value=str(value))
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    found = AnyValue()
    if isinstance(value, list | tuple):
        found.array_value.SetInParent()
        found.array_value.values.extend(any_value(item) for item in value)
    if isinstance(value, dict):
        found.kvlist_value.SetInParent()
        found.kvlist_value.values.extend(key_values(value))
    return found


def key_values(items: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=text(key), value=any_value(value)) for key, value in items.items()]


def message(trace: Trace, row: int) -> Span:
    """Row of the trace as a Span message; columns without a field of their own go among the attributes."""
    span = trace.span(row)
    attributes = dict(span.attributes)
    columns: dict[str, Any] = {
        "tokentrace.layer": span.layer,
        "tokentrace.direction": span.direction,
        "thread.id": span.thread,
        "tokentrace.envelope": span.envelope,
    }
    for key, value in columns.items():
        if key not in span.attributes:
            if value:
                attributes[key] = value
        elif not (type(span.attributes[key]) is type(value) and span.attributes[key] == value):
            attributes[f"tokentrace.column.{key}"] = value
    found = Span(
        trace_id=trace.trace_id.to_bytes(16, "big"),
        span_id=span.span_id.to_bytes(8, "big"),
        parent_span_id=trace.span_id[span.parent].to_bytes(8, "big") if span.parent >= 0 else b"",
        flags=0x101,
        name=text(span.name),
        kind=span.kind,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=key_values(attributes),
    )
    for event in span.events:
        found.events.add(time_unix_nano=event.time_ns, name=text(event.name), attributes=key_values(event.attributes))
    for link in span.links:
        found.links.add(
            trace_id=found.trace_id,
            span_id=link.span_id.to_bytes(8, "big"),
            attributes=key_values(link.attributes),
            flags=0x101,
        )
    if span.status:
        found.status.code = span.status
        found.status.message = text(span.status_message)
    return found


def check(trace: Trace, found: list[Batch]) -> None:
    """Every span arrives once, as the protobuf classes would write it, under the right resource."""
    rows = {span_id: row for row, span_id in enumerate(trace.span_id)}
    seen = set()
    for batch in found:
        body = batch.body()
        request = ExportTraceServiceRequest.FromString(body)
        assert request.SerializeToString() == body
        for resource in request.resource_spans:
            facts = {a.key: value_of(a.value) for a in resource.resource.attributes}
            assert facts["service.namespace"] == "tokentrace"
            assert {"host.id", "service.instance.id"} <= facts.keys()
            for span in resource.scope_spans[0].spans:
                row = rows[int.from_bytes(span.span_id, "big")]
                seen.add(row)
                assert span.SerializeToString() == message(trace, row).SerializeToString()
                title = facts["service.name"]
                assert title.startswith(f"L{trace.layer[row]} ") or (
                    trace.layer[row] in (0, 9) and title == "tokentrace"
                )
    assert seen == set(range(len(trace)))
    assert sum(batch.spans for batch in found) == len(trace)


@given(traces())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_trace_is_what_the_protobuf_classes_would_write(trace: Trace) -> None:
    trace_without_names_of_its_own(trace)
    check(trace, list(batches(trace, environ={})))


@given(traces(max_spans=3, repeats=60))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_long_columns_are_what_the_protobuf_classes_would_write(trace: Trace) -> None:
    trace_without_names_of_its_own(trace)
    check(trace, list(batches(trace, environ={}, max_spans=50)))


def trace_without_names_of_its_own(trace: Trace) -> None:
    for process in trace.processes.values():
        process.attributes.pop("service.namespace", None)
        process.attributes.setdefault("host.id", "h")


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=60, max_size=80))
@settings(max_examples=40, deadline=None)
def test_every_width_of_integer_column(numbers: list[int]) -> None:
    trace = Trace(ids=IdSource(3))
    for at, number in enumerate([*numbers, *(2**n for n in range(63)), *(2**n - 1 for n in range(64)), -1]):
        trace.add("n", 4, T0, T0, 0 if at else -1, {"n": number, "f": number / 3})
    check(trace, list(batches(trace, environ={})))


def test_a_run_of_several_windows_keeps_every_span() -> None:
    trace = run_trace(9000)
    check(trace, list(batches(trace, environ={})))


def test_batches_stay_below_both_limits() -> None:
    trace = run_trace(900)
    for limit in (5_000, 60_000):
        found = list(batches(trace, max_spans=100, max_bytes=limit, environ={}))
        assert all(batch.spans <= 100 and len(batch.body()) < limit for batch in found)
        check(trace, found)
    assert all(batch.spans <= 4000 and len(batch.body()) < 3 * 2**20 for batch in batches(run_trace(9000), environ={}))


def test_a_batch_in_halves_is_the_same_spans() -> None:
    trace = run_trace(101)
    (whole,) = batches(trace, environ={})
    check(trace, whole.halves())
    assert [half.spans for half in whole.halves()] == [(whole.spans + 1) // 2, whole.spans // 2]


def test_a_span_too_large_for_any_request_is_cut_and_says_so() -> None:
    trace = Trace(ids=IdSource(1))
    trace.add("run", 0, T0, T0 + 9, -1)
    trace.add("chat", 8, T0, T0 + 9, 0, {"prompt": "x" * 5_000_000, "ids": list(range(1_000_000)), "model": "m"})
    events = [Event("e", T0, {"form": "y" * 100}) for _ in range(60_000)]
    trace.add("stream", 8, T0, T0 + 9, 0, {"a": 1}, events=events)
    found = list(batches(trace, environ={}))
    assert sum(batch.cut for batch in found) == 2
    assert all(len(batch.body()) < 3 * 2**20 for batch in found)
    spans = [s for b in found for r in ExportTraceServiceRequest.FromString(b.body()).resource_spans
             for s in r.scope_spans[0].spans]  # fmt: skip
    facts = {a.key: value_of(a.value) for a in spans[1].attributes}
    assert facts["model"] == "m"
    assert facts["prompt"].startswith("xxx")
    assert facts["tokentrace.cut"] == ["prompt", "ids"]
    assert len(spans[2].events) + spans[2].dropped_events_count == 60_000
    assert spans[2].dropped_events_count > 0


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"service.name": "L8 client request", "service.namespace": "tokentrace", "host.id": "host-a"}),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=from%20list,deployment.environment=a%2Cb,host.id=liar,broken"},
            {"service.name": "from list", "deployment.environment": "a,b", "host.id": "host-a"},
        ),
        (
            {"OTEL_SERVICE_NAME": "my%20app", "OTEL_RESOURCE_ATTRIBUTES": "service.name=lost,service.namespace=team"},
            {"service.name": "my app", "service.namespace": "team"},
        ),
    ],
)
def test_the_users_resource_settings_are_honoured(environ: dict[str, str], expected: dict[str, str]) -> None:
    request = ExportTraceServiceRequest.FromString(encode(run_trace(), environ)[0])
    resources = [{a.key: value_of(a.value) for a in r.resource.attributes} for r in request.resource_spans]
    fits = [facts for facts in resources if expected.items() <= facts.items()]
    assert {facts["process.pid"] for facts in fits} == {100, 200}
    assert {facts["process.runtime.name"] for facts in fits} == {"cpython"}


def test_a_process_without_a_host_gets_the_one_of_the_run() -> None:
    trace = Trace(ids=IdSource(1))
    trace.processes["1"] = Process("1", {"host.id": "remote", "host.name": "r"})
    trace.add("run", 0, T0, T0 + 9, -1, process="1")
    trace.add("chat", 8, T0, T0 + 9, 0, process="2")
    request = ExportTraceServiceRequest.FromString(encode(trace, {})[0])
    hosts = [{a.key: value_of(a.value) for a in r.resource.attributes}["host.id"] for r in request.resource_spans]
    assert hosts == ["remote", "remote"]
