"""Profiler events as columns: one row an event that has a start and a duration, whatever tool recorded it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentrace.gpu_events import ANNOTATION, ENVELOPE, KERNEL, OPERATOR, PYTHON, RUNTIME

Array = NDArray[Any]

HOST_KINDS = (OPERATOR, RUNTIME, PYTHON, ANNOTATION)

#: Calls so long before a window are still looked for when something in the window has their id.
LOOK_BACK_NS = 10 * 10**9

NONE = -(2**63)  # "no such id" in an id column; ids that are not 64-bit integers get codes just above it

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str, limit: int = 1 << 16) -> str:
    """The text without characters that could steer a terminal or break an encoder; cut at `limit`."""
    return _CONTROL.sub("\ufffd", text[:limit])


def codes_in(column: Array) -> list[int]:
    """The codes (-1 and up) that occur in a column, in order."""
    found: list[int] = (np.flatnonzero(np.bincount(column + 1)) - 1).tolist()
    return found


class Interner(dict[Any, int]):
    """value -> small code, in the order of first sight."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


@dataclass(slots=True)
class Lost:
    """What could not be read. `events` counts those that were seen to be damaged; `torn`: nobody knows how much more is
    missing, as where an end was cut off."""

    events: int = 0
    reasons: list[str] = field(default_factory=list)
    torn: bool = False

    def add(self, events: int, reason: str, *, torn: bool = False) -> None:
        self.events += events
        self.torn |= torn
        if reason not in self.reasons:
            self.reasons.append(reason)

    def tears(self, rows: int) -> bool:
        """Is so much missing beside these rows that a silence in them means nothing? An end that was cut off may have
        held anything (profilers write kernels last); of single damaged events it takes more than one in a hundred."""
        return self.torn or 100 * self.events > max(rows, 1)

    def as_dict(self) -> dict[str, Any]:
        return {"events": self.events, "reason": "; ".join(self.reasons)}


@dataclass(slots=True)
class Events:
    """The rows of one recording (one process, one rank). All arrays have one length; times are ns as recorded.

    `track` indexes `tracks` (process, thread as text), `name` indexes `names`, `device` indexes `devices`,
    `detail` indexes `details` (input shapes of operators, "grid x block" of kernels; -1 none).
    `correlation` and `external` are NONE where absent.
    """

    source: str
    kind: Array  # int8
    name: Array  # int32
    start: Array  # int64
    end: Array  # int64
    track: Array  # int32
    correlation: Array  # int64
    external: Array  # int64
    device: Array  # int32, -1 on the host
    stream: Array  # int32 code of `streams`, -1 on the host
    detail: Array  # int32
    bytes: Array  # int64, -1 unknown
    names: list[str]
    tracks: list[tuple[str, str]]
    devices: list[str]
    streams: list[str]
    details: list[str]
    base_ns: int | None = None  # add to get unix time; None: the clock's origin is unknown
    total_events: int = 0  # complete events of any phase in the file
    facts: dict[str, Any] = field(default_factory=dict)
    lost: Lost = field(default_factory=Lost)
    window_begin: int = -(2**62)  # calls before it are kept only for what they launched
    graph_nodes: Array | None = None  # bool: kernel that says it is a graph node

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, *kinds: int) -> Array:
        """Row numbers of these kinds, in file order."""
        mask = self.kind == kinds[0]
        for kind in kinds[1:]:
            mask |= self.kind == kind
        return np.flatnonzero(mask)

    def names_matching(self, pattern: re.Pattern[str]) -> Array:
        """Bool per name: does the pattern match it?"""
        return np.fromiter((pattern.match(name) is not None for name in self.names), np.bool_, len(self.names))

    def names_with(self, pattern: re.Pattern[str]) -> Array:
        """Bool per name: is the pattern found anywhere in it?"""
        return np.fromiter((pattern.search(name) is not None for name in self.names), np.bool_, len(self.names))

    def select(self, rows: Array) -> None:
        """Keep only these rows."""
        for column in COLUMNS:
            setattr(self, column, getattr(self, column)[rows])
        if self.graph_nodes is not None:
            self.graph_nodes = self.graph_nodes[rows]

    @property
    def silent(self) -> str:
        """Why a device may have been at work where no row shows it, "" when the rows are all there was. Any event that
        was lost may have been a kernel, so it is the kernels that the lost ones are measured by."""
        if self.lost.tears(int((self.kind == KERNEL).sum()) or len(self)):
            return "a part of the recording is missing"
        return "graphs ran whose kernels were not recorded" if self.facts.get("graph_traces") else ""

    def cut(self, begin: int, end: int) -> None:
        """Make this a window: what goes on behind its end is cut off there, so that a step or a kernel that reaches out
        of the window does not lengthen it."""
        self.window_begin = begin
        self.end = np.maximum(np.minimum(self.end, end), self.start)

    def inside(self) -> Array:
        """Rows that count for the length of the recording: no envelopes, and of a window no calls before it."""
        return np.flatnonzero((self.kind != ENVELOPE) & (self.start >= self.window_begin))

    def absolute(self, time_ns: int) -> int:
        return time_ns + (self.base_ns or 0)


