"""OTLP JSON lines back into a Trace: our own exactly, others' as far as they go."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from tokentrace.emit import _rows
from tokentrace.emit._rows import LAYER
from tokentrace.errors import UsageError
from tokentrace.layers import load
from tokentrace.model import KIND_INTERNAL, STATUS_UNSET, Event, Link, Process, Trace

_SERVICE = re.compile(r"L([1-8]) ")


@dataclass(slots=True)
class _Row:
    """A span as read; `number` is its row in the trace that was written, -1 when the file does not say."""

    number: int
    span_id: int
    parent_id: int
    name: str
    layer: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    columns: dict[str, Any]
    process: str
    kind: int
    status: tuple[int, str]
    events: list[Event]
    links: list[Link]


class Reader:
    """Takes the lines of one file, then gives the trace."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rows: dict[int, _Row] = {}  # by span id
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
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            self.damage(number, f"not OTLP ({type(error).__name__}: {error})")

    def _message(self, data: Any) -> None:
        from tokentrace.emit.otlp_file import plain_attributes

        own = data.get("tokentrace") or {}
        if "spans" in own:
            self._expected = int(own["spans"])
        if "traceId" in own:
            self._trace_ids.setdefault(str(own["traceId"]).lower())
        self._meta.update(own.get("meta") or {})
        for key, items in (own.get("processes") or {}).items():
            self._processes[key] = Process(key, plain_attributes(items))
        known = own.get("resources") or []
        found: list[_Row] = []
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
                found.append(_parsed(span, process, service, number, bits))
                self._trace_ids.setdefault(span["traceId"].lower())
        self._rows.update({row.span_id: row for row in found})

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
        if not self._rows and self._expected != 0:
            why = f": {self._damaged[0]}" if self._damaged else ""
            raise UsageError(f"{self._name} holds no readable span{why}", fix="give a trace saved as .jsonl")
        if len(self._trace_ids) > 1:
            raise UsageError(
                f"{self._name} holds {len(self._trace_ids)} traces, and one is wanted",
                fix=f"keep the lines of one, for instance: grep {next(iter(self._trace_ids))} {self._name}",
            )
        trace = Trace(int(next(iter(self._trace_ids)), 16))
        trace.processes, trace.meta = self._processes, self._meta
        ordered = self._ordered(trace)
        self._note_losses(trace, len(self._rows) - len(ordered))
        row_of: dict[int, int] = {}
        for row in ordered:
            above = row_of.get(row.parent_id, -1)
            if above < 0 and len(trace):
                above = 0
                if row.parent_id:
                    row.attributes.setdefault("tokentrace.note", "its parent is not in the file")
            row_of[row.span_id] = trace.add(
                row.name,
                row.layer,
                row.start_ns,
                row.end_ns,
                above,
                row.attributes,
                span_id=row.span_id,
                process=row.process,
                thread=row.columns[_rows.THREAD],
                direction=row.columns[_rows.DIRECTION],
                kind=row.kind,
                status=row.status[0],
                status_message=row.status[1],
                envelope=row.columns[_rows.ENVELOPE],
                events=row.events,
                links=row.links,
            )
        return trace

    def _note_losses(self, trace: Trace, in_loops: int) -> None:
        lost = len(self._damaged)
        reasons = self._damaged[:3]
        if self._expected is not None:
            lost = max(0, self._expected - len(self._rows))
        if in_loops:
            lost += in_loops
            reasons.append(f"{in_loops} spans are their own ancestors")
        if lost:
            trace.meta["lost"] = lost
            trace.meta["lost_reason"] = "; ".join(reasons) or "the end of the file is missing"

    def _ordered(self, trace: Trace) -> list[_Row]:
        """Parents before children: as written, or by start where the file does not say."""
        rows = sorted(self._rows.values(), key=lambda row: (row.number, row.start_ns))
        if rows and rows[0].number == 0:
            return rows
        children: dict[int, list[_Row]] = {}
        roots: list[_Row] = []
        for row in rows:
            has_parent = row.parent_id in self._rows and row.parent_id != row.span_id
            (children.setdefault(row.parent_id, []) if has_parent else roots).append(row)
        if rows and len(roots) != 1:
            _add_root(trace, rows)
        found: list[_Row] = []
        waiting = roots[::-1]
        while waiting:
            row = waiting.pop()
            found.append(row)
            waiting += children.get(row.span_id, [])[::-1]
        return found


def _add_root(trace: Trace, rows: list[_Row]) -> None:
    """A trace of a part of a system has several tops; a Trace has one root."""
    note = {"tokentrace.note": "the file holds several spans without a parent; this span holds them together"}
    start, end = min(row.start_ns for row in rows), max(row.end_ns for row in rows)
    trace.add("trace", 0, start, end, -1, note, envelope=True)


def _parsed(span: dict[str, Any], process: str, service: str, number: int, added: int) -> _Row:
    """Raises KeyError, TypeError, ValueError or AttributeError when it is no span."""
    from tokentrace.emit.otlp_file import plain_attributes

    own, columns = _rows.split(plain_attributes(span.get("attributes", ())), added)
    name = str(span.get("name", ""))
    layer = columns[LAYER]
    if number < 0 and LAYER not in own:
        layer = _layer_of(service, name)
    start, end = int(span.get("startTimeUnixNano", 0)), int(span.get("endTimeUnixNano", 0))
    if end < start:
        own["tokentrace.clamped_ns"] = start - end
        end = start
    status = span.get("status") or {}
    return _Row(
        number=number,
        span_id=int(span["spanId"], 16),
        parent_id=int(span.get("parentSpanId") or "0", 16),
        name=name,
        layer=layer,
        start_ns=start,
        end_ns=end,
        attributes=own,
        columns=columns,
        process=process,
        kind=int(span.get("kind", KIND_INTERNAL)),
        status=(int(status.get("code", STATUS_UNSET)), str(status.get("message", ""))),
        events=[
            Event(
                str(event.get("name", "")),
                int(event.get("timeUnixNano", 0)),
                plain_attributes(event.get("attributes", ())),
            )
            for event in span.get("events", ())
        ],
        links=[
            Link(int(link["spanId"], 16), plain_attributes(link.get("attributes", ())))
            for link in span.get("links", ())
        ],
    )


def _layer_of(service: str, name: str) -> int:
    """The layer of a span that does not say: by service name, then by span name; 0 when neither tells."""
    if match := _SERVICE.match(service):
        return int(match[1])
    return next((layer.number for layer in load() if layer.owns(name)), 0)
