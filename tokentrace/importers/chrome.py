"""Kineto and other Chrome trace JSON as columns, read as a stream.

The file is never held whole, so memory grows with the columns only. A recording's environment, user names and call
stacks never get in: see `_pieces` for the fields that are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from tokentrace import gpu_events
from tokentrace.errors import UsageError
from tokentrace.importers import _source, columns
from tokentrace.importers._numbers import microseconds_to_ns
from tokentrace.importers._pieces import NOTHING, Args, Event, Reader
from tokentrace.importers.columns import NONE, Array, Events, Interner, Lost
from tokentrace.wording import plural

#: (start_ns, end_ns, kind) of a piece's rows -> which to keep
Keep: TypeAlias = Callable[[Array, Array, Array], Array]

_DETAIL_LIMIT = 300
_BASE = re.compile(rb"\"baseTimeNanoseconds\"\s*:\s*\"?(\d{1,19})\b")
_NO_ARGS = Args()


def read(path: Path, *, keep: Keep | None = None, progress: Callable[[int], None] | None = None) -> Events:
    """All complete ("X") events of a Chrome trace. `keep` drops rows while reading; `progress` gets bytes read.

    Raises UsageError when the file is no Chrome trace. Damage is counted in `Events.lost`.
    """
    builder = _Builder(path.name, keep)
    reader = Reader(path.name, builder.lost)
    for events in reader.pieces(_source.ahead(_source.chunks(path, builder.lost)), progress):
        builder.add(events)
        events.clear()  # before the next piece is decoded, so that it takes the memory that is still in the cache
    return builder.finish(reader)


class _Builder:
    """Columns, piece by piece."""

    def __init__(self, name: str, keep: Keep | None) -> None:
        self.name = name
        self.keep = keep
        self.lost = Lost()
        self.total = 0
        self.flows = 0
        self._names, self._tracks = Interner(), Interner()
        self._devices, self._streams, self._details = Interner(), Interner(), Interner()
        self._origins = Interner()  # (category, process, thread)
        self._kinds: list[int] = []
        self._track_codes: list[int] = []
        self._odd: dict[Any, int] = {}
        self._parts: dict[str, list[Array]] = {column: [] for column in (*columns.COLUMNS, "graph")}
        self._bad_times = 0
        self._no_length = 0
        self._negative = 0
        self._rows = 0

    def add(self, events: list[Event]) -> None:
        self.total += len(events)
        spans = [event for event in events if event.ph == "X"]
        count = len(spans)
        if not count:
            return
        start, bad = microseconds_to_ns([event.ts for event in spans])
        length, bad_length = microseconds_to_ns([event.dur for event in spans])
        if bad_length is not None:
            self._no_length += int(bad_length.sum())
            length[bad_length] = 0
        if bool((length < 0).any()):
            self._negative += int((length < 0).sum())
            length = np.maximum(length, 0)
        kind, track = self._origin_columns(spans)
        end = start + length
        keep = None if bad is None else ~bad
        if bad is not None:
            self._bad_times += int(bad.sum())
        if self.keep is not None:
            wanted = self.keep(start, end, kind)
            keep = wanted if keep is None else keep & wanted
        if keep is not None and not bool(keep.all()):
            chosen = np.flatnonzero(keep)
            spans = [spans[row] for row in chosen.tolist()]
            start, end, kind, track, count = start[chosen], end[chosen], kind[chosen], track[chosen], len(chosen)
            if not count:
                return
        self._rows += count
        if self._rows >> 21 != (self._rows - count) >> 21:
            _check_memory(self.name, self._rows)
        names, parts = self._names, self._parts
        parts["kind"].append(kind)
        parts["start"].append(start)
        parts["end"].append(end)
        parts["name"].append(np.fromiter([names[event.name] for event in spans], np.int32, count))
        parts["track"].append(track)
        # Python functions are most of many recordings and have none of the fields asked for below.
        told = np.flatnonzero(kind != gpu_events.PYTHON)
        args = [spans[row].args or _NO_ARGS for row in told.tolist()]
        self._id_columns(args, told, kind[told], count)
        self._device_columns([spans[row] for row in told.tolist()], args, told, kind[told], count)

    def _id_columns(self, args: list[Args], told: Array, kind: Array, count: int) -> None:
        correlation = np.full(count, NONE, np.int64)
        external = np.full(count, NONE, np.int64)
        correlation[told] = columns.id_column([arg.correlation for arg in args], self._odd)
        # On a runtime call the id would say nothing that its correlation id does not.
        asked = np.flatnonzero(kind != gpu_events.RUNTIME)
        named = [args[row] for row in asked.tolist()]
        found = columns.id_column([arg.external for arg in named], self._odd)
        if bool((found == NONE).any()):
            old = columns.id_column([arg.external_2021 for arg in named], self._odd)
            found = np.where(found == NONE, old, found)
        external[told[asked]] = found
        self._parts["correlation"].append(correlation)
        self._parts["external"].append(external)

    def _origin_columns(self, spans: list[Event]) -> tuple[Array, Array]:
        """Kind and track of each. They depend on three fields that repeat, so each combination is looked at once."""
        origins = self._origins
        codes = np.fromiter([origins[event.cat, event.pid, event.tid] for event in spans], np.int32, len(spans))
        if len(origins) > len(self._kinds):
            for category, process, thread in list(origins)[len(self._kinds) :]:
                self._kinds.append(gpu_events.CATEGORIES.get(category.lower(), gpu_events.OTHER))
                self._track_codes.append(self._tracks[process, thread])
        return np.array(self._kinds, np.int8)[codes], np.array(self._track_codes, np.int32)[codes]

    def _device_columns(self, spans: list[Event], args: list[Args], told: Array, kind: Array, count: int) -> None:
        device = np.full(count, -1, np.int32)
        stream = np.full(count, -1, np.int32)
        detail = np.full(count, -1, np.int32)
        size = np.full(count, -1, np.int64)
        graph = np.zeros(count, np.bool_)
        devices, streams, details = self._devices, self._streams, self._details
        gpu = np.flatnonzero(kind < gpu_events.GPU_KINDS)
        at = told[gpu]
        pairs = [(spans[row], args[row]) for row in gpu.tolist()]
        device[at] = [devices[event.pid if arg.device is None else arg.device] for event, arg in pairs]
        stream[at] = [streams[event.tid if arg.stream is None else arg.stream] for event, arg in pairs]
        detail[at] = [
            -1 if arg.grid is NOTHING else details[b"%b x %b" % (bytes(arg.grid)[:80], bytes(arg.block)[:80])]
            for _, arg in pairs
        ]
        size[at] = [arg.bytes if type(arg.bytes) is int and 0 <= arg.bytes < 2**63 else -1 for _, arg in pairs]
        graph[at] = [bool(arg.graph_node) for _, arg in pairs]
        operators = np.flatnonzero(kind == gpu_events.OPERATOR)
        detail[told[operators]] = [
            -1 if (dims := args[row].dims) is NOTHING else details[bytes(dims)[:_DETAIL_LIMIT]]
            for row in operators.tolist()
        ]
        parts = self._parts
        parts["device"].append(device)
        parts["stream"].append(stream)
        parts["detail"].append(detail)
        parts["bytes"].append(size)
        parts["graph"].append(graph)

    def finish(self, reader: Reader) -> Events:
        if self._bad_times:
            self.lost.add(self._bad_times, f"{plural(self._bad_times, 'event')} without a readable time")
        if self._no_length:
            self.lost.add(0, f"{plural(self._no_length, 'event')} without a readable duration, taken as 0")
        if self._negative:
            self.lost.add(0, f"{plural(self._negative, 'event')} with a negative duration, taken as 0")
        empty = {**columns.DTYPES, "graph": np.bool_}
        arrays = {}
        for column, found in self._parts.items():
            arrays[column] = np.concatenate(found) if found else np.empty(0, empty.get(column, np.int64))
            found.clear()
        track_codes, tracks = _as_text(self._tracks, lambda key: (_text(key[0]), _text(key[1])))
        device_codes, devices = _as_text(self._devices, _text)
        stream_codes, streams = _as_text(self._streams, _text)
        facts, base = _facts(reader)
        return Events(
            source=self.name,
            kind=arrays["kind"],
            name=arrays["name"],
            start=arrays["start"],
            end=arrays["end"],
            track=_recode(arrays["track"], track_codes),
            correlation=arrays["correlation"],
            external=arrays["external"],
            device=_recode(arrays["device"], device_codes),
            stream=_recode(arrays["stream"], stream_codes),
            detail=arrays["detail"],
            bytes=arrays["bytes"],
            graph_nodes=arrays["graph"] if bool(arrays["graph"].any()) else None,
            names=[columns.clean(name) for name in self._names],
            tracks=tracks,
            devices=devices,
            streams=streams,
            details=[columns.clean(text.decode("utf-8", "replace")) for text in self._details],
            base_ns=_origin(arrays["start"], base),
            total_events=self.total,
            facts=facts,
            lost=self.lost,
        )


def _text(value: Any) -> str:
    return "" if value is None else columns.clean(str(value), 200)


def _as_text(interner: Interner, convert: Callable[[Any], Any]) -> tuple[Array, list[Any]]:
    """Codes of values that read the same (5555 and "5555") become one."""
    merged = Interner()
    codes = np.fromiter((merged[convert(key)] for key in interner), np.int32, len(interner))
    return codes, list(merged)


def _recode(column: Array, codes: Array) -> Array:
    if not len(codes):
        return column.astype(np.int32)
    return np.where(column < 0, -1, codes[column]).astype(np.int32)


def _origin(start: Array, base: int | None) -> int | None:
    """What must be added to get unix time; None when the clock's origin is not known."""
    if base:
        return base
    # Files without a base hold unix times; anything before 2001 is some other clock (boot time, zero-based).
    return 0 if len(start) and int(start.min()) > 10**18 else None