COLUMNS = (
    "kind",
    "name",
    "start",
    "end",
    "track",
    "correlation",
    "external",
    "device",
    "stream",
    "detail",
    "bytes",
)


def id_column(values: list[Any], odd: dict[Any, int]) -> Array:
    """Ids as int64. Numbers in strings count as numbers; anything else gets a stable code through `odd`."""
    try:
        return np.array(values, np.int64) if float not in set(map(type, values)) else _odd_ids(values, odd)
    except (TypeError, ValueError, OverflowError):
        return _odd_ids(values, odd)


def _odd_ids(values: list[Any], odd: dict[Any, int]) -> Array:
    return np.fromiter((_one_id(value, odd) for value in values), np.int64, len(values))


def _one_id(value: Any, odd: dict[Any, int]) -> int:
    if value is None:
        return NONE
    if isinstance(value, str):
        text = value.strip()
        if text.lstrip("-").isdecimal() and len(text) < 40:
            value = int(text)
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and NONE // 2 < value < 2**63:
        return value
    return odd.setdefault(value, NONE + 1 + len(odd))


#: Types of the columns that are not int64.
DTYPES = {"kind": np.int8, "name": np.int32, "track": np.int32, "device": np.int32, "stream": np.int32,
          "detail": np.int32}  # fmt: skip
_ABSENT = {"correlation": NONE, "external": NONE, "device": -1, "stream": -1, "detail": -1, "bytes": -1}


class Parts:
    """Blocks of rows from a table-like source, joined into Events at the end.

    A block gives arrays for `start`, `end` and what else it has; names, tracks, devices and streams are given as
    codes of this object's interners.
    """

    def __init__(self) -> None:
        self.names, self.tracks, self.devices = Interner(), Interner(), Interner()
        self.streams, self.details = Interner(), Interner()
        self._blocks: dict[str, list[Array]] = {column: [] for column in COLUMNS}
        self.rows = 0

    def add(self, kind: int | Array, start: Array, end: Array, **given: Array) -> None:
        count = len(start)
        self.rows += count
        block = {"kind": np.full(count, kind, np.int8) if isinstance(kind, int) else kind, "start": start,
                 "end": np.maximum(start, end), **given}  # fmt: skip
        for column in COLUMNS:
            values = block[column] if column in block else np.full(count, _ABSENT[column], np.int64)
            self._blocks[column].append(values.astype(DTYPES.get(column, np.int64)))

    def finish(self, source: str, **more: Any) -> Events:
        def joined(column: str) -> Array:
            found = self._blocks[column]
            return np.concatenate(found) if found else np.empty(0, DTYPES.get(column, np.int64))

        arrays: dict[str, Any] = {column: joined(column) for column in COLUMNS}
        return Events(
            source=source,
            **arrays,
            names=[clean(str(name)) for name in self.names],
            tracks=[(str(process), str(thread)) for process, thread in self.tracks] or [("", "")],
            devices=[clean(str(device), 200) for device in self.devices],
            streams=[clean(str(stream), 200) for stream in self.streams],
            details=[clean(str(detail)) for detail in self.details],
            total_events=self.rows,
            **more,
        )
