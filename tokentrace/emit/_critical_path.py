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

from tokentrace.model import KIND_CONSUMER, KIND_INTERNAL, KIND_PRODUCER, Trace

#: Of 5,900 in the browser that was tried; others have less room.
MOST_CALLS = 4_000
#: The two ways to whole microseconds.
WAYS = (FILE, OTLP) = ("file", "otlp")


def fitting_level(trace: Trace, most: int = MOST_CALLS) -> tuple[int, list[int]]:
    """(level, rows): spans below this level (the root is 0) are too many for the path, and these rows are the topmost
    of them. Without rows everything fits."""
    walks = [Walk(trace, way) for way in WAYS]
    depth = walks[0].depth
    deepest = max(depth, default=0)
    # A further level never makes the path shorter: what is visited without it is visited with it. Levels are tried from
    # 1 on, so the place of the first that is too many is the last that fits.
    level = bisect_left(
        range(1, deepest + 1), True, key=lambda level: any(walk.calls(level, most) > most for walk in walks)
    )
    return level, [row for row, at in enumerate(depth) if at == level + 1]


class Walk:
    """The spans that can be on the path: `depth` is the level of each row, -1 for what is left out."""

    def __init__(self, trace: Trace, way: str) -> None:
        self.parent = trace.parent
        self.depth: list[int] = []
        start = self.start = [ns // 1000 for ns in trace.start_ns]
        if way == FILE:
            end = [ns // 1000 for ns in trace.end_ns]
        else:
            end = [us + (e - s) // 1000 for us, s, e in zip(start, trace.start_ns, trace.end_ns, strict=True)]
        self.end = end
        kinds, depth = trace.kinds, self.depth
        # Of each row its children as (end, -start, -row), the one that ended last at the end; of several that ended in
        # one microsecond that is the one which began first.
        self.children: dict[int, list[tuple[int, int, int]]] = {}
        for row, parent in enumerate(trace.parent):  # parents come before their children
            if parent < 0:
                depth.append(0)
                continue
            level = depth[parent] + 1
            pair = kinds.get(parent, KIND_INTERNAL), kinds.get(row, KIND_INTERNAL)
            if not level or pair == (KIND_PRODUCER, KIND_CONSUMER) or not self._cut(row, parent):
                depth.append(-1)
                continue
            depth.append(level)
            self.children.setdefault(parent, []).append((end[row], -start[row], -row))
        for ends in self.children.values():
            ends.sort()

    def _cut(self, row: int, parent: int) -> bool:
        """Cut what lies outside the parent. False when nothing of it is inside."""
        start, end = self.start, self.end
        low, high = start[parent], end[parent]
        if start[row] >= high if start[row] >= low else end[row] <= low:
            return False
        start[row], end[row] = max(start[row], low), min(end[row], high)
        return True

    def calls(self, level: int, most: int = 2**63) -> int:
        """How often Jaeger's function calls itself on spans down to `level`. Stops counting beyond `most`."""
        count, row = 0, 0
        until: int | None = None  # gone into is what ended before it
        while row >= 0 and count <= most:
            count += 1
            ends = self.children.get(row, []) if self.depth[row] < level else []
            fitting = len(ends) if until is None else bisect_left(ends, until, key=lambda child: child[0])
            if fitting:
                row, until = -ends[fitting - 1][2], None
            else:
                row, until = self.parent[row], self.start[row]
        return count
