"""Triton's structured trace, one JSON object a line: when each kernel was compiled, how long it took, cached or not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, tzinfo

import msgspec

from tokentrace.importers._jit_events import LIMIT, JitEvent
from tokentrace.importers.columns import Lost, clean

#: The beginning of such a log.
HEAD = re.compile(rb"^\s*\{.*\"event_type\"\s*:\s*\"(compilation|launch|ir_analysis|autotune_analysis)\"", re.DOTALL)
_STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?")


class _TritonMetadata(msgspec.Struct, gc=False):
    name: str = ""
    hash: str = ""
    cache_hit: bool | None = None


class _TritonTimes(msgspec.Struct, gc=False):
    ir_initialization: int = 0  # all times are microseconds
    lowering_stages: list[tuple[str, int]] = []
    store_results: int = 0


class _TritonPayload(msgspec.Struct, gc=False):
    metadata: _TritonMetadata = msgspec.field(default_factory=_TritonMetadata)
    times: _TritonTimes = msgspec.field(default_factory=_TritonTimes)


class _TritonEvent(msgspec.Struct, gc=False):
    event_type: str
    timestamp: str = ""
    payload: _TritonPayload | None = None


def events(lines: Iterator[bytes], lost: Lost, zone: tzinfo) -> list[JitEvent]:
    """Each compilation ends at its time stamp, which some versions write in whole seconds."""
    events: list[JitEvent] = []
    for line in lines:
        if not line.strip():
            continue
        try:
            entry = msgspec.json.decode(line, type=_TritonEvent)
        except (msgspec.DecodeError, RecursionError):
            lost.add(1, "damaged lines were skipped")
            continue
        if entry.event_type != "compilation" or entry.payload is None:
            continue
        stamp = _stamp(entry.timestamp, zone)
        if stamp is None:
            lost.add(1, "compilations without a readable time were skipped")
            continue
        if len(events) >= LIMIT:
            lost.add(1, f"more than {LIMIT:,} compile events: the rest was skipped")
            continue
        end, resolution = stamp
        times, metadata = entry.payload.times, entry.payload.metadata
        spent = times.ir_initialization + sum(stage for _, stage in times.lowering_stages) + times.store_results
        spent = min(max(0, spent), 10**12)
        name = clean(metadata.name, 120) or "kernel"
        result = "" if metadata.cache_hit is None else "hit" if metadata.cache_hit else "miss"
        events.append(
            JitEvent("triton", name, end - spent * 1000, end, result=result, key=clean(metadata.hash, 100),
                     resolution_ns=resolution)
        )  # fmt: skip
    return events


def _stamp(text: str, zone: tzinfo) -> tuple[int, int] | None:
    """(instant, its resolution) in ns."""
    match = _STAMP.match(text)
    if match is None:
        return None
    try:
        seconds = int(datetime.strptime(match[1], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=zone).timestamp())
    except (ValueError, OverflowError):
        return None
    digits = (match[2] or "")[1:10]
    return seconds * 10**9 + int(digits.ljust(9, "0")), 10 ** (9 - len(digits))
