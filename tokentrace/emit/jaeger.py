"""Jaeger UI JSON: a file for the "JSON File" upload of Jaeger's search page, or for its query API's readers.

Jaeger's times are whole microseconds. Start and end are each rounded down, and the duration is their difference:
so a child that lies inside its parent still does, and nothing appears longer than it was. A span shorter than a
microsecond shows as 0 µs and keeps its true length in the tag `tokentrace.duration_ns`.

Read in jaeger-ui's source: a span whose `error` tag is truthy is drawn as failed, even for the text "false"; a
child outside its parent is shifted ("clock skew") unless both resources carry a host; of several references the
first CHILD_OF is the parent; a browser's numbers are exact to 2^53. What its critical path needs is in `_shown`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from tokentrace.emit import _rows
from tokentrace.emit._atomic import atomic
from tokentrace.emit._resource import Resources
from tokentrace.emit._shown import KINDS, path_remark, shown
from tokentrace.emit._values import clean_text, for_browser
from tokentrace.model import KIND_INTERNAL, STATUS_ERROR, STATUS_OK, STATUS_UNSET, Event, Trace

DURATION = "tokentrace.duration_ns"


def write(trace: Trace, path: Path | str, environ: Mapping[str, str] | None = None) -> None:
    """Write the trace. Raises UsageError or ExportError."""
    with atomic(Path(path)) as out:
        for part in parts(trace, environ):
            out.write(part)


def parts(trace: Trace, environ: Mapping[str, str] | None = None) -> Iterator[bytes]:
    """The file in pieces: `{"data": [{"traceID", "spans", "processes", "warnings"}]}`."""
    trace = shown(trace)
    resources = Resources(trace, os.environ if environ is None else environ)
    processes: dict[tuple[str, int], str] = {}
    trace_id = trace.trace_id_hex
    yield b'{"data":[{"traceID":"' + trace_id.encode() + b'","spans":['
    for row in range(len(trace)):
        key = (trace.process[row], trace.layer[row])
        process = processes.setdefault(key, f"p{len(processes) + 1}")
        yield (b",\n" if row else b"\n") + orjson.dumps(_span(trace, row, trace_id, process))
    described = {}
    for key, process in processes.items():
        attributes = resources.get(*key).attributes
        tags = {name: value for name, value in attributes.items() if name != "service.name"}
        described[process] = {"serviceName": clean_text(str(attributes["service.name"])), "tags": _tags(tags)}
    yield b'\n],"processes":' + orjson.dumps(described) + b',"warnings":' + orjson.dumps(_warned(trace)) + b"}]"
    yield b',"total":0,"limit":0,"offset":0,"errors":null}\n'


def _warned(trace: Trace) -> list[str] | None:
    found = []
    if lost := trace.meta.get("lost"):
        found.append(f"{lost} spans were lost: {trace.meta.get('lost_reason', 'reason unknown')}")
    if remark := path_remark(trace):
        found.append(remark)
    fold = trace.meta.get("fold")
    if isinstance(fold, dict) and fold.get("folded"):
        found.append(
            f"{fold['folded']} of {fold.get('recorded')} spans were folded into others to keep the trace small: one "
            "with tokentrace.folded.count reaches from the first of its spans to the last and does not tell their times"
        )
    return found or None


def _span(trace: Trace, row: int, trace_id: str, process: str) -> dict[str, Any]:
    start_ns, end_ns, parent = trace.start_ns[row], trace.end_ns[row], trace.parent[row]
    own = trace.attributes(row)
    tags = {**own, **_rows.extras(own, _rows.columns(trace, row)).attributes}
    references = [_reference("CHILD_OF", trace_id, trace.span_id[parent])] if parent >= 0 else []
    references += [_reference("FOLLOWS_FROM", trace_id, link.span_id) for link in trace.links.get(row, ())]
    start_us = start_ns // 1000
    return {
        "traceID": trace_id,
        "spanID": f"{trace.span_id[row]:016x}",
        "flags": 1,
        "operationName": clean_text(trace.names[trace.name[row]]),
        "references": references,
        "startTime": start_us,
        "duration": end_ns // 1000 - start_us,
        "tags": _span_tags(trace, row, tags),
        "logs": [_log(event) for event in trace.events.get(row, ())],
        "processID": process,
        "warnings": _warnings(trace, row, own),
    }


def _reference(kind: str, trace_id: str, span_id: int) -> dict[str, str]:
    return {"refType": kind, "traceID": trace_id, "spanID": f"{span_id:016x}"}


def _span_tags(trace: Trace, row: int, attributes: dict[str, Any]) -> list[dict[str, Any]]:
    status, message = trace.statuses.get(row, (STATUS_UNSET, ""))
    tags = dict(attributes)
    if "error" in tags:
        # Only the status decides what is drawn as failed.
        tags["attribute.error"] = tags.pop("error")
    tags.setdefault(DURATION, trace.end_ns[row] - trace.start_ns[row])
    if kind := KINDS.get(trace.kinds.get(row, KIND_INTERNAL)):
        tags["span.kind"] = kind
    if status == STATUS_OK:
        tags["otel.status_code"] = "OK"
    if status == STATUS_ERROR:
        tags["otel.status_code"], tags["error"] = "ERROR", True
    if message:
        tags["otel.status_description"] = message
    tags["internal.span.format"] = "otlp"
    return _tags(tags)


def _warnings(trace: Trace, row: int, attributes: Mapping[str, Any]) -> list[str] | None:
    """What about this span's times is not as recorded, or cannot be."""
    found = []
    parent = trace.parent[row]
    if parent >= 0:
        early = trace.start_ns[parent] - trace.start_ns[row]
        late = trace.end_ns[row] - trace.end_ns[parent]
        if early > 0:
            found.append(f"starts {early} ns before its parent")
        if late > 0:
            found.append(f"ends {late} ns after its parent")
    if clamped := attributes.get("tokentrace.clamped_ns"):
        found.append(f"was cut by {clamped} ns to fit into its parent")
    return found or None


def _log(event: Event) -> dict[str, Any]:
    return {"timestamp": event.time_ns // 1000, "fields": _tags({"event": event.name, **event.attributes})}


def _tags(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_tag(clean_text(key), for_browser(value)) for key, value in attributes.items()]


def _tag(key: str, value: Any) -> dict[str, Any]:
    kind = type(value)
    if kind is bool:
        return {"key": key, "type": "bool", "value": value}
    if kind is int:
        return {"key": key, "type": "int64", "value": value}
    if kind is float:
        return {"key": key, "type": "float64", "value": value}
    if kind is not str:
        value = orjson.dumps(value).decode()
    return {"key": key, "type": "string", "value": value}
