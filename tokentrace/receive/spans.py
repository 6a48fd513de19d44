"""Spans out of an OTLP message: those of one trace, within bounds; of all others only their number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokentrace.model import KIND_INTERNAL, STATUS_UNSET, Attributes, Event

#: What is kept of one span at most; an honest one of a request has a fifth of it.
MAX_ATTRIBUTES, MAX_EVENTS, MAX_TEXT, MAX_ITEMS = 128, 128, 4_096, 256
_KINDS = (1, 2, 3, 4, 5)
_STATUSES = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span as its sender made it. Times are ns of the sender's clock; `resource` and `scope` say who it was."""

    trace_id: int
    span_id: int
    parent_id: int
    name: str
    start_ns: int
    end_ns: int
    kind: int = KIND_INTERNAL
    attributes: Attributes = field(default_factory=dict)
    status: int = STATUS_UNSET
    status_message: str = ""
    events: tuple[Event, ...] = ()
    scope: str = ""
    resource: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class Message:
    """What one message held: spans of the wanted trace, and how many others."""

    spans: list[ReceivedSpan] = field(default_factory=list)
    others: int = 0


#: By this attribute the span of a request is known (vllm/tracing/utils.py); its value is in seconds.
FIRST_TOKEN = "gen_ai.latency.time_to_first_token"


def read(body: bytes, wanted: int | None, room: int) -> Message:
    """The message's spans of the trace `wanted` (0: none; None: the span of each request, of whatever trace), at most
    `room` of them; what is beyond counts as others.

    `body` is an ExportTraceServiceRequest in protobuf. Raises ValueError when it is not.
    """
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise ValueError(f"not an OTLP message: {error}") from error
    found = Message()
    key = wanted.to_bytes(16, "big") if wanted else b""

    def keep(span: Any) -> bool:
        if wanted is None:
            return len(span.trace_id) == 16 and any(item.key == FIRST_TOKEN for item in span.attributes)
        return bool(key) and span.trace_id == key

    for group in request.resource_spans:
        resource: Attributes | None = None
        for scoped in group.scope_spans:
            for span in scoped.spans:
                if not keep(span) or len(found.spans) >= room or len(span.span_id) != 8:
                    found.others += 1
                    continue
                if resource is None:
                    resource = attributes_of(group.resource.attributes)
                found.spans.append(_span(span, scoped.scope.name[:MAX_TEXT], resource))
    return found


def _span(span: Any, scope: str, resource: Attributes) -> ReceivedSpan:
    start = int(span.start_time_unix_nano)
    status = int(span.status.code)
    return ReceivedSpan(
        trace_id=int.from_bytes(span.trace_id, "big"),
        span_id=int.from_bytes(span.span_id, "big"),
        parent_id=int.from_bytes(span.parent_span_id, "big") if len(span.parent_span_id) == 8 else 0,
        name=span.name[:MAX_TEXT],
        start_ns=start,
        end_ns=max(start, int(span.end_time_unix_nano)),
        kind=int(span.kind) if span.kind in _KINDS else KIND_INTERNAL,
        attributes=attributes_of(span.attributes),
        status=status if status in _STATUSES else STATUS_UNSET,
        status_message=span.status.message[:MAX_TEXT],
        events=tuple(
            Event(event.name[:MAX_TEXT], int(event.time_unix_nano), attributes_of(event.attributes))
            for event in span.events[:MAX_EVENTS]
        ),
        scope=scope,
        resource=resource,
    )


def attributes_of(items: Iterable[Any]) -> Attributes:
    """Attributes as plain values. Ours (`tokentrace.…`) are left out: nobody else can say those."""
    found: Attributes = {}
    for item in items:
        if len(found) >= MAX_ATTRIBUTES:
            break
        value = _plain(item.value)
        if value is not None and not item.key.startswith("tokentrace."):
            found[item.key[:MAX_TEXT]] = value
    return found


def _plain(value: Any) -> Any:
    """An AnyValue as what a span may hold; None when it is empty or cannot be held."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return value.string_value[:MAX_TEXT]
    if kind in ("bool_value", "int_value"):
        return getattr(value, kind)
    if kind == "double_value":
        return value.double_value if math.isfinite(value.double_value) else None
    if kind == "array_value":
        items = [_plain(item) for item in value.array_value.values[:MAX_ITEMS]]
        alike = len({type(item) for item in items}) <= 1 and not any(isinstance(item, list) for item in items)
        return items if alike and None not in items else [str(item) for item in items]
    return None


def number(attributes: Mapping[str, Any], name: str) -> float | None:
    """The attribute as a number that is not negative, None when it is not there or is none."""
    value = attributes.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None
