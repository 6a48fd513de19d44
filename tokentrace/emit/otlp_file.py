"""OTLP JSON lines: one TracesData message a line, as the OpenTelemetry file exporter specification has it.

Hex ids, 64-bit integers as decimal text, enums as numbers, lowerCamelCase. Beside `resourceSpans` each line holds
a key `tokentrace` (OTLP tells readers to ignore what they do not know) with what the messages have no place for:
row numbers, process keys, which attributes were columns, and in the first line the trace's `meta` (what of it is large
in a last line without spans). So a file read back is the trace that was written. A file without that key, from a
collector or another tool, is read too.

Rows are written in order, and parents precede children: a file cut short is the beginning of the trace.
"""

from __future__ import annotations

import base64
import gzip
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from tokentrace.emit import _rows
from tokentrace.emit._atomic import atomic
from tokentrace.emit._resource import Resources
from tokentrace.emit._values import clean, clean_text
from tokentrace.emit._wire import FLAGS
from tokentrace.errors import UsageError
from tokentrace.model import Trace

SCHEMA = 1
KEY = "tokentrace"
SPANS_A_LINE = 1000
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def write(trace: Trace, path: Path | str, environ: Mapping[str, str] | None = None) -> None:
    """Write the trace, compressed when the name ends in .gz. Raises UsageError or ExportError."""
    with atomic(Path(path)) as out:
        for line in lines(trace, environ):
            out.write(line)


def lines(trace: Trace, environ: Mapping[str, str] | None = None) -> Iterator[bytes]:
    """The file's lines, each ending in a newline."""
    from tokentrace.carried import TREES
    from tokentrace.version import __version__

    resources = Resources(trace, os.environ if environ is None else environ)
    trace_id = trace.trace_id_hex
    scope = {"name": "tokentrace", "version": __version__}
    for first in range(0, max(1, len(trace)), SPANS_A_LINE):
        groups: dict[tuple[str, int], tuple[list[dict[str, Any]], list[int], list[int]]] = {}
        for row in range(first, min(first + SPANS_A_LINE, len(trace))):
            spans, rows, added = groups.setdefault((trace.process[row], trace.layer[row]), ([], [], []))
            span, bits = _span(trace, row, trace_id)
            spans.append(span)
            rows.append(row)
            added.append(bits)
        own: dict[str, Any] = {"schema": SCHEMA, "spans": len(trace), "resources": []}
        if first == 0:
            own["traceId"] = trace_id
            own["meta"] = _fragment({key: value for key, value in trace.meta.items() if key != TREES})
            unused = set(trace.processes).difference(trace.process)
            own["processes"] = {clean_text(key): attributes(trace.processes[key].attributes) for key in unused}
        messages = []
        for key, (spans, rows, added) in groups.items():
            resource = resources.get(*key)
            messages.append(
                {
                    "resource": {"attributes": attributes(resource.attributes)},
                    "scopeSpans": [{"scope": scope, "spans": spans}],
                }
            )
            own["resources"].append(
                {"process": clean_text(key[0]), "added": resource.added, "rows": rows, "columns": added}
                | ({} if key[0] in trace.processes else {"undescribed": True})
            )
        yield orjson.dumps({"resourceSpans": messages, KEY: own}, default=clean, option=orjson.OPT_APPEND_NEWLINE)
    # Large, and may be missing: it gets a line of its own, the last.
    if trace.meta.get(TREES):
        more = {"schema": SCHEMA, "spans": len(trace), "meta": _fragment({TREES: trace.meta[TREES]})}
        yield orjson.dumps({"resourceSpans": [], KEY: more}, option=orjson.OPT_APPEND_NEWLINE)


def _fragment(meta: Mapping[str, Any]) -> orjson.Fragment:
    """`meta` as JSON: as it is, or cleaned when it holds what JSON cannot."""
    try:
        return orjson.Fragment(orjson.dumps(meta, default=clean))
    except TypeError:
        return orjson.Fragment(orjson.dumps(clean(meta)))


