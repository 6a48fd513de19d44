"""Chrome trace events as JSON, for ui.perfetto.dev and chrome://tracing.

Each layer is a group of tracks ("process" in that format), nearest the user first, with one track for each thread
of each process. Slices of one track must nest; where spans of a thread overlap without nesting (coroutines, device
streams), the later one goes to a further track of the same name. Links are arrows from the linked span. Numeric
samples (`hw.*` in events, the lists of watts of layer 1) are counters.

Times are microseconds with three decimals, counted from the first span, because a double cannot hold nanoseconds of
the epoch; `otherData.epoch_ns` says when that was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from tokentrace.emit import _rows
from tokentrace.emit._atomic import atomic
from tokentrace.emit._resource import service_name
from tokentrace.emit._values import clean_text, for_browser
from tokentrace.model import STATUS_UNSET, Trace

_COUNTED = "hw."
#: Lists of one span: watts, and milliseconds after the span's start.
WATTS, WATTS_AT = "tokentrace.power.samples_w", "tokentrace.power.samples_ms"


def write(trace: Trace, path: Path | str) -> None:
    """Write the trace. Raises UsageError or ExportError."""
    with atomic(Path(path)) as out:
        for part in parts(trace):
            out.write(part)


def parts(trace: Trace) -> Iterator[bytes]:
    """The file in pieces: `{"traceEvents": […], "displayTimeUnit": "ns", "otherData": {…}}`."""
    epoch = min(trace.start_ns, default=0)
    tracks = _tracks(trace)
    yield b'{"displayTimeUnit":"ns","otherData":'
    yield orjson.dumps({"trace_id": trace.trace_id_hex, "epoch_ns": str(epoch), "product": "tokentrace"})
    yield b',"traceEvents":['
    first = True
    for event in _events(trace, tracks, epoch):
        yield (b"\n" if first else b",\n") + orjson.dumps(event)
        first = False
    yield b"\n]}\n"


def _events(trace: Trace, tracks: list[int], epoch: int) -> Iterator[dict[str, Any]]:
    yield from _titles(trace, tracks)
    # Enclosing slices first: of two with the same start the viewer takes the earlier one as the outer.
    order = sorted(range(len(trace)), key=lambda row: (trace.start_ns[row], -trace.end_ns[row], row))
    for row in order:
        yield {
            "ph": "X",
            "name": clean_text(trace.names[trace.name[row]]),
            "cat": service_name(trace.layer[row]),
            "pid": _group(trace.layer[row]),
            "tid": tracks[row],
            "ts": _us(trace.start_ns[row] - epoch),
            "dur": _us(trace.end_ns[row] - trace.start_ns[row]),
            "args": _arguments(trace, row),
        }
    yield from _instants(trace, tracks, epoch)
    yield from _counters(trace, epoch)
    yield from _arrows(trace, tracks, epoch)


def _us(ns: int) -> float:
    """Exact to the nanosecond below 2^53 ns, 104 days."""
    return ns / 1000


def _group(layer: int) -> int:
    """The run first, then layers 8 to 1. Not 0, which viewers take for the idle process."""
    return 100 if layer == 0 else 200 - layer


def _tracks(trace: Trace) -> list[int]:
    """The track number of each row. Every row of one track nests with all others of it."""
    lanes: dict[tuple[int, str, int], list[int]] = {}
    for row in range(len(trace)):
        lanes.setdefault((trace.layer[row], trace.process[row], trace.thread[row]), []).append(row)
    found = [0] * len(trace)
    number = 0
    for lane in sorted(lanes, key=lambda lane: (-lane[0], min(trace.start_ns[row] for row in lanes[lane]))):
        open_ends: list[list[int]] = []  # for each track of this lane the ends of its open slices, outermost first
        for row in sorted(lanes[lane], key=lambda row: (trace.start_ns[row], -trace.end_ns[row], row)):
            found[row] = number + _place(open_ends, trace.start_ns[row], trace.end_ns[row]) + 1
        number += len(open_ends)
    return found


def _place(open_ends: list[list[int]], start: int, end: int) -> int:
    """The first track on which this slice nests; a new one when there is none."""
    for index, ends in enumerate(open_ends):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or ends[-1] >= end:
            ends.append(end)
            return index
    open_ends.append([end])
    return len(open_ends) - 1


def _titles(trace: Trace, tracks: list[int]) -> Iterator[dict[str, Any]]:
    groups: set[int] = set()
    named: set[int] = set()
    for row, track in enumerate(tracks):
        layer = trace.layer[row]
        group = _group(layer)
        if group not in groups:
            groups.add(group)
            title = "run" if layer == 0 else service_name(layer)
            yield {"ph": "M", "name": "process_name", "pid": group, "tid": 0, "args": {"name": title}}
            yield {"ph": "M", "name": "process_sort_index", "pid": group, "tid": 0, "args": {"sort_index": group}}
        if track not in named:
            named.add(track)
            thread = f" thread {trace.thread[row]}" if trace.thread[row] else ""
            title = _process(trace, trace.process[row]) + thread
            yield {"ph": "M", "name": "thread_name", "pid": group, "tid": track, "args": {"name": title}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": group, "tid": track, "args": {"sort_index": track}}


def _process(trace: Trace, key: str) -> str:
    process = trace.processes.get(key)
    name = process.attributes.get("process.title") or process.attributes.get("process.command") if process else ""
    return clean_text(f"{name or 'process'} {key}".strip())


def _arguments(trace: Trace, row: int) -> dict[str, Any]:
    own = trace.attributes(row)
    found = {**own, **_rows.extras(own, _rows.columns(trace, row)).attributes}
    status, message = trace.statuses.get(row, (STATUS_UNSET, ""))
    if status != STATUS_UNSET:
        found["status"] = {1: "ok", 2: "error"}.get(status, status)
    if message:
        found["status.message"] = message
    found["span_id"] = f"{trace.span_id[row]:016x}"
    return {clean_text(key): for_browser(value) for key, value in found.items()}


def _instants(trace: Trace, tracks: list[int], epoch: int) -> Iterator[dict[str, Any]]:
    for row, events in trace.events.items():
        for event in events:
            if _samples(event.attributes):
                continue
            yield {
                "ph": "i",
                "s": "t",
                "name": clean_text(event.name),
                "cat": service_name(trace.layer[row]),
                "pid": _group(trace.layer[row]),
                "tid": tracks[row],
                "ts": _us(event.time_ns - epoch),
                "args": {clean_text(key): for_browser(value) for key, value in event.attributes.items()},
            }


def _samples(attributes: dict[str, Any]) -> dict[str, float]:
    """The numbers an event carries under hardware metric names."""
    return {
        key: value
        for key, value in attributes.items()
        if key.startswith(_COUNTED) and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _counters(trace: Trace, epoch: int) -> Iterator[dict[str, Any]]:
    for row, time_ns, name, value in sorted(_readings(trace), key=lambda reading: reading[1]):
        yield {
            "ph": "C",
            "name": clean_text(name),
            "pid": _group(trace.layer[row]),
            "tid": 0,
            "ts": _us(time_ns - epoch),
            "args": {"value": for_browser(value)},
        }


def _readings(trace: Trace) -> Iterator[tuple[int, int, str, float]]:
    """(row, time in ns, counter's name, value) of every sample in events and in lists of samples."""
    for row, events in trace.events.items():
        device = trace.attributes(row).get("hw.id", "")
        for event in events:
            for key, value in _samples(event.attributes).items():
                yield row, event.time_ns, f"{key} {event.attributes.get('hw.id', device)}".strip(), value
    listed = {index for index, keys in enumerate(trace.shapes) if WATTS in keys and WATTS_AT in keys}
    for row in (row for row, shape in enumerate(trace.shape) if shape in listed):
        own = trace.attributes(row)
        name = f"power (W) {own.get('hw.id', '')}".strip()
        for at_ms, watts in zip(own[WATTS_AT], own[WATTS], strict=False):
            yield row, trace.start_ns[row] + round(at_ms * 1e6), name, watts


def _arrows(trace: Trace, tracks: list[int], epoch: int) -> Iterator[dict[str, Any]]:
    """A flow from each linked span of this trace to the span that links it."""
    rows = {span_id: row for row, span_id in enumerate(trace.span_id)} if trace.links else {}
    number = 0
    for row, links in trace.links.items():
        for source in _present(rows, (link.span_id for link in links)):
            number += 1
            for at, phase in ((source, {"ph": "s"}), (row, {"ph": "f", "bp": "e"})):
                yield {
                    **phase,
                    "id": number,
                    "name": "link",
                    "cat": "link",
                    "pid": _group(trace.layer[at]),
                    "tid": tracks[at],
                    "ts": _us(trace.start_ns[at] - epoch),
                }


def _present(rows: dict[int, int], span_ids: Iterable[int]) -> Iterator[int]:
    return (rows[span_id] for span_id in span_ids if span_id in rows)
