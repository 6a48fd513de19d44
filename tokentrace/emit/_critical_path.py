"""How deep Jaeger's critical path goes, as its page works it out.

The walk is one call inside the other: from a span into the child that ended last, from there back to its parent and
into the child that ended before that one began. A headless Chromium ended after 5,900 of these calls, and the page
then says that the path cannot be computed. Left out is a consumer below a producer, with all that is below it; a span
outside its parent is cut to it, or dropped when nothing is left. Read in jaeger-ui's source: `CriticalPath/index.ts`
and `utils/` beside it.

Times are whole microseconds, and there are two ways to them: a Jaeger file of ours has both ends rounded down; of what
came over OTLP a Jaeger rounds the start and the length down. Where one span begins as another one ends, the second way
takes more calls: only what ended before the beginning is gone into.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tokentrace.model import KIND_CONSUMER, KIND_PRODUCER, Trace

#: Of 5,900 in the browser that was tried; others have less room.
MOST_CALLS = 4_000
#: The two ways to whole microseconds.
WAYS = (FILE, OTLP) = ("file", "otlp")

_Column: TypeAlias = npt.NDArray[Any]


def fitting_level(trace: Trace, most: int = MOST_CALLS) -> tuple[int, list[int]]:
    """(level, rows): spans below this level (the root is 0) are too many for the path, and these rows are the topmost
    of them. Without rows everything fits."""
    levels = Levels(trace)
    walks = [Walk(trace, way, levels) for way in WAYS]
    depth = walks[0].depth
    deepest = max(depth, default=0)
    # A further level never makes the path shorter: what is visited without it is visited with it. Levels are tried from
    # 1 on, so the place of the first that is too many is the last that fits.
    level = bisect_left(
        range(1, deepest + 1), True, key=lambda level: any(walk.calls(level, most) > most for walk in walks)
    )
    return level, [row for row, at in enumerate(depth) if at == level + 1]


class Levels:
    """The rows of a trace by their level below the root; both ways to microseconds start from it."""

    def __init__(self, trace: Trace) -> None:
        self.start_ns, self.end_ns = _array(trace.start_ns), _array(trace.end_ns)
        self.parent = np.array(trace.parent, dtype=np.int64)
        levels: list[int] = []
        for parent in trace.parent:  # parents come before their children
            levels.append(levels[parent] + 1 if parent >= 0 else 0)
        self.level = np.array(levels, dtype=np.int64)
        by_level = np.argsort(self.level, kind="stable")
        borders = np.searchsorted(self.level[by_level], np.arange(1, max(levels, default=0) + 2))
        self.below_root = np.split(by_level, borders)[1:-1]
        kinds = trace.kinds
        consumers = [row for row, kind in kinds.items() if kind == KIND_CONSUMER]
        self.beside = [row for row in consumers if kinds.get(trace.parent[row]) == KIND_PRODUCER]


class Walk:
    """The spans that can be on the path: `depth` is the level of each row, -1 for what is left out."""

    def __init__(self, trace: Trace, way: str, levels: Levels | None = None) -> None:
        levels = levels or Levels(trace)
        start, above = levels.start_ns // 1000, levels.parent
        end = levels.end_ns // 1000 if way == FILE else start + (levels.end_ns - levels.start_ns) // 1000
        depth = self._cut(levels, start, end)
        # The children of all rows, one row's behind the other's: by end, the one that ended last at the end. Of several
        # that ended in one microsecond that is the one which began first, and then the first row.
        rows = np.flatnonzero(depth > 0)[::-1]
        rows = rows[np.lexsort((-start[rows], end[rows], above[rows]))]
        self._children, self._ends = rows.tolist(), end[rows].tolist()
        self._first = np.searchsorted(above[rows], np.arange(len(depth) + 1)).tolist()
        self.parent, self.start, self.depth = trace.parent, start.tolist(), depth.tolist()

    @staticmethod
    def _cut(levels: Levels, start: _Column, end: _Column) -> _Column:
        """Cuts, level by level, what lies outside its parent; when nothing of it is inside, it is left out."""
        kept = np.ones(len(start), dtype=bool)
        kept[levels.beside] = False
        for rows in levels.below_root:
            holders = levels.parent[rows]
            low, high = start[holders], end[holders]
            outside = np.where(start[rows] >= low, start[rows] >= high, end[rows] <= low)
            kept[rows] &= kept[holders] & ~outside.astype(bool)
            start[rows], end[rows] = np.maximum(start[rows], low), np.minimum(end[rows], high)
        return np.where(kept, levels.level, -1)

    def calls(self, level: int, most: int = 2**63) -> int:
        """How often Jaeger's function calls itself on spans down to `level`. Stops counting beyond `most`."""
        count, row = 0, 0
        until: int | None = None  # gone into is what ended before it
        while row >= 0 and count <= most:
            count += 1
            first = fitting = self._first[row]
            if self.depth[row] < level:
                fitting = self._first[row + 1]
                if until is not None:
                    fitting = bisect_left(self._ends, until, first, fitting)
            if fitting > first:
                row, until = self._children[fitting - 1], None
            else:
                row, until = self.parent[row], self.start[row]
        return count


def _array(times_ns: list[int]) -> _Column:
    try:
        return np.array(times_ns, dtype=np.int64)
    except OverflowError:  # of another program: no time of this world
        return np.array(times_ns, dtype=object)