def _span(trace: Trace, row: int, trace_id: str) -> tuple[dict[str, Any], int]:
    own = trace.attributes(row)
    more = _rows.extras(own, _rows.columns(trace, row))
    span = trace.span(row)
    found: dict[str, Any] = {"traceId": trace_id, "spanId": f"{span.span_id:016x}"}
    if span.parent >= 0:
        found["parentSpanId"] = f"{trace.span_id[span.parent]:016x}"
    found["flags"] = FLAGS
    found["name"] = clean_text(span.name)
    found["kind"] = span.kind
    found["startTimeUnixNano"] = str(span.start_ns)
    found["endTimeUnixNano"] = str(span.end_ns)
    found["attributes"] = attributes({**own, **more.attributes})
    if span.events:
        found["events"] = [
            {"timeUnixNano": str(e.time_ns), "name": clean_text(e.name), "attributes": attributes(e.attributes)}
            for e in span.events
        ]
    if span.links:
        found["links"] = [
            {
                "traceId": trace_id,
                "spanId": f"{link.span_id:016x}",
                "attributes": attributes(link.attributes),
                "flags": FLAGS,
            }
            for link in span.links
        ]
    if span.status or span.status_message:
        message = clean_text(span.status_message)
        found["status"] = {"code": span.status} | ({"message": message} if message else {})
    return found, more.added


def attributes(items: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attributes as a list of KeyValue in OTLP JSON."""
    return [{"key": clean_text(key), "value": any_value(clean(value))} for key, value in items.items()]


def any_value(value: Any) -> dict[str, Any]:
    kind = type(value)
    if kind is str:
        return {"stringValue": value}
    if kind is bool:
        return {"boolValue": value}
    if kind is int:
        return {"intValue": str(value)}
    if kind is float:
        # The JSON mapping of protobuf has texts for what JSON numbers cannot hold.
        return {"doubleValue": value if math.isfinite(value) else _not_finite(value)}
    if kind is list:
        return {"arrayValue": {"values": [any_value(item) for item in value]}}
    if kind is dict:
        return {"kvlistValue": {"values": [{"key": k, "value": any_value(v)} for k, v in value.items()]}}
    if kind is bytes:
        return {"bytesValue": base64.b64encode(value).decode("ascii")}
    return {}


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain(value: Mapping[str, Any]) -> Any:
    """An AnyValue of OTLP JSON as a Python value; integers may be text or numbers. None when nothing is set."""
    for key, item in value.items():
        if key in ("stringValue", "boolValue"):
            return item
        if key == "intValue":
            return int(item)
        if key == "doubleValue":
            return _NOT_FINITE[item] if item in _NOT_FINITE else float(item)
        if key == "arrayValue":
            return [plain(entry) for entry in item.get("values", ())]
        if key == "kvlistValue":
            return plain_attributes(item.get("values", ()))
        if key == "bytesValue":
            return base64.b64decode(item)
    return None


def plain_attributes(items: Any) -> dict[str, Any]:
    return {item["key"]: plain(item.get("value", {})) for item in items}


def read(path: Path | str) -> Trace:
    """The trace in a file that `write` or another OTLP file exporter wrote.

    A damaged or missing end is tolerated: `meta["lost"]` is the number of spans that could not be read (where the
    file says how many it had; else the number of damaged lines) and `meta["lost_reason"]` says why. Raises
    UsageError when there is no such file, or no span can be read.
    """
    from tokentrace.emit._otlp_read import Reader

    path = Path(path)
    reader = Reader(str(path))
    number = 0
    try:
        with cast(BinaryIO, gzip.open(path) if _is_gzip(path) else path.open("rb")) as source:
            for number, line in enumerate(source, 1):
                reader.line(number, line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reader.damage(number + 1, f"the compressed file is cut or damaged ({error})")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}",
            fix="give the path of a saved trace, see: tokentrace list",
        ) from error
    return reader.trace()


def _is_gzip(path: Path) -> bool:
    """By content: a download may have lost its .gz."""
    with path.open("rb") as source:
        return source.read(2) == b"\x1f\x8b"
