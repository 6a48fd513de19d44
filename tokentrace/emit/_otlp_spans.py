"""Spans as a file gives them, kept in the columns of a trace from the start, and put in order at its end.

A run may have a million spans. An object with its dictionaries for each, beside the trace that is made of them, takes
more memory than the trace does.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter, lt
from typing import Any, NamedTuple, TypeVar

from tokentrace.model import KIND_INTERNAL, STATUS_UNSET, Event, Link, Trace

NOTE = "tokentrace.note"
_NO_PARENT = "its parent is not in the file"
_HELD_TOGETHER = "the file holds several spans without a parent; this span holds them together"

_Item = TypeVar("_Item")


class Rare(NamedTuple):
    """What few spans have, and a Trace keeps by row."""

    kind: int = KIND_INTERNAL
    status: tuple[int, str] = (STATUS_UNSET, "")
    envelope: bool = False
    events: list[Event] | None = None
    links: list[Link] | None = None


#: Of a span that has none of it.
PLAIN = Rare()


class Row(NamedTuple):
    """A span as read; `number` is its row in the trace that was written, -1 when the file does not say."""

    number: int
    span_id: int
    parent_id: int
    name: str
    layer: int
    start_ns: int
    end_ns: int
    process: str
    thread: int
    direction: str
    keys: tuple[str, ...]
    values: tuple[Any, ...]
    rare: Rare = PLAIN


class Spans:
    """The spans that came, in a trace that becomes a right one with `arrange`. A span id that comes again replaces."""

    def __init__(self) -> None:
        self.trace = Trace(1)
        self._row_of: dict[int, int] = {}  # by span id
        self._numbers = array("q")
        self._in_order = True  # as they were written: numbers from 0 on
        self._waiting: dict[int, int] = {}  # rows whose parent had not come before them, and its span id
        self._threads: dict[int, int] = {}  # one object for each number

    def __len__(self) -> int:
        return len(self._row_of)

    def add(self, found: Iterable[Row]) -> None:
        fresh = {row.span_id: row for row in found}
        for span_id in fresh.keys() & self._row_of.keys():
            self._replace(self._row_of[span_id], fresh.pop(span_id))
        if fresh:
            self._extend(sorted(fresh.values(), key=itemgetter(0)))

    def _extend(self, rows: Sequence[Row]) -> None:
        """Spans that are new, in the order of their numbers."""
        trace = self.trace
        first = len(trace)
        numbers, ids, parent_ids, names, layers, starts, ends, processes, threads, directions, keys, values, rare = zip(
            *rows, strict=True
        )
        fresh = array("q", numbers)  # raises before anything is changed
        before = self._numbers[-1] if first else -1
        self._in_order &= (first > 0 or numbers[0] == 0) and all(map(lt, (before, *numbers), numbers))
        self._numbers.extend(fresh)
        for row, (span_id, parent_id) in enumerate(zip(ids, parent_ids, strict=True), first):
            trace.parent.append(self._parent(row, parent_id))
            self._row_of[span_id] = row
        trace.name.extend(map(trace.intern_name, names))
        trace.layer.extend(layers)
        trace.start_ns.extend(starts)
        trace.end_ns.extend(ends)
        trace.span_id.extend(ids)
        trace.process.extend(processes)
        trace.thread.extend(map(self._threads.setdefault, threads, threads))
        trace.direction.extend(directions)
        trace.shape.extend(map(trace.intern_shape, keys))
        trace.values.extend(values)
        for row, more in enumerate(rare, first):
            if more is not PLAIN:
                self._set_rare(row, more)

    def _replace(self, at: int, row: Row) -> None:
        trace = self.trace
        self._in_order &= row.number == self._numbers[at]
        self._numbers[at] = row.number
        self._waiting.pop(at, None)
        trace.parent[at] = self._parent(at, row.parent_id)
        trace.name[at], trace.layer[at] = trace.intern_name(row.name), row.layer
        trace.start_ns[at], trace.end_ns[at] = row.start_ns, row.end_ns
        trace.process[at], trace.thread[at], trace.direction[at] = row.process, row.thread, row.direction
        trace.shape[at], trace.values[at] = trace.intern_shape(row.keys), row.values
        for rare in (trace.kinds, trace.statuses, trace.events, trace.links):
            rare.pop(at, None)
        trace.envelopes.discard(at)
        self._set_rare(at, row.rare)

    def _parent(self, at: int, parent_id: int) -> int:
        if not parent_id:
            return -1
        parent = self._row_of.get(parent_id, at)
        if parent >= at:
            self._waiting[at] = parent_id
        return parent

    def _set_rare(self, at: int, rare: Rare) -> None:
        trace = self.trace
        if rare.kind != KIND_INTERNAL:
            trace.kinds[at] = rare.kind
        if rare.status[0] != STATUS_UNSET:
            trace.statuses[at] = rare.status
        if rare.envelope:
            trace.envelopes.add(at)
        if rare.events:
            trace.events[at] = rare.events
        if rare.links:
            trace.links[at] = rare.links

    def arrange(self) -> int:
        """Parents before children, below one root: as written, or by start where the file does not say.

        Gives how many spans were left out, because they are their own ancestors."""
        trace = self.trace
        for row, parent_id in self._waiting.items():
            trace.parent[row] = self._row_of.get(parent_id, -1)
        left_out = 0
        waiting = set(self._waiting)
        if not self._in_order:
            order = self._order()
            left_out = len(trace) - len(order)
            waiting = _permute(trace, order, waiting)
        for row, parent in enumerate(trace.parent):
            if not row:
                trace.parent[row] = -1
            elif not 0 <= parent < row:
                trace.parent[row] = 0
                if row in waiting or parent > 0:
                    self._note(row)
        return left_out

    def _note(self, row: int) -> None:
        trace = self.trace
        if NOTE not in trace.shapes[trace.shape[row]]:
            trace.set_attributes(row, {NOTE: _NO_PARENT})

    def _order(self) -> list[int]:
        """Rows in their new order."""
        trace, numbers = self.trace, self._numbers
        rows = sorted(range(len(trace)), key=lambda row: (numbers[row], trace.start_ns[row]))
        if numbers[rows[0]] == 0:
            return rows
        children: dict[int, list[int]] = {}
        roots: list[int] = []
        for row in rows:
            parent = trace.parent[row]
            (children.setdefault(parent, []) if parent >= 0 and parent != row else roots).append(row)
        found = [] if len(roots) == 1 else [self._add_root()]
        waiting = roots[::-1]
        while waiting:
            row = waiting.pop()
            found.append(row)
            waiting += children.get(row, [])[::-1]
        return found

    def _add_root(self) -> int:
        """A trace of a part of a system has several tops; a Trace has one root."""
        trace = self.trace
        root = Row(
            number=-1,
            span_id=trace.ids.span_id(),
            parent_id=0,
            name="trace",
            layer=0,
            start_ns=min(trace.start_ns),
            end_ns=max(trace.end_ns),
            process="",
            thread=0,
            direction="",
            keys=(NOTE,),
            values=(_HELD_TOGETHER,),
            rare=Rare(envelope=True),
        )
        self.add([root])
        return self._row_of[root.span_id]


def _permute(trace: Trace, order: Sequence[int], waiting: set[int]) -> set[int]:
    """The rows named, in that order and no others; gives where those of `waiting` went."""
    place = {row: new for new, row in enumerate(order)}

    def moved(column: list[_Item]) -> list[_Item]:
        return [column[row] for row in order]

    def kept(rare: Mapping[int, _Item]) -> dict[int, _Item]:
        return {place[row]: item for row, item in rare.items() if row in place}

    trace.parent = [place.get(parent, -1) for parent in moved(trace.parent)]
    trace.name, trace.layer = moved(trace.name), moved(trace.layer)
    trace.start_ns, trace.end_ns = moved(trace.start_ns), moved(trace.end_ns)
    trace.span_id, trace.process, trace.thread = moved(trace.span_id), moved(trace.process), moved(trace.thread)
    trace.direction, trace.shape, trace.values = moved(trace.direction), moved(trace.shape), moved(trace.values)
    trace.kinds, trace.statuses = kept(trace.kinds), kept(trace.statuses)
    trace.events, trace.links = kept(trace.events), kept(trace.links)
    trace.envelopes = {place[row] for row in trace.envelopes if row in place}
    return {place[row] for row in waiting if row in place}
