"""OTLP JSON lines back into a Trace: our own exactly, others' as far as they go."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from tokentrace.emit._otlp_spans import PLAIN, Rare, Row, Spans
from tokentrace.emit._rows import LAYER, Split
from tokentrace.emit.otlp_file import plain, plain_attributes
from tokentrace.errors import UsageError
from tokentrace.layers import load
from tokentrace.model import KIND_INTERNAL, STATUS_UNSET, Event, Link, Process, Trace

_SERVICE = re.compile(r"L([1-8]) ")


#: Distinct texts that are remembered, so that equal ones are one object.
_TEXTS = 50_000


class Reader:
    """Takes the lines of one file, then gives the trace."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spans = Spans()
        self._splits: dict[tuple[tuple[str, ...], int], Split] = {}
        self._texts: dict[str, str] = {}
        self._trace_ids: dict[str, None] = {}
        self._processes: dict[str, Process] = {}
        self._meta: dict[str, Any] = {}
        self._expected: int | None = None
        self._damaged: list[str] = []

    def damage(self, number: int, reason: str) -> None:
        self._damaged.append(f"line {number}: {reason}")

    def line(self, number: int, text: bytes) -> None:
        """One line; a damaged one is remembered, not raised."""
        if not text.strip():
            return
        try:
            data = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            self.damage(number, f"not JSON ({error})")
            return
        try:
            self._message(data)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            self.damage(number, f"not OTLP ({type(error).__name__}: {error})")

    def _message(self, data: Any) -> None:
        own = data.get("tokentrace") or {}
        if "spans" in own:
            self._expected = int(own["spans"])
        if "traceId" in own:
            self._trace_ids.setdefault(str(own["traceId"]).lower())
        self._meta.update(own.get("meta") or {})
        for key, items in (own.get("processes") or {}).items():
            self._processes[key] = Process(key, plain_attributes(items))
        known = own.get("resources") or []
        found: list[Row] = []
        for index, message in enumerate(data["resourceSpans"]):
            carried = known[index] if index < len(known) else {}
            attributes = plain_attributes(message.get("resource", {}).get("attributes", ()))
            service = str(attributes.get("service.name", ""))
            process = self._process(attributes, carried)
            spans = [span for scope in message.get("scopeSpans", ()) for span in scope.get("spans", ())]
            numbers, added = carried.get("rows", ()), carried.get("columns", ())
            exact = len(numbers) == len(added) == len(spans)
            for at, span in enumerate(spans):
                number, bits = (numbers[at], added[at]) if exact else (-1, 0)
                found.append(self._row(span, process, service, int(number), bits))
                self._trace_ids.setdefault(span["traceId"].lower())
        self._spans.add(found)

    def _row(self, span: dict[str, Any], process: str, service: str, number: int, added: int) -> Row:
        """Raises KeyError, TypeError, ValueError or AttributeError when it is no span."""
        attributes = span.get("attributes", ())
        names = tuple([item["key"] for item in attributes])
        split = self._splits.get((names, added))
        if split is None:
            split = self._splits[names, added] = Split(names, added)
        values = self._values(attributes)
        layer, direction, thread, envelope = split.columns(values)
        keys, own = split.keys, split.own(values)
        name = str(span.get("name", ""))
        if number < 0 and LAYER not in keys:
            layer = _layer_of(service, name)
        start, end = int(span.get("startTimeUnixNano", 0)), int(span.get("endTimeUnixNano", 0))
        if end < start:
            clamped = dict(zip(keys, own, strict=True)) | {"tokentrace.clamped_ns": start - end}
            keys, own, end = tuple(clamped), tuple(clamped.values()), start
        return Row(
            number,
            int(span["spanId"], 16),
            int(span.get("parentSpanId") or "0", 16),
            name,
            layer,
            start,
            end,
            process,
            thread,
            direction,
            keys,
            own,
            _rare(span, envelope),
        )

    def _values(self, attributes: Sequence[dict[str, Any]]) -> list[Any]:
        """Their values; equal texts are one object, since most of what a run's spans say is said by thousands."""
        texts = self._texts
        if len(texts) > _TEXTS:
            texts.clear()
        found: list[Any] = []
        for item in attributes:
            value = item.get("value", {})
            text = value.get("stringValue")
            if type(text) is str:
                found.append(texts.setdefault(text, text))
                continue
            digits = value.get("intValue")
            found.append(int(digits) if type(digits) is str else plain(value))
        return found

    def _process(self, attributes: dict[str, Any], carried: dict[str, Any]) -> str:
        key = carried.get("process")
        if key is None:
            pid = attributes.get("process.pid")
            host = attributes.get("host.id") or attributes.get("host.name") or ""
            # A pid is unique on its host only.
            key = str(pid if pid is not None else attributes.get("service.instance.id", ""))
            earlier = self._processes.get(key)
            if earlier and (earlier.attributes.get("host.id") or earlier.attributes.get("host.name") or "") != host:
                key = f"{key}@{host}"
        if key in self._processes or carried.get("undescribed"):
            return str(key)
        taken_off = set(carried.get("added", ())) if carried else {"service.name", "service.namespace"}
        kept = {name: value for name, value in attributes.items() if name not in taken_off}
        if carried:
            for name in ("service.name", "service.namespace"):
                kept.pop(name, None)
                if f"tokentrace.process.{name}" in attributes:
                    kept[name] = attributes[f"tokentrace.process.{name}"]
        if kept or carried:
            self._processes[str(key)] = Process(str(key), kept)
        return str(key)

    def trace(self) -> Trace:
        """Raises UsageError when no span was read, or spans of several traces were."""
        if not self._spans and self._expected != 0:
            why = f": {self._damaged[0]}" if self._damaged else ""
            raise UsageError(f"{self._name} holds no readable span{why}", fix="give a trace saved as .jsonl")
        if len(self._trace_ids) > 1:
            raise UsageError(
                f"{self._name} holds {len(self._trace_ids)} traces, and one is wanted",
                fix=f"keep the lines of one, for instance: grep {next(iter(self._trace_ids))} {self._name}",
            )
        read = len(self._spans)
        in_loops = self._spans.arrange()
        trace = self._spans.trace
        trace.trace_id = int(next(iter(self._trace_ids)), 16)
        trace.processes, trace.meta = self._processes, self._meta
        self._note_losses(trace, read, in_loops)
        return trace

    def _note_losses(self, trace: Trace, read: int, in_loops: int) -> None:
        lost = len(self._damaged)
        reasons = self._damaged[:3]
        if self._expected is not None:
            lost = max(0, self._expected - read)
        if in_loops:
            lost += in_loops
            reasons.append(f"{in_loops} spans are their own ancestors")
        if lost:
            trace.meta["lost"] = lost
            trace.meta["lost_reason"] = "; ".join(reasons) or "the end of the file is missing"


def _rare(span: dict[str, Any], envelope: bool) -> Rare:
    kind, status = int(span.get("kind", KIND_INTERNAL)), span.get("status") or {}
    events, links = span.get("events", ()), span.get("links", ())
    if kind == KIND_INTERNAL and not (status or envelope or events or links):
        return PLAIN
    return Rare(
        kind,
        (int(status.get("code", STATUS_UNSET)), str(status.get("message", ""))),
        envelope,
        [
            Event(
                str(event.get("name", "")),
                int(event.get("timeUnixNano", 0)),
                plain_attributes(event.get("attributes", ())),
            )
            for event in events
        ],
        [Link(int(link["spanId"], 16), plain_attributes(link.get("attributes", ()))) for link in links],
    )


def _layer_of(service: str, name: str) -> int:
    """The layer of a span that does not say: by service name, then by span name; 0 when neither tells."""
    if match := _SERVICE.match(service):
        return int(match[1])
    return next((layer.number for layer in load() if layer.owns(name)), 0)
