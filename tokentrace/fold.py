"""A trace reduced to what viewers take: at most `budget` spans, still one tree, and every fold says what it holds.

What goes first is what is deepest and most repeated: operators and kernels of later decode steps, then those of the
prefill and the first decode step, then modules; only when nothing else is left also steps, tokens and compiles. Two
ways of folding:

- siblings of one name, layer and thread become one span: `tokentrace.folded.count`, `.total_ns`, `.min_ns`, `.max_ns`;
  it has the attributes of the longest of them (its shapes) and reaches from the first to the last;
- what lies below a span is counted on it: `tokentrace.folded.spans`, `.below_ns`, `.top` (names with the most time).

The longest span of each layer in each pass, and spans with errors, stay as they are. The root has
`tokentrace.spans.recorded` and `tokentrace.spans.folded`. Own times must be worked out before folding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tokentrace.model import STATUS_ERROR, Link, Trace

BUDGET = 10_000
COUNT, TOTAL, MIN, MAX = (f"tokentrace.folded.{name}" for name in ("count", "total_ns", "min_ns", "max_ns"))
BELOW, BELOW_NS, TOP = (f"tokentrace.folded.{name}" for name in ("spans", "below_ns", "top"))
#: Attributes whose values add up when spans become one.
SUMMED = ("tokentrace.duration_ns", "tokentrace.op.self_ns", "tokentrace.op.flops", "tokentrace.kernel.bytes")
_OPERATORS = frozenset((3, 4))
_DEPTHS = (6, 5, 4, 3, 2, 1, 0)
_TOP_NAMES = 5
_MAX_ERRORS = 50


def fold(trace: Trace, budget: int = BUDGET, detail: bool = False) -> Trace:
    """The trace itself when it fits or `detail` is wanted, else a smaller one of at most `budget` spans.

    Trace id, ids of the spans that stay, processes and meta are kept; `meta["fold"]` has recorded, spans, folded.
    Raises ValueError when the budget is below 1.
    """
    if budget < 1:
        raise ValueError("a trace needs room for its root")
    recorded = len(trace)
    if detail or recorded <= budget:
        result = trace
    else:
        folder = _Folder(trace, budget)
        folder.run()
        result = _written(trace, folder)
    folded = recorded - len(result)
    result.meta["fold"] = {"recorded": recorded, "spans": len(result), "folded": folded, "budget": budget}
    result.set_attributes(0, {"tokentrace.spans.recorded": recorded, "tokentrace.spans.folded": folded})
    return result


@dataclass(slots=True)
class _Below:
    """What was folded into a span from below it: how many spans, the time of the topmost ones, that time by name."""

    spans: int = 0
    total_ns: int = 0
    names: dict[int, list[int]] = field(default_factory=dict)  # name -> [count, ns]


class _Folder:
    """Decides what is folded. `children` is the tree that is left, `target` where a span that is gone went."""

    def __init__(self, trace: Trace, budget: int) -> None:
        self.trace = trace
        self.budget = budget
        self.left = len(trace)
        self.children = trace.children()
        self.merged: dict[int, list[int]] = {}  # the span that stays -> all that became one
        self.below: dict[int, _Below] = {}
        self.target: dict[int, int] = {}
        self._rows_by_id: dict[int, int] = {}
        self.keep = self._kept()
        self.first, self.later = self._steps()

    def _kept(self) -> set[int]:
        """The longest span of each layer in each pass and spans with errors, with all that is above them."""
        trace = self.trace
        of_pass = [0] * len(trace)
        longest: dict[tuple[int, int], int] = {}
        for row in range(1, len(trace)):
            parent = trace.parent[row]
            of_pass[row] = row if parent == 0 or not trace.layer[row] else of_pass[parent]
            where = of_pass[row], trace.layer[row]
            best = longest.get(where)
            if best is None or self._length(row) > self._length(best):
                longest[where] = row
        errors = [row for row, (code, _) in trace.statuses.items() if code == STATUS_ERROR][:_MAX_ERRORS]
        kept = {0}
        for row in (*longest.values(), *errors):
            while row not in kept:
                kept.add(row)
                row = trace.parent[row]
        return kept

    def _steps(self) -> tuple[list[int], list[int]]:
        """Rows of steps, the last first: those whose detail is worth most (prefill, first decode) and the others."""
        trace = self.trace
        wanted = {index for index, name in enumerate(trace.names) if name == "step"}
        first: list[int] = []
        later: list[int] = []
        decoding: set[int] = set()
        rows = [r for r in range(len(trace)) if trace.name[r] in wanted and trace.layer[r] == 6]
        for row in sorted(rows, key=lambda r: trace.start_ns[r]):
            phase = trace.attributes(row).get("tokentrace.step.phase", "")
            parent = trace.parent[row]
            if phase != "prefill" and parent in decoding:
                later.append(row)
            else:
                first.append(row)
                if phase != "prefill":
                    decoding.add(parent)
        return first[::-1], later[::-1]

    def run(self) -> None:
        # One after the other until it fits; the root as a unit also holds what ran outside of any step.
        for _ in self._stages():
            if self.left <= self.budget:
                return

    def _stages(self) -> Iterator[None]:
        for step in self.later:
            self._merge(step, _OPERATORS)
            yield
        for step in self.later:
            self._cut(step, _OPERATORS, 0)
            yield
        for step in (*self.first, 0):
            self._merge(step, _OPERATORS)
            yield
        for depth in _DEPTHS:
            for step in (*self.first, 0):
                self._cut(step, _OPERATORS, depth)
                yield
        modules = frozenset((5, 4, 3))
        for step in (*self.later, *self.first, 0):
            for row in list(self._within(step)):
                if self.trace.layer[row] == 5 and self.trace.layer[self.trace.parent[row]] == 6:
                    self._cut(row, modules, 0)
            yield
        self._merge(0, frozenset((2,)))
        yield
        self._merge(0, frozenset((7, 8)))
        yield
        for depth in _DEPTHS:
            self._cut(0, frozenset((2,)), depth)
            yield
        for step in (*self.later, *self.first):
            self._cut(step, frozenset((6, 5, 4, 3, 2)), 0)
            yield
        self._merge(0, frozenset(range(1, 9)))
        yield
        self._cut_deepest(self.keep)
        yield
        self._cut_deepest({0})
        yield

    def _length(self, row: int) -> int:
        return self.trace.end_ns[row] - self.trace.start_ns[row]

    def _within(self, top: int) -> Iterator[int]:
        """All that is left below a span, nearest first."""
        stack = [top]
        while stack:
            row = stack.pop()
            yield from self.children[row]
            stack.extend(self.children[row])

    def _merge(self, top: int, layers: frozenset[int]) -> None:
        """Below `top`, siblings of one name, layer, direction, process and thread become one."""
        trace = self.trace
        stack = [top]
        while stack:
            parent = stack.pop()
            groups: dict[tuple[Any, ...], list[int]] = {}
            whole: list[list[int]] = []
            for row in self.children[parent]:
                if trace.layer[row] not in layers or row in self.keep or row in trace.envelopes:
                    # What stays is a border: a span must not reach from before the forward pass to after it.
                    whole += groups.values()
                    groups = {}
                    continue
                key = (trace.name[row], trace.layer[row], trace.direction[row], trace.process[row], trace.thread[row])
                groups.setdefault(key, []).append(row)
            gone: set[int] = set()
            for rows in (*whole, *groups.values()):
                if len(rows) > 1:
                    self._join(rows)
                    gone.update(rows[1:])
            if gone:
                self.children[parent] = [row for row in self.children[parent] if row not in gone]
            stack.extend(self.children[parent])

    def _join(self, rows: list[int]) -> None:
        first = rows[0]
        merged = self.merged.setdefault(first, [first])
        for row in rows[1:]:
            merged += self.merged.pop(row, [row])
            self.children[first] += self.children[row]
            self.children[row] = []
            self.target[row] = first
            if row in self.below:
                _add_below(self.below.setdefault(first, _Below()), self.below.pop(row))
        self.left -= len(rows) - 1

    def _cut(self, top: int, layers: frozenset[int], depth: int) -> None:
        """Fold what lies more than `depth` spans of these layers below the first span that is of none of them."""
        stack = [(top, 0)]
        while stack:
            parent, level = stack.pop()
            stay = []
            for row in self.children[parent]:
                inside = self.trace.layer[row] in layers
                if inside and level >= depth and row not in self.keep:
                    self._absorb(row, parent)
                else:
                    stay.append(row)
                    stack.append((row, level + 1 if inside else 0))
            self.children[parent] = stay

    def _cut_deepest(self, kept: set[int]) -> None:
        """Fold one span after the other, the last first: when its turn comes nothing is left below it."""
        touched: set[int] = set()
        for row in range(len(self.trace) - 1, 0, -1):
            if self.left <= self.budget:
                break
            if row not in self.target and row not in kept:
                into = self._standing(self.trace.parent[row])
                touched.add(into)
                self.children[row] = []
                self._absorb(row, into)
        for row in touched - self.target.keys():
            self.children[row] = [child for child in self.children[row] if child not in self.target]

    def _standing(self, row: int) -> int:
        while row in self.target:
            row = self.target[row]
        return row

    def standing_id(self, span_id: int) -> int:
        """Id of the span that stands for this one now."""
        if not self._rows_by_id:
            self._rows_by_id = {own: row for row, own in enumerate(self.trace.span_id)}
        row = self._rows_by_id.get(span_id)
        return span_id if row is None else self.trace.span_id[self._standing(row)]

    def _absorb(self, top: int, into: int) -> None:
        """Fold a span with all below it into its parent; the caller takes it out of the parent's children."""
        below = self.below.setdefault(into, _Below())
        rows = [top, *self._within(top)]
        for row in rows:
            self.target[row] = into
            self.children[row] = []
            whole = self.merged.pop(row, [row])
            below.spans += len(whole)
            deeper = self.below.pop(row, None)
            if deeper:
                below.spans += deeper.spans
            if row == top:
                spent = sum(map(self._length, whole))
                below.total_ns += spent
                entry = below.names.setdefault(self.trace.name[row], [0, 0])
                entry[0] += len(whole)
                entry[1] += spent
        self.left -= len(rows)


