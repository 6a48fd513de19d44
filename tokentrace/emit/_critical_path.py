"""How deep Jaeger's critical path may go before a browser's stack ends.

Jaeger's UI walks the path with one call inside the other: from a span into the child that ended last, from there back
to its parent and into the sibling before it. A headless Chromium ended after 5,900 of these calls, and the page then
says that the path cannot be computed. Spans of the kinds PRODUCER and CONSUMER are left off the path, with all that is
below them; that is how a trace of many operators keeps one, down to a level that fits.
"""

from __future__ import annotations

from bisect import bisect_left

from tokentrace.model import KIND_CONSUMER, Trace

#: Of 5,900 in the browser that was tried; others have less room.
MOST_CALLS = 4_000
#: Jaeger's names of kinds that its path leaves out: https://opentelemetry.io/docs/specs/otel/trace/api/#spankind
_BESIDE = (4, KIND_CONSUMER)


def beyond(trace: Trace, most: int = MOST_CALLS) -> tuple[int, list[int]]:
    """(level, rows): spans below this level (the root is 0) are too many for the path, and these rows are the topmost
    of them. Without rows everything fits."""
    depth = _depths(trace)
    deepest = max(depth, default=0)
    # A further level never makes the path shorter: what is visited without it is visited with it. Levels are tried from
    # 1 on, so the place of the first that is too many is the last that fits.
    level = bisect_left(range(1, deepest + 1), True, key=lambda level: calls(trace, depth, level) > most)
    rows = [row for row, at in enumerate(depth) if at == level + 1]
    return level, rows


def _depths(trace: Trace) -> list[int]:
    """The level of each row that can be on the path, -1 for what is left out."""
    depth: list[int] = []
    for row, parent in enumerate(trace.parent):  # parents come before their children
        beside = parent >= 0 and (depth[parent] < 0 or trace.kinds.get(row, 1) in _BESIDE)
        depth.append(-1 if beside else 0 if parent < 0 else depth[parent] + 1)
    return depth


def calls(trace: Trace, depth: list[int], level: int) -> int:
    """How often Jaeger's function calls itself on spans down to `level`. Times are its whole microseconds."""
    children: dict[int, list[tuple[int, int]]] = {}
    for row, at in enumerate(depth):
        if 0 < at <= level:
            children.setdefault(trace.parent[row], []).append((trace.end_ns[row] // 1000, row))
    for ends in children.values():
        ends.sort(key=lambda pair: pair[0])
    count, row, until = 0, 0, -1
    while row >= 0:
        count += 1
        ends = children.get(row, [])
        fitting = len(ends) if until < 0 else bisect_left(ends, until, key=lambda pair: pair[0])
        if fitting:
            # Of several that ended in the same microsecond the first one.
            row, until = ends[bisect_left(ends, ends[fitting - 1][0], key=lambda pair: pair[0])][1], -1
        else:
            row, until = trace.parent[row], trace.start_ns[row] // 1000
    return count