#: The only header fields that are looked at. Everything else (environment, user, paths) stays where it is.
_VERSIONS = ("schemaVersion", "cupti_version", "cuda_runtime_version", "cuda_driver_version", "roctracer_version",
             "hip_runtime_version", "hip_driver_version", "with_stack", "record_shapes", "profile_memory")  # fmt: skip


def _facts(reader: Reader) -> tuple[dict[str, Any], int | None]:
    found: dict[str, msgspec.Raw] = {}
    tail = reader.tail.lstrip(b"] \r\n\t").lstrip(b", \r\n\t")
    for text in (reader.header, b"{" + tail):
        try:
            found.update(msgspec.json.decode(text.removeprefix(b"\xef\xbb\xbf"), type=dict[str, msgspec.Raw]))
        except (msgspec.DecodeError, RecursionError):
            continue
    facts: dict[str, Any] = {}
    for key in _VERSIONS:
        value = _small(found.get(key))
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            facts[key] = value
    devices = _small(found.get("deviceProperties"))
    if isinstance(devices, list):
        named = [d for d in devices if isinstance(d, dict)]
        facts["devices"] = [columns.clean(str(d.get("name") or "unnamed"), 80) for d in named][:64]
    distributed = _small(found.get("distributedInfo"))
    if isinstance(distributed, dict):
        for key in ("rank", "world_size"):
            if isinstance(distributed.get(key), int):
                facts[key] = distributed[key]
        if isinstance(distributed.get("backend"), str):
            facts["backend"] = columns.clean(distributed["backend"], 40)
    match = _BASE.search(reader.header) or _BASE.search(tail)
    base = int(match[1]) if match else None
    return facts, base if base is not None and base < 2**62 else None


def _small(raw: msgspec.Raw | None) -> Any:
    if raw is None or len(bytes(raw)) > 1 << 20:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _check_memory(name: str, rows: int) -> None:
    import psutil

    # About 70 bytes a row in columns, twice that while they are joined.
    if psutil.virtual_memory().available < 150 * rows // 2:
        raise UsageError(
            f"{name} has more than {rows:,} events, too many for this machine's memory",
            fix="cut it with --window START-END (milliseconds from its beginning)",
        )
