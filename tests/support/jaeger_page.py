"""What Jaeger's page makes of a trace: of the file it opens, and of the OTLP messages that its backend got.

Written from the sources of jaeger-ui (`model/transform-trace-data.ts`, `CriticalPath/`) and of jaeger's query service,
and knows nothing of tokentrace.emit. Both forms become `{"spans": [...], "processes": {...}, "warnings": ...}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}

Data = dict[str, Any]


def of_file(content: bytes) -> Data:
    found: Data = json.loads(content)["data"][0]
    return found


def of_otlp(bodies: Iterable[bytes]) -> Data:
    """Times in whole microseconds: of the start and of the length, each rounded down."""
    spans: list[Data] = []
    processes: dict[str, Data] = {}
    keys: dict[bytes, str] = {}
    trace_id = ""
    for body in bodies:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            key = keys.setdefault(group.resource.SerializeToString(deterministic=True), f"p{len(keys) + 1}")
            found = {item.key: item for item in _tags(group.resource.attributes)}
            named = found.pop("service.name")["value"]
            processes[key] = {"serviceName": named, "tags": list(found.values())}
            for span in (span for scope in group.scope_spans for span in scope.spans):
                trace_id = span.trace_id.hex()
                above = [span.parent_span_id] if span.parent_span_id else []
                references = [
                    {"refType": kind, "traceID": trace_id, "spanID": target.hex()}
                    for kind, targets in (("CHILD_OF", above), ("FOLLOWS_FROM", [x.span_id for x in span.links]))
                    for target in targets
                ]
                more: list[Data] = []
                if span.kind:
                    more.append({"key": "span.kind", "type": "string", "value": _KINDS[span.kind]})
                if span.status.code:
                    more.append({"key": "otel.status_code", "value": {1: "OK", 2: "ERROR"}[span.status.code]})
                if span.status.code == 2:
                    more.append({"key": "error", "type": "bool", "value": True})
                if span.status.message:
                    more.append({"key": "otel.status_description", "value": span.status.message})
                spans.append(
                    {
                        "traceID": trace_id,
                        "spanID": span.span_id.hex(),
                        "operationName": span.name,
                        "references": references,
                        "startTime": span.start_time_unix_nano // 1000,
                        "duration": (span.end_time_unix_nano - span.start_time_unix_nano) // 1000,
                        "tags": [*_tags(span.attributes), *more],
                        "logs": [
                            {
                                "timestamp": event.time_unix_nano // 1000,
                                "fields": [{"key": "event", "value": event.name}, *_tags(event.attributes)],
                            }
                            for event in span.events
                        ],
                        "processID": key,
                        "warnings": None,
                    }
                )
    return {"traceID": trace_id, "spans": spans, "processes": processes, "warnings": None}


class _Tag(dict[str, Any]):
    key = property(lambda self: self["key"])


def _tags(items: Any) -> list[Any]:
    return [_Tag(key=item.key, value=_plain(item.value)) for item in items]


def _plain(value: Any) -> Any:
    """Jaeger has no lists and maps in tags: they are JSON texts."""
    kind = value.WhichOneof("value")
    if kind in ("array_value", "kvlist_value"):
        return json.dumps(_nested(value))
    return None if kind is None else getattr(value, kind)


def _nested(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_nested(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: _nested(item.value) for item in value.kvlist_value.values}
    return None if kind is None else getattr(value, kind)


def tags(items: list[Data]) -> Data:
    found = {item["key"]: item["value"] for item in items}
    assert len(found) == len(items), "a tag came twice"
    return found


def parents(data: Data) -> dict[str, str]:
    return {
        span["spanID"]: next((r["spanID"] for r in span["references"] if r["refType"] == "CHILD_OF"), "")
        for span in data["spans"]
    }


def service(data: Data, span: Data) -> str:
    name: str = data["processes"][span["processID"]]["serviceName"]
    return name


def critical_path(data: Data) -> tuple[list[tuple[Data, int]], int]:
    """(span, its time on the path in µs) from the end backwards, and how many calls deep Jaeger's recursion gets.

    From a span into the child that ended last, from a child's start to the sibling that ended before it. A consumer
    below a producer is left out with all that is below it, and so is what has nothing inside its parent.
    """
    spans, above = {span["spanID"]: span for span in data["spans"]}, parents(data)
    below: dict[str, list[str]] = {}
    for span_id, parent in above.items():
        below.setdefault(parent, []).append(span_id)
    (root,) = below[""]
    times: dict[str, tuple[int, int]] = {}
    children: dict[str, list[str]] = {}
    waiting = [(root, "")]
    while waiting:
        span_id, parent = waiting.pop()
        start = spans[span_id]["startTime"]
        end = start + spans[span_id]["duration"]
        if parent:
            low, high = times[parent]
            if _kind(spans[parent]) == "producer" and _kind(spans[span_id]) == "consumer":
                continue
            if (start >= high) if start >= low else (end <= low):
                continue
            start, end = max(start, low), min(end, high)
            children.setdefault(parent, []).append(span_id)
        times[span_id] = start, end
        waiting += [(child, span_id) for child in reversed(below.get(span_id, []))]
    for found in children.values():
        found.sort(key=lambda child: times[child][0])
    at, until, path, calls = root, None, [], 0
    while at:
        calls += 1
        fitting = [c for c in children.get(at, ()) if until is None or times[c][1] < until]
        last = max(fitting, key=lambda child: times[child][1], default=None)
        stop = times[at][1] if until is None else until
        path.append((spans[at], stop - (times[last][1] if last else times[at][0])))
        if last:
            at, until = last, None
        else:
            at, until = above[at], times[at][0]
    return path, calls


def _kind(span: Data) -> str:
    return next((item["value"] for item in span["tags"] if item["key"] == "span.kind"), "internal")
