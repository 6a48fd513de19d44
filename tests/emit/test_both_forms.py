"""A Jaeger file and what is sent over OTLP are the same trace: one tree, the same times, the same numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from support.jaeger_page import of_file, of_otlp, parents, service, tags
from support.otlp_receiver import OtlpReceiver
from support.records import three_passes
from support.traces import run_trace, traces

from tokentrace.emit import jaeger
from tokentrace.emit.otlp_encode import encode
from tokentrace.emit.otlp_send import OtlpTarget, send
from tokentrace.fold import fold
from tokentrace.layers import load
from tokentrace.model import Trace

#: What only the one or the other form has: Jaeger's JSON keeps the length that its microseconds lose.
OF_THE_FILE = {"tokentrace.duration_ns", "internal.span.format"}


def both(trace: Trace) -> tuple[dict[str, Any], dict[str, Any]]:
    return of_file(b"".join(jaeger.parts(trace, {}))), of_otlp(encode(trace, {}))


def by_id(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {span["spanID"]: span for span in data["spans"]}
    assert len(found) == len(data["spans"]), "an id came twice"
    return found


def check(file: dict[str, Any], sent: dict[str, Any]) -> None:
    """The invariants that both keep, and that they say the same."""
    assert file["traceID"] == sent["traceID"]
    assert parents(file) == parents(sent)
    above = parents(sent)
    assert list(above.values()).count("") == 1
    assert set(above.values()) - {""} <= set(above)
    here, there = by_id(file), by_id(sent)
    for span_id, span in here.items():
        other = there[span_id]
        assert span["operationName"] == other["operationName"]
        assert span["startTime"] == other["startTime"]
        # Each rounds down, one the ends and one the length.
        assert 0 <= span["duration"] - other["duration"] <= 1
        assert service(file, span) == service(sent, other)
        assert span["references"] == other["references"]
        own, others = tags(span["tags"]), tags(other["tags"])
        for key in ("span.kind", "otel.status_code", "error", "tokentrace.critical_path.level"):
            assert own.get(key) == others.get(key)
    hosts = [tags(process["tags"]) for data in (file, sent) for process in data["processes"].values()]
    assert all({"host.id", "host.name"} & set(found) for found in hosts)


@given(traces())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_of_any_trace(trace: Trace) -> None:
    if len(set(trace.span_id)) == len(trace):
        check(*both(trace))


@pytest.mark.parametrize(
    "trace",
    [run_trace(3000), three_passes(power=True, steps=20), fold(three_passes(power=True, steps=60), 300)],
    ids=lambda t: len(t),
)
def test_every_number_and_text_is_the_same(trace: Trace) -> None:
    file, sent = both(trace)
    check(file, sent)
    there = by_id(sent)
    for span in file["spans"]:
        own, others = (
            {key: _read(value) for key, value in tags(one["tags"]).items()} for one in (span, there[span["spanID"]])
        )
        assert {k: v for k, v in own.items() if k not in OF_THE_FILE or k in others} == others
        logs = [
            [(log["timestamp"], {k: _read(v) for k, v in tags(log["fields"]).items()}) for log in one["logs"]]
            for one in (span, there[span["spanID"]])
        ]
        assert logs[0] == logs[1]


def _read(value: Any) -> Any:
    """Lists are texts in Jaeger, and not written alike by everybody."""
    return json.loads(value) if isinstance(value, str) and value[:1] in "[{" and value else value


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_run_reads_well_wherever_it_is_looked_at(protocol: str) -> None:
    """One service a layer, names that sort, children inside their parents, lengths that add up."""
    trace = three_passes(power=True, steps=40)
    with OtlpReceiver() as receiver:
        url = receiver.grpc_url if protocol == "grpc" else f"{receiver.http_url}/v1/traces"
        assert send(trace, OtlpTarget(url, protocol, timeout_s=60.0), environ={}).ok
        sent = of_otlp(receiver.bodies)
    file = of_file(b"".join(jaeger.parts(trace, {})))
    check(file, sent)
    names = {layer.number: layer.service_name for layer in load()}
    for data in (file, sent):
        for span in data["spans"]:
            assert service(data, span) == names.get(tags(span["tags"]).get("tokentrace.layer", 0), "tokentrace")
            assert not span["warnings"]
        services = sorted({service(data, span) for span in data["spans"]} - {"tokentrace"})
        assert services == [names[number] for number in sorted(names) if names[number] in services]
        assert len({tags(process["tags"])["host.id"] for process in data["processes"].values()}) == 1
    inside(file, 0)
    inside(sent, 1)  # a microsecond's rounding
    starts, ends = ([getattr(span, name) for span in trace.spans] for name in ("start_ns", "end_ns"))
    root = sent["spans"][0]
    assert (root["startTime"], root["duration"]) == (min(starts) // 1000, (max(ends) - min(starts)) // 1000)


def inside(data: dict[str, Any], slack_us: int) -> None:
    spans = by_id(data)
    for span_id, parent_id in parents(data).items():
        if parent_id:
            span, parent = spans[span_id], spans[parent_id]
            assert parent["startTime"] <= span["startTime"]
            end, last = (one["startTime"] + one["duration"] for one in (span, parent))
            assert end <= last + slack_us