def _add_below(target: _Below, more: _Below) -> None:
    target.spans += more.spans
    target.total_ns += more.total_ns
    for name, (count, spent) in more.names.items():
        entry = target.names.setdefault(name, [0, 0])
        entry[0] += count
        entry[1] += spent


def _written(trace: Trace, folder: _Folder) -> Trace:
    """The tree that is left, as a trace of its own."""
    result = Trace(trace.trace_id, trace.ids)
    result.processes = dict(trace.processes)
    result.meta = dict(trace.meta)
    stack = [(0, -1)]
    while stack:
        row, parent = stack.pop()
        rows = folder.merged.get(row, [row])
        attributes = trace.attributes(row) if len(rows) == 1 else _merged_attributes(trace, rows)
        if row in folder.below:
            attributes.update(_below_attributes(trace, folder.below[row]))
        status, message = trace.statuses.get(row, (0, ""))
        new = result.add(
            trace.names[trace.name[row]],
            trace.layer[row],
            min(trace.start_ns[r] for r in rows),
            max(trace.end_ns[r] for r in rows),
            parent,
            attributes,
            span_id=trace.span_id[row],
            process=trace.process[row],
            thread=trace.thread[row],
            direction=trace.direction[row],
            kind=trace.kinds.get(row, 1),
            status=status,
            status_message=message,
            envelope=row in trace.envelopes,
            events=trace.events.get(row),
            links=list(_links(trace, folder, rows)),
        )
        order = sorted(folder.children[row], key=lambda r: (trace.start_ns[r], r), reverse=True)
        stack.extend((child, new) for child in order)
    return result


