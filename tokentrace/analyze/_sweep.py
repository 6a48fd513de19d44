"""Own time: every instant of a request belongs to one span, the active one nearest the chip, or to none.

Envelopes, layer 1 and spans of no length own nothing. Among active spans of one layer the one that started last owns
the instant. So own times and what is left over add up to the request's wall time, exactly, in integer nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tokentrace.analyze._passes import NONE, PassView
from tokentrace.model import DOWN, Trace
from tokentrace.wording import listed

Ints = npt.NDArray[np.int64]
#: Layer and direction.
Place = tuple[int, str]


@dataclass(slots=True)
class Sweep:
    """`owner[i]` is the row that owns the time from `edges[i]` to `edges[i + 1]`, NONE for nobody."""

    edges: Ints
    owner: Ints

    @property
    def lengths(self) -> Ints:
        return np.diff(self.edges)

    @property
    def unattributed_ns(self) -> int:
        return int(self.lengths[self.owner == NONE].sum())

    def own_by_row(self) -> dict[int, int]:
        """Own time of each row that has any, ns."""
        owned = self.owner != NONE
        rows, inverse = np.unique(self.owner[owned], return_inverse=True)
        total = np.zeros(len(rows), np.int64)
        np.add.at(total, inverse, self.lengths[owned])
        return dict(zip(rows.tolist(), total.tolist(), strict=True))


def sweep(trace: Trace, view: PassView) -> Sweep:
    """Give every instant of the pass's request to a span."""
    low, high = view.start_ns, view.end_ns
    rows: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    for row in view.rows:
        start, end = max(trace.start_ns[row], low), min(trace.end_ns[row], high)
        if end > start and trace.layer[row] >= 2 and row not in trace.envelopes:
            rows.append(row)
            starts.append(start)
            ends.append(end)
    edges = np.unique(np.array([*starts, *ends, low, high], np.int64))
    owner = np.full(max(0, len(edges) - 1), NONE, np.int64)
    # Painted far from the chip first, then in order of start, the longer first: what is painted last owns the time.
    order = sorted(range(len(rows)), key=lambda i: (-trace.layer[rows[i]], starts[i], -ends[i], rows[i]))
    first = np.searchsorted(edges, np.array(starts, np.int64)).tolist()
    last = np.searchsorted(edges, np.array(ends, np.int64)).tolist()
    for index in order:
        owner[first[index] : last[index]] = rows[index]
    return Sweep(edges, owner)


def direction_of(trace: Trace, row: int) -> str:
    """The span's direction, or that of what it is part of; down where nobody says."""
    while row > 0:
        if trace.direction[row]:
            return trace.direction[row]
        row = trace.parent[row]
    return DOWN


def by_place(trace: Trace, own: dict[int, int]) -> dict[Place, int]:
    """Own time by layer and direction, ns."""
    found: dict[Place, int] = {}
    for row, spent in own.items():
        place = trace.layer[row], direction_of(trace, row)
        found[place] = found.get(place, 0) + spent
    return found


@dataclass(slots=True)
class Gap:
    """Time that no span owns: between which spans, and which envelope was open around it."""

    start_ns: int  # after the request's start
    length_ns: int
    before: str
    after: str
    around: str

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def gaps(trace: Trace, view: PassView, found: Sweep, count: int = 5) -> list[Gap]:
    """The longest stretches without an owner, longest first."""
    free = found.owner == NONE
    if not len(free):
        return []
    turns = np.flatnonzero(np.diff(np.concatenate(([0], free.astype(np.int8), [0]))))
    pairs = [(int(a), int(b)) for a, b in zip(turns[::2], turns[1::2], strict=True)]
    pairs.sort(key=lambda pair: int(found.edges[pair[0]] - found.edges[pair[1]]))
    holders = [row for row in view.rows if row in trace.envelopes]
    result = []
    for first, last in pairs[:count]:
        start, end = int(found.edges[first]), int(found.edges[last])
        before = trace.names[trace.name[int(found.owner[first - 1])]] if first else "the start"
        after = trace.names[trace.name[int(found.owner[last])]] if last < len(found.owner) else "the end"
        result.append(Gap(start - view.start_ns, end - start, before, after, _around(trace, view, holders, start, end)))
    return result


def _around(trace: Trace, view: PassView, holders: list[int], start: int, end: int) -> str:
    """The envelope nearest the chip, then the shortest, that covers at least half of this time. Where it does not cover
    all of it, those beside it that hold the rest are named too: a wait and the stream behind it."""

    def covered(row: int) -> int:
        return min(end, trace.end_ns[row]) - max(start, trace.start_ns[row])

    wide = [row for row in holders if 2 * covered(row) >= end - start]
    if not wide:
        return trace.names[trace.name[max(view.row, 0)]]
    best = min(wide, key=lambda row: (trace.layer[row], trace.end_ns[row] - trace.start_ns[row]))
    beside = [best]
    if 20 * covered(best) < 19 * (end - start):
        for row in holders:
            like = trace.parent[row] == trace.parent[best] and trace.layer[row] == trace.layer[best]
            if row != best and like and 20 * covered(row) >= end - start:
                beside.append(row)
    beside.sort(key=lambda row: trace.start_ns[row])
    return listed([trace.names[trace.name[row]] for row in beside])
