"""Trace -> ExportTraceServiceRequest bytes, column by column.

A span object per span is what makes exporters slow. Here every column (an attribute of all rows with the same
attribute names, the ids, the times) becomes a list of ready byte pieces at C speed: numpy templates for numbers
and ids, one encoding per distinct text. A row is the join of its pieces. Events, links and statuses are rare;
their bytes are made one by one and join as one more piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

import numpy as np

from tokentrace.emit import _wire
from tokentrace.emit._columns import as_list, bytes_of, double_column, filled, int_column
from tokentrace.emit._resource import Resources
from tokentrace.emit._rows import ABSENT, COLUMNS, DIRECTION, ENVELOPE, LAYER, RESERVED, THREAD
from tokentrace.emit._shown import shown
from tokentrace.emit._values import clean_text
from tokentrace.model import KIND_INTERNAL, STATUS_UNSET, Event, Trace

MAX_SPANS = 4000
#: gRPC servers refuse messages over 4 MiB by default (grpc: max receive message length).
MAX_BYTES = 3 * 2**20
_WINDOW = 8_000  # rows encoded at once: bounds memory, fits a processor's cache, large enough for numpy to pay
_SMALL = 48  # below this many values numpy costs more than it saves
_CACHE_LIMIT = 50_000  # distinct values remembered per attribute name
_CUT_CHARS = 16_384  # longest text in a span that would not fit into a message otherwise

#: Attribute that names the attributes of a span which were cut to make it fit.
CUT = "tokentrace.cut"

#: One piece for each row, or a single one that all rows share.
_Pieces = Sequence[bytes] | bytes


@dataclass(slots=True)
class Batch:
    """Spans of one request, by resource: (encoded Resource, encoded spans). `cut` counts spans shortened to fit."""

    groups: list[tuple[bytes, list[bytes]]]
    cut: int = 0

    @property
    def spans(self) -> int:
        return sum(len(spans) for _, spans in self.groups)

    def body(self) -> bytes:
        """The serialised ExportTraceServiceRequest."""
        parts: list[bytes] = []
        for resource, spans in self.groups:
            scope = _scope()
            inner = len(scope) + sum(map(len, spans))
            head = b"\x12" + _wire.varint(inner)
            parts += [b"\x0a", _wire.varint(len(resource) + len(head) + inner), resource, head, scope, *spans]
        return b"".join(parts)

    def halves(self) -> list[Batch]:
        """The same spans as two batches, for a receiver that found this one too large; one if it has one span."""
        flat = [(resource, span) for resource, spans in self.groups for span in spans]
        middle = (len(flat) + 1) // 2
        found = []
        for part in (flat[:middle], flat[middle:]):
            groups: dict[bytes, list[bytes]] = {}
            for resource, span in part:
                groups.setdefault(resource, []).append(span)
            if groups:
                found.append(Batch(list(groups.items())))
        return found


def _scope() -> bytes:
    from tokentrace.version import __version__

    return _wire.delimited(0x0A, _wire.delimited(0x0A, b"tokentrace") + _wire.delimited(0x12, __version__.encode()))


def batches(
    trace: Trace,
    *,
    max_spans: int = MAX_SPANS,
    max_bytes: int = MAX_BYTES,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Batch]:
    """The trace as requests of at most `max_spans` spans and fewer than `max_bytes` bytes, in row order.

    A single span larger than that is sent with its long texts cut and its last events dropped and counted, as
    `Batch.cut` says; a span that cannot be made to fit is sent as it is, for the receiver to judge.
    """
    resources = _EncodedResources(trace, environ)
    encoder = _Encoder(trace)
    overhead = len(_scope()) + 32
    groups: dict[bytes, list[bytes]] = {}
    size = count = cut = 0
    for first in range(0, len(trace), _WINDOW):
        rows = range(first, min(first + _WINDOW, len(trace)))
        for row, span, resource in zip(rows, encoder.rows(rows), resources.of(rows), strict=True):
            base = len(resource) + overhead
            more = len(span)
            shortened = more + base >= max_bytes
            if shortened:
                span = encoder.shortened(row, max_bytes - base)
                more = len(span)
            group = groups.get(resource)
            if count >= max_spans or size + more + (base if group is None else 0) >= max_bytes:
                if groups:
                    yield Batch(list(groups.items()), cut)
                groups, group, size, count, cut = {}, None, 0, 0, 0
            if group is None:
                group = groups[resource] = []
                size += base
            group.append(span)
            size += more
            count += 1
            cut += shortened
    if groups:
        yield Batch(list(groups.items()), cut)


def encode(trace: Trace, environ: Mapping[str, str] | None = None) -> list[bytes]:
    """All requests of the trace as a receiver is to get it (`_shown`), serialised."""
    return [batch.body() for batch in batches(shown(trace), environ=environ)]


class _EncodedResources:
    """The Resource message of each row; rows of one process and layer share one bytes object."""

    def __init__(self, trace: Trace, environ: Mapping[str, str] | None) -> None:
        self._trace = trace
        self._resources = Resources(trace, environ)
        self._encoded: dict[tuple[str, int], bytes] = {}

    def of(self, rows: range) -> list[bytes]:
        trace, encoded = self._trace, self._encoded
        keys = list(zip(trace.process[rows.start : rows.stop], trace.layer[rows.start : rows.stop], strict=True))
        for key in set(keys).difference(encoded):
            body = _wire.attributes(0x0A, self._resources.get(*key).attributes)
            encoded[key] = _wire.delimited(0x0A, body)
        return list(map(encoded.__getitem__, keys))


@dataclass(slots=True)
class _Encoder:
    trace: Trace
    titles: dict[tuple[int, int], bytes] = field(default_factory=dict)
    texts: dict[tuple[str, type], dict[Any, bytes]] = field(default_factory=dict)
    lengths: dict[int, bytes] = field(default_factory=dict)
    trace_id: bytes = b""

    def __post_init__(self) -> None:
        self.trace_id = self.trace.trace_id.to_bytes(16, "big")

    def rows(self, rows: range) -> list[bytes]:
        """Each row as one entry of ScopeSpans.spans, key and length included."""
        trace = self.trace
        heads, times, tails = self._heads(rows), self._times(rows), self._tails(rows)
        titles = self._titles(rows)
        whole: list[bytes] = [b""] * len(rows)
        for shape, members in self._by_shape(rows).items():
            pick = _picker(members)
            keys = trace.shapes[shape]
            absolute = [rows.start + i for i in members]
            values = [trace.values[row] for row in absolute]
            columns = [self._column(key, column) for key, column in zip(keys, zip(*values, strict=True), strict=False)]
            columns += self._extra_columns(keys, values, absolute)
            pieces = [pick(heads), pick(titles), pick(times), *_folded(columns, len(members)), pick(tails)]
            bodies = map(b"".join, zip(*pieces, strict=False))
            for index, body in zip(members, bodies, strict=True):
                whole[index] = body
        sizes = list(map(len, whole))
        for size in set(sizes).difference(self.lengths):
            self.lengths[size] = b"\x12" + _wire.varint(size)
        return [prefix + body for prefix, body in zip(map(self.lengths.__getitem__, sizes), whole, strict=True)]

    def shortened(self, row: int, limit: int) -> bytes:
        """The row with long texts cut, then with fewer events, until it has fewer than `limit` bytes if it can."""
        span = self.trace.span(row)
        chars = _CUT_CHARS
        events = list(span.events)
        while True:
            attributes = _cut(span.attributes, chars)
            events = [Event(e.name, e.time_ns, _cut(e.attributes, chars)) for e in events]
            encoded = self._single(row, attributes, events)
            if len(encoded) < limit or (chars <= 64 and not events):
                return encoded
            chars, events = max(64, chars // 4), events[: len(events) // 2] if chars <= 64 else events

    def _single(self, row: int, attributes: Mapping[str, Any], events: Sequence[Any]) -> bytes:
        one = range(row, row + 1)
        trace = self.trace
        status = trace.statuses.get(row, (STATUS_UNSET, ""))
        dropped = len(trace.events.get(row, ())) - len(events)
        tail = _wire.tail(self.trace_id, events, trace.links.get(row, ()), status, dropped)
        keys, values = tuple(attributes), tuple(attributes.values())
        columns = [self._column(key, (value,)) for key, value in attributes.items()]
        columns += self._extra_columns(keys, [values], [row])
        middle = [next(iter(column)) for column in _folded(columns, 1)]
        pieces = [self._heads(one)[0], self._titles(one)[0], self._times(one)[0], *middle, tail]
        return _wire.delimited(0x12, b"".join(pieces))

    def _by_shape(self, rows: range) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for index, shape in enumerate(self.trace.shape[rows.start : rows.stop]):
            found.setdefault(shape, []).append(index)
        return found

    def _heads(self, rows: range) -> list[bytes]:
        """trace_id, span_id, parent_span_id (fields 1, 2, 4)."""
        trace = self.trace
        ids = np.array(trace.span_id[rows.start : rows.stop], dtype=np.uint64)
        above = int(trace.meta.get("parent_span_id") or 0)  # of another program, whose trace this continues
        parents = [trace.span_id[p] if p >= 0 else above for p in trace.parent[rows.start : rows.stop]]
        template = b"\x0a\x10" + self.trace_id + b"\x12\x08" + bytes(8) + b"\x22\x08" + bytes(8)
        table = filled(template, len(rows))
        table[:, 20:28] = bytes_of(ids.astype(">u8"))
        table[:, 30:38] = bytes_of(np.array(parents, dtype=np.uint64).astype(">u8"))
        heads = as_list(table)
        if rows.start == 0 and heads and not above:
            heads[0] = heads[0][:28]  # the root has no parent
        return heads

    def _times(self, rows: range) -> list[bytes]:
        """start_time_unix_nano and end_time_unix_nano (fields 7, 8)."""
        start = self.trace.start_ns[rows.start : rows.stop]
        end = self.trace.end_ns[rows.start : rows.stop]
        table = filled(b"\x39" + bytes(8) + b"\x41" + bytes(8), len(rows))
        table[:, 1:9] = bytes_of(np.array(start, dtype="<u8"))
        table[:, 10:18] = bytes_of(np.array(end, dtype="<u8"))
        times = as_list(table)
        if 0 in start or 0 in end:  # proto3 leaves zero out
            for index, piece in enumerate(times):
                times[index] = (piece[:9] if start[index] else b"") + (piece[9:] if end[index] else b"")
        return times

    def _titles(self, rows: range) -> list[bytes]:
        """name and kind (fields 5, 6)."""
        trace, cache = self.trace, self.titles
        names = trace.name[rows.start : rows.stop]
        plain = {name: self._title(name, KIND_INTERNAL) for name in set(names)}
        titles = list(map(plain.__getitem__, names))
        for row in _within(trace.kinds, rows):  # of a long trace these are nearly all (`_shown`)
            key = trace.name[row], trace.kinds[row]
            title = cache.get(key)
            if title is None:
                title = cache[key] = self._title(*key)
            titles[row - rows.start] = title
        return titles

    def _title(self, name: int, kind: int) -> bytes:
        text = clean_text(self.trace.names[name]).encode()
        return (_wire.delimited(0x2A, text) if text else b"") + (b"\x30" + _wire.varint(kind) if kind else b"")

    def _tails(self, rows: range) -> list[bytes]:
        trace = self.trace
        tails = [_wire.SPAN_FLAGS] * len(rows)
        for row in _within({**trace.events, **trace.links, **trace.statuses}, rows):
            status = trace.statuses.get(row, (STATUS_UNSET, ""))
            events, links = trace.events.get(row, ()), trace.links.get(row, ())
            tails[row - rows.start] = _wire.tail(self.trace_id, events, links, status)
        return tails

    def _extra_columns(self, keys: tuple[str, ...], values: list[tuple[Any, ...]], rows: list[int]) -> list[_Pieces]:
        """Columns of the trace that OTLP has no field for (see `_rows`)."""
        trace = self.trace
        envelopes = trace.envelopes
        taken: dict[str, list[Any]] = {
            LAYER: [trace.layer[row] for row in rows],
            DIRECTION: [trace.direction[row] for row in rows],
            THREAD: [trace.thread[row] for row in rows],
            ENVELOPE: [row in envelopes for row in rows],
        }
        found: list[_Pieces] = []
        for name in COLUMNS:
            column = taken[name]
            absent = ABSENT[name]
            if name in keys:
                at = keys.index(name)
                own = [value[at] for value in values]
                if own == column and set(map(type, own)) == {type(absent)}:
                    continue
                same = [type(a) is type(b) and a == b for a, b in zip(own, column, strict=True)]
                if not all(same):
                    forced = [_wire.attribute(0x4A, RESERVED + name, value) for value in column]
                    found.append([b"" if ok else piece for ok, piece in zip(same, forced, strict=True)])
                continue
            distinct = set(column)
            if distinct == {absent}:
                continue
            pieces = self._column(name, column)
            if absent in distinct and not isinstance(pieces, bytes):
                pieces = [b"" if value == absent else piece for value, piece in zip(column, pieces, strict=True)]
            found.append(pieces)
        return found

    def _column(self, key: str, column: Sequence[Any]) -> _Pieces:
        """Every value of one attribute as an entry of Span.attributes (field 9)."""
        kinds = set(map(type, column))
        if len(kinds) == 1:
            kind = kinds.pop()
            if kind is str or kind is bool:
                return self._by_value(key, kind, column)
            if kind is int:
                # A sample decides: a set of all values costs as much as encoding them.
                sample = column[:_SMALL]
                if len(sample) < _SMALL or len(set(sample)) * 3 < _SMALL:
                    return self._by_value(key, kind, column)
                try:
                    return int_column(key, np.array(column, dtype=np.int64))
                except OverflowError:
                    return self._by_value(key, kind, column)
            elif kind is float and len(column) >= _SMALL:
                return double_column(key, column)
            elif kind is list or kind is tuple:
                inner = set(map(type, chain.from_iterable(column)))
                if inner == {int} or inner == {str}:
                    return self._by_value(key, next(iter(inner)), list(map(tuple, column)))
        return [_wire.attribute(0x4A, key, value) for value in column]

    def _by_value(self, key: str, kind: type, column: Sequence[Any]) -> _Pieces:
        """One encoding per distinct value. All values, or all items of all lists, are of the type `kind`, so that
        equal ones are the same (1 == True == 1.0 in Python)."""
        distinct = set(column)
        cache = self.texts.setdefault((key, kind), {})
        if len(cache) > _CACHE_LIMIT:
            cache.clear()
        prefix = _wire.key_prefix(key)
        for value in distinct.difference(cache):
            if type(value) is str and len(value) < 100 and value.isascii():
                # Two lengths below 128 for certain: the most frequent case, without five calls.
                raw = value.encode()
                size = len(raw)
                inner = b"%b\x12%c\x0a%c%b" % (prefix, size + 2, size, raw)
                cache[value] = b"\x4a%b%b" % (_wire.varint(len(inner)), inner)
            else:
                cache[value] = _wire.attribute(0x4A, key, value)
        if len(distinct) == 1:
            return cache[column[0]]
        return list(map(cache.__getitem__, column))


def _folded(columns: Sequence[_Pieces], count: int) -> Iterator[Iterable[bytes]]:
    """Columns with neighbours that all rows share joined into one."""
    shared = b""
    for column in columns:
        if isinstance(column, bytes):
            shared += column
            continue
        if shared:
            yield repeat(shared, count)
            shared = b""
        yield column
    if shared:
        yield repeat(shared, count)


def _within(rare: Mapping[int, Any], rows: range) -> list[int]:
    """The rows of a dictionary by row that lie in the range."""
    return [row for row in (rare if len(rare) < len(rows) else rows) if row in rare and row in rows]


def _picker(members: list[int]) -> Callable[[list[bytes]], Sequence[bytes]]:
    if len(members) == 1:
        only = members[0]
        return lambda column: (column[only],)
    return itemgetter(*members)


def _cut(attributes: Mapping[str, Any], chars: int) -> dict[str, Any]:
    """Attributes with texts and lists of at most `chars` items; `tokentrace.cut` names those that were longer."""
    found = {key: _short(value, chars) for key, value in attributes.items() if key != CUT}
    earlier = list(attributes.get(CUT, ()))
    cut = earlier + [key for key in found if key not in earlier and found[key] is not attributes[key]]
    return {**found, CUT: cut} if cut else found


def _short(value: Any, chars: int) -> Any:
    if isinstance(value, str | bytes):
        return value[:chars] if len(value) > chars else value
    if isinstance(value, list | tuple):
        items = [_short(item, chars) for item in value[:chars]]
        same = len(items) == len(value) and all(a is b for a, b in zip(items, value, strict=True))
        return value if same else items
    return value