def _merged_attributes(trace: Trace, rows: list[int]) -> dict[str, Any]:
    lengths = [trace.end_ns[r] - trace.start_ns[r] for r in rows]
    longest = rows[lengths.index(max(lengths))]
    found = trace.attributes(longest)
    for name in SUMMED:
        if name in found:
            values = (trace.attributes(r).get(name) for r in rows)
            found[name] = sum(v for v in values if isinstance(v, int))
    return {**found, COUNT: len(rows), TOTAL: sum(lengths), MIN: min(lengths), MAX: max(lengths)}


def _below_attributes(trace: Trace, below: _Below) -> dict[str, Any]:
    best = sorted(below.names.items(), key=lambda item: (-item[1][1], item[0]))[:_TOP_NAMES]
    top = [f"{trace.names[name]} ×{count} {spent} ns" for name, (count, spent) in best]
    return {BELOW: below.spans, BELOW_NS: below.total_ns, TOP: top}


def _links(trace: Trace, folder: _Folder, rows: Iterable[int]) -> Iterator[Link]:
    """Links lead to the span that stands for their target now."""
    if not trace.links:
        return
    seen: set[int] = set()
    for row in rows:
        for link in trace.links.get(row, ()):
            target = folder.standing_id(link.span_id)
            if target not in seen and len(seen) < _TOP_NAMES:
                seen.add(target)
                yield Link(target, link.attributes)
