"""A server's own spans of one request as records of layer 6: its own account, marked as such.

Every span keeps its name, its attributes and its place below the client's span, and is an envelope: it says how long
the server had the request, not who worked meanwhile. From the durations in vLLM's `llm_request` (vllm/tracing/utils.py)
three phases are made where the engine is not seen itself: `queue wait`, `engine prefill`, `engine decode`. Their
lengths are the server's figures; where they lie follows from its time to the first token, and the span says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokentrace.exchange import Exchange
from tokentrace.layers import load
from tokentrace.model import DOWN, UP, Event, Record
from tokentrace.receive.spans import FIRST_TOKEN, ReceivedSpan, number

LAYER = 6
SOURCE = "tokentrace.source"
#: What sticks out of the request by more than this was timed by another clock; servers of one host tidy up in less.
OUT_NS = 50_000_000
_FIGURES = {
    "queue_wait": "gen_ai.latency.time_in_queue",
    "prefill": "gen_ai.latency.time_in_model_prefill",
    "decode": "gen_ai.latency.time_in_model_decode",
    "ttft": FIRST_TOKEN,
    "e2e": "gen_ai.latency.e2e",
}
_PLACED = "the length is the server's figure; where it lies follows from its time to the first token"


@dataclass(frozen=True, slots=True)
class Account:
    """What the server told of one request. `figures` are ns by name: queue_wait, prefill, decode, ttft, e2e."""

    records: list[Record]
    figures: dict[str, int]
    offset_ns: int  # was added to the server's times; 0: the same clock
    who: str  # the sender, for a sentence


def account(
    spans: Sequence[ReceivedSpan],
    exchange: Exchange,
    parent_id: int,
    process: str,
    *,
    phases: bool,
    above: str = "chat",
    join: str = "time",
) -> Account:
    """The records of the spans of one request, whose client span is `parent_id`. `phases`: make them of the figures.
    Spans that do not name it as their parent hang below the record with the key `above`; `join` says what told so."""
    offset = _offset(spans, exchange)
    ids = {span.span_id for span in spans}
    records = [_record(span, ids, parent_id, process, offset, above, join) for span in spans]
    main = next((span for span in spans if number(span.attributes, FIRST_TOKEN) is not None), None)
    figures = figures_of(main) if main is not None else {}
    if main is not None and phases:
        records += _phases(main, figures, process, offset)
    return Account(records, figures, offset, _who(spans[0]) if spans else "")


def figures_of(span: ReceivedSpan) -> dict[str, int]:
    """The durations that the server's span of a request tells, ns by name; what it does not tell is not there."""
    found = {}
    for name, key in _FIGURES.items():
        seconds = number(span.attributes, key)
        if seconds is not None:
            found[name] = round(seconds * 1e9)
    return found


def _offset(spans: Sequence[ReceivedSpan], exchange: Exchange) -> int:
    """What has to be added to the senders' times: nothing where they lie in the request, as on the same host; else
    what brings them into its middle."""
    low = min((span.start_ns for span in spans), default=exchange.start_ns)
    high = max((span.end_ns for span in spans), default=exchange.end_ns)
    if low >= exchange.start_ns - OUT_NS and high <= exchange.end_ns + OUT_NS:
        return 0
    return (exchange.start_ns + exchange.end_ns - low - high) // 2


def _record(
    span: ReceivedSpan, ids: set[int], parent_id: int, process: str, offset: int, above: str, join: str
) -> Record:
    attributes: dict[str, Any] = {**span.attributes, SOURCE: "otlp"}
    if span.scope:
        attributes["otel.scope.name"] = span.scope
    if offset:
        attributes["tokentrace.clock"] = "foreign"
        attributes["tokentrace.clock.offset_ns"] = offset
    known = span.parent_id in ids or span.parent_id == parent_id
    layer = next((layer.number for layer in load() if layer.owns(span.name)), LAYER)
    return Record(
        span.name or "span",
        layer if layer >= LAYER else LAYER,
        span.start_ns + offset,
        span.end_ns + offset,
        attributes,
        DOWN,
        process,
        span_id=span.span_id,
        parent_id=span.parent_id if known else 0,
        parent_key="" if known else above,
        key=_key(span),
        join="traceparent" if known else join,
        flow=True,
        envelope=True,
        kind=span.kind,
        status=span.status,
        status_message=span.status_message,
        events=[Event(event.name, event.time_ns + offset, event.attributes) for event in span.events],
    )


def _key(span: ReceivedSpan) -> str:
    return f"otlp:{span.span_id:016x}"


def _phases(span: ReceivedSpan, figures: Mapping[str, int], process: str, offset: int) -> list[Record]:
    """Queue wait, prefill and decode, around the first token; those that the server told."""
    first = span.start_ns + offset + figures["ttft"]
    began = first - figures.get("prefill", 0)
    found = []
    for name, key, start, end in (
        ("queue wait", "queue_wait", began - figures.get("queue_wait", 0), began),
        ("engine prefill", "prefill", began, first),
        ("engine decode", "decode", first, first + figures.get("decode", 0)),
    ):
        if key in figures and (key != "queue_wait" or "prefill" in figures):
            attributes = {SOURCE: "otlp", "tokentrace.placed": _PLACED}
            found.append(
                Record(
                    name,
                    LAYER,
                    start,
                    end,
                    attributes,
                    UP if key == "decode" else DOWN,
                    process,
                    parent_key=_key(span),
                    join="traceparent",
                    flow=True,
                    envelope=key != "queue_wait",
                )
            )
    return found


def _who(span: ReceivedSpan) -> str:
    """Such as "span llm_request of vllm.llm_engine, process 123"."""
    name = str(span.resource.get("vllm.instrumenting_module_name") or span.resource.get("service.name") or "the server")
    pid = pid_of(span)
    return f"span {span.name} of {name}" + (f", process {pid}" if pid else "")


def pid_of(span: ReceivedSpan) -> int:
    """The sender's process id as its resource tells it, 0 when it does not."""
    value = str(span.resource.get("process.pid") or span.resource.get("vllm.process_id") or "")
    return int(value) if value.isdecimal() and len(value) < 10 else 0
