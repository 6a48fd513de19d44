"""Brings a trace down to a number of spans that viewers can draw, and says what was folded.

Only what lies below a step's forward pass is folded first: equal siblings become one span with count, total, shortest
and longest. The prefill step and the first decode step keep the most detail. The layers above, compilations and power
stay whole until a very long reply leaves no other way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tokentrace.model import Link, Trace

BUDGET = 10_000
#: Detail of (prefill and first decode step, other steps): 0 all, 1 equal operators of a module merged, 2 equal modules
#: of all decoder layers merged, 3 nothing below the forward pass, 4 equal steps merged too.
_LEVELS = ((0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 3), (3, 3), (3, 4))
_LAYER_INDEX = re.compile(r"^layers\.(\d+)\.")
_WHOLE_SIBLINGS = 64


def fold(trace: Trace, budget: int = BUDGET) -> Trace:
    """The trace itself when it fits, else a copy of at most `budget` spans with the same root, ids and meta.

    `meta["folded"]` and the root's `tokentrace.folded.spans` say how many spans are inside others. Children still lie
    inside their parents.
    """
    if len(trace) <= budget:
        return trace
    best: Trace | None = None
    for first, rest in _LEVELS:
        best = _Folder(trace, first, rest).run()
        if len(best) <= budget:
            break
    assert best is not None
    return best


class _Folder:
    def __init__(self, trace: Trace, first: int, rest: int) -> None:
        self.trace, self.first, self.rest = trace, first, rest
        self.children = trace.children()
        self.out = Trace(trace.trace_id, trace.ids)
        self.out.processes.update(trace.processes)
        self.kept: dict[int, int] = {}
        self.seen_steps: set[tuple[int, str]] = set()

    def run(self) -> Trace:
        # Explicit stack: (rows merged into one span, parent in the copy, level)
        stack: list[tuple[list[int], int, int]] = [([0], -1, 0)]
        while stack:
            rows, parent, level = stack.pop()
            row = self._write(rows, parent)
            level = max(level, self._level(rows))
            pool = [child for one in rows for child in self.children[one]]
            groups = self._groups(pool, level)
            stack.extend((group, row, level) for group in reversed(groups))
        out, trace = self.out, self.trace
        alive = set(out.span_id)
        for row, new in self.kept.items():
            links = [link for link in trace.links.get(row, ()) if link.span_id in alive]
            if links:
                out.links[new] = [Link(link.span_id, link.attributes) for link in links]
        folded = len(trace) - len(out)
        out.meta = {**trace.meta, "folded": {"spans": folded, "before": len(trace)}}
        out.set_attributes(0, {"tokentrace.folded.spans": folded})
        return out

    def _level(self, rows: list[int]) -> int:
        trace = self.trace
        name = trace.names[trace.name[rows[0]]]
        if name != "step":
            return 0
        phase = str(trace.attributes(rows[0]).get("tokentrace.step.phase", ""))
        key = (self._pass_of(rows[0]), phase)
        level = self.rest if key in self.seen_steps else self.first
        self.seen_steps.add(key)
        return level

    def _pass_of(self, row: int) -> int:
        while self.trace.parent[row] > 0:
            row = self.trace.parent[row]
        return row

    def _groups(self, pool: list[int], level: int) -> list[list[int]]:
        trace = self.trace
        if self.rest >= 4 and len(pool) > _WHOLE_SIBLINGS:
            head, tail = pool[:_WHOLE_SIBLINGS], pool[_WHOLE_SIBLINGS:]
            return [[row] for row in head] + self._merge(tail, 5)
        if level <= 0:
            return [[row] for row in pool]
        if level >= 3:
            pool = [
                row for row in pool if trace.layer[row] > 4 and not _LAYER_INDEX.match(trace.names[trace.name[row]])
            ]
            return [[row] for row in pool]
        return self._merge(pool, level)

    def _merge(self, pool: Iterable[int], level: int) -> list[list[int]]:
        trace = self.trace
        found: dict[Any, list[int]] = {}
        for row in pool:
            name, layer = trace.names[trace.name[row]], trace.layer[row]
            key: Any = row
            if layer in (3, 4) or level >= 5:
                key = (name, layer)
            elif layer == 5 and level >= 2:
                key = (_LAYER_INDEX.sub("layers.*.", name), layer)
            found.setdefault(key, []).append(row)
        return list(found.values())

    def _write(self, rows: list[int], parent: int) -> int:
        trace = self.trace
        row = max(rows, key=lambda one: trace.end_ns[one] - trace.start_ns[one]) if len(rows) > 1 else rows[0]
        span = trace.span(row)
        start, end, name, attributes = span.start_ns, span.end_ns, span.name, span.attributes
        if len(rows) > 1:
            spent = [trace.end_ns[one] - trace.start_ns[one] for one in rows]
            start, end = min(trace.start_ns[one] for one in rows), max(trace.end_ns[one] for one in rows)
            numbers = [int(m[1]) for one in rows if (m := _LAYER_INDEX.match(trace.names[trace.name[one]]))]
            if numbers:
                name = _LAYER_INDEX.sub(f"layers.{min(numbers)}-{max(numbers)}.", name)
            attributes = {
                **attributes,
                "tokentrace.folded.count": len(rows),
                "tokentrace.folded.total_ns": sum(spent),
                "tokentrace.folded.min_ns": min(spent),
                "tokentrace.folded.max_ns": max(spent),
            }
        new = self.out.add(
            name,
            span.layer,
            start,
            end,
            parent,
            attributes,
            span_id=span.span_id,
            process=span.process,
            thread=span.thread,
            direction=span.direction,
            kind=span.kind,
            status=span.status,
            status_message=span.status_message,
            envelope=span.envelope,
            events=span.events,
        )
        self.kept[row] = new
        return new
