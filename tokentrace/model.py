"""The data every other module speaks: Record (what a probe saw) and Trace (the stitched tree, in columns).

All times are integer nanoseconds since the unix epoch. Layers are numbered 8 (client request) to 1 (chip
power); 0 is the run itself (root and passes). A `Trace` keeps its spans in columns, so that 200,000 of them
are cheap; `Span` is a view of one row.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

AttributeValue: TypeAlias = (
    "str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float] | Sequence[bool]"
)
Attributes: TypeAlias = dict[str, Any]

# OTLP enum values, so that no table has to translate them.
KIND_INTERNAL, KIND_SERVER, KIND_CLIENT, KIND_PRODUCER, KIND_CONSUMER = 1, 2, 3, 4, 5
STATUS_UNSET, STATUS_OK, STATUS_ERROR = 0, 1, 2

DOWN, UP = "down", "up"

#: Values of the attribute `tokentrace.join`.
JOINS = ("traceparent", "request_id", "step", "correlation_id", "time")


@dataclass(slots=True)
class Event:
    """Something that happened at one instant inside a span."""

    name: str
    time_ns: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class Link:
    """A reference to another span of the same trace that is not the parent (kernel -> launch)."""

    span_id: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class Record:
    """One thing a probe saw, before its place in the tree is known. `stitch` turns records into a Trace.

    Parents are found in this order: `parent_id` (a span id that travelled with the request), `parent_key`
    (another record's `key`), the smallest record that encloses this one on the same process and thread,
    the step that encloses it in time, the request's own record, the pass.

    `flow=True` marks work that interleaves with other work of its thread (a coroutine, a phase of a request):
    it neither encloses others by time nor is enclosed by time; it needs a `parent_id`, `parent_key` or
    `request`. `envelope=True` marks a span that merely holds others together (a request, a handler): its own
    time counts as unattributed, never as work of its layer.
    """

    name: str
    layer: int
    start_ns: int
    end_ns: int
    attributes: Attributes = field(default_factory=dict)
    direction: str = ""
    process: str = ""  # key of Trace.processes, usually the pid as text
    thread: int = 0
    span_id: int = 0
    parent_id: int = 0
    key: str = ""
    parent_key: str = ""
    link_keys: tuple[str, ...] = ()
    request: str = ""
    join: str = ""
    flow: bool = False
    envelope: bool = False
    kind: int = KIND_INTERNAL
    status: int = STATUS_UNSET
    status_message: str = ""
    events: list[Event] = field(default_factory=list)


class IdSource:
    """Random trace and span ids, never zero; with a seed, the same ones each time (tests)."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed if seed is not None else os.urandom(16))

    def trace_id(self) -> int:
        return self._random.getrandbits(128) or 1

    def span_id(self) -> int:
        return self._random.getrandbits(64) or 1

    def span_ids(self, count: int) -> list[int]:
        bits = self._random.getrandbits
        return [bits(64) or 1 for _ in range(count)]


@dataclass(slots=True)
class Process:
    """A process spans come from: resource attributes by OpenTelemetry name (`process.pid`, `host.id`, …)."""

    key: str
    attributes: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class Span:
    """A view of one row of a Trace. `parent` is a row number, -1 for the root; `end_ns >= start_ns`."""

    row: int
    span_id: int
    name: str
    layer: int
    start_ns: int
    end_ns: int
    parent: int
    attributes: Attributes
    direction: str
    process: str
    thread: int
    kind: int
    status: int
    status_message: str
    envelope: bool
    events: list[Event]
    links: list[Link]

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class Trace:
    """One trace as columns: row i of every list belongs to span i. Row 0 is the root; parents precede children.

    Attributes of a row are `zip(shapes[shape[i]], values[i])`: rows with the same attribute names share one
    `shapes` entry, which is what makes columnar encoding possible. Events, links, kinds and statuses are rare
    and live in dictionaries by row. `meta` holds what a report needs beside the spans, JSON-able.
    """

    def __init__(self, trace_id: int = 0, ids: IdSource | None = None) -> None:
        self.ids = ids or IdSource()
        self.trace_id = trace_id or self.ids.trace_id()
        self.names: list[str] = []
        self.shapes: list[tuple[str, ...]] = []
        self.processes: dict[str, Process] = {}
        self.meta: dict[str, Any] = {}
        self.name: list[int] = []
        self.layer: list[int] = []
        self.start_ns: list[int] = []
        self.end_ns: list[int] = []
        self.parent: list[int] = []
        self.span_id: list[int] = []
        self.process: list[str] = []
        self.thread: list[int] = []
        self.direction: list[str] = []
        self.shape: list[int] = []
        self.values: list[tuple[Any, ...]] = []
        self.kinds: dict[int, int] = {}
        self.statuses: dict[int, tuple[int, str]] = {}
        self.envelopes: set[int] = set()
        self.events: dict[int, list[Event]] = {}
        self.links: dict[int, list[Link]] = {}
        self._name_index: dict[str, int] = {}
        self._shape_index: dict[tuple[str, ...], int] = {}

    def __len__(self) -> int:
        return len(self.name)

    def intern_name(self, name: str) -> int:
        index = self._name_index.get(name)
        if index is None:
            index = self._name_index[name] = len(self.names)
            self.names.append(name)
        return index

    def intern_shape(self, keys: tuple[str, ...]) -> int:
        index = self._shape_index.get(keys)
        if index is None:
            index = self._shape_index[keys] = len(self.shapes)
            self.shapes.append(keys)
        return index

    def add(
        self,
        name: str,
        layer: int,
        start_ns: int,
        end_ns: int,
        parent: int,
        attributes: Mapping[str, Any] | None = None,
        *,
        span_id: int = 0,
        process: str = "",
        thread: int = 0,
        direction: str = "",
        kind: int = KIND_INTERNAL,
        status: int = STATUS_UNSET,
        status_message: str = "",
        envelope: bool = False,
        events: list[Event] | None = None,
        links: list[Link] | None = None,
    ) -> int:
        """Append one span and return its row. `parent` is an earlier row, or -1 for the root (row 0 only).

        Raises ValueError when a second root is added, the parent is not an earlier row, or end < start.
        """
        row = len(self.name)
        if (parent < 0) != (row == 0) or parent >= row:
            raise ValueError(f"span {name!r} (row {row}) cannot have parent {parent}")
        if end_ns < start_ns:
            raise ValueError(f"span {name!r} ends {start_ns - end_ns} ns before it starts")
        attributes = attributes or {}
        self.name.append(self.intern_name(name))
        self.layer.append(layer)
        self.start_ns.append(start_ns)
        self.end_ns.append(end_ns)
        self.parent.append(parent)
        self.span_id.append(span_id or self.ids.span_id())
        self.process.append(process)
        self.thread.append(thread)
        self.direction.append(direction)
        self.shape.append(self.intern_shape(tuple(attributes)))
        self.values.append(tuple(attributes.values()))
        if kind != KIND_INTERNAL:
            self.kinds[row] = kind
        if status != STATUS_UNSET:
            self.statuses[row] = (status, status_message)
        if envelope:
            self.envelopes.add(row)
        if events:
            self.events[row] = events
        if links:
            self.links[row] = links
        return row

    def attributes(self, row: int) -> Attributes:
        return dict(zip(self.shapes[self.shape[row]], self.values[row], strict=True))

    def set_attributes(self, row: int, more: Mapping[str, Any]) -> None:
        """Add or replace attributes of one row."""
        merged = {**self.attributes(row), **more}
        self.shape[row] = self.intern_shape(tuple(merged))
        self.values[row] = tuple(merged.values())

    def overlay(self) -> Trace:
        """A trace in which parents, kinds and attributes can be changed without changing this one. It shares the rest:
        add no span to either while both are in use."""
        found = copy(self)
        found.parent, found.kinds = list(self.parent), dict(self.kinds)
        found.shape, found.values = list(self.shape), list(self.values)
        found.shapes, found._shape_index = list(self.shapes), dict(self._shape_index)
        return found

    def span(self, row: int) -> Span:
        status, message = self.statuses.get(row, (STATUS_UNSET, ""))
        return Span(
            row=row,
            span_id=self.span_id[row],
            name=self.names[self.name[row]],
            layer=self.layer[row],
            start_ns=self.start_ns[row],
            end_ns=self.end_ns[row],
            parent=self.parent[row],
            attributes=self.attributes(row),
            direction=self.direction[row],
            process=self.process[row],
            thread=self.thread[row],
            kind=self.kinds.get(row, KIND_INTERNAL),
            status=status,
            status_message=message,
            envelope=row in self.envelopes,
            events=self.events.get(row, []),
            links=self.links.get(row, []),
        )

    @property
    def spans(self) -> Iterator[Span]:
        return (self.span(row) for row in range(len(self)))

    def children(self) -> list[list[int]]:
        """Rows of the children of every row, in row order."""
        found: list[list[int]] = [[] for _ in self.parent]
        for row, parent in enumerate(self.parent):
            if parent >= 0:
                found[parent].append(row)
        return found

    @property
    def trace_id_hex(self) -> str:
        return f"{self.trace_id:032x}"
