"""A trace as the page's data: one block of bytes, in columns, that compresses well and decodes in milliseconds.

    4 bytes   length of the header, little endian
    header    JSON: texts, where each column lies, what is rare (events, links, statuses), and the story
    columns   unsigned LEB128 numbers; signed ones are zigzag-coded first

Times are ns after the first span's start. A browser's numbers are exact to 2^53, which is 104 days of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tokentrace.emit._values import JS_SAFE, clean_text, for_browser
from tokentrace.model import STATUS_UNSET, Trace

#: Kept in columns of their own, or told by the place in the tree.
_ELSEWHERE = frozenset(("tokentrace.layer", "tokentrace.direction", "tokentrace.pass", "thread.id"))
_WAYS = {"down": 1, "up": 2}
#: Ids do not compress. Spans of these layers are few and are what is looked up in another viewer.
_NAMED_LAYERS = frozenset((0, 5, 6, 7, 8))


def pack(trace: Trace, story: Mapping[str, Any]) -> bytes:
    """The block for this trace. `story` is JSON-able and comes back as it is."""
    out = _Columns()
    epoch = min(trace.start_ns, default=0)
    start = np.array(trace.start_ns, np.int64) - epoch
    length = np.array(trace.end_ns, np.int64) - np.array(trace.start_ns, np.int64)
    rows = np.arange(len(trace), dtype=np.int64)
    parent = np.array(trace.parent, np.int64)
    processes, process = _interned(trace.process)
    threads, thread = _interned(trace.thread)
    columns = {
        "start": out.signed(np.diff(start, prepend=0)),
        "length": out.unsigned(length),
        "parent": out.unsigned(np.where(parent < 0, 0, rows - parent)),
        "name": out.unsigned(trace.name),
        "layer": out.unsigned(trace.layer),
        "way": out.unsigned([_WAYS.get(way, 0) for way in trace.direction]),
        "process": out.unsigned(process),
        "thread": out.unsigned(thread),
        "shape": out.unsigned(trace.shape),
        "envelope": out.unsigned([int(row in trace.envelopes) for row in range(len(trace))]),
    }
    texts = _Texts()
    shapes = _shapes(trace, out, texts)
    header = {
        "format": 1,
        "count": len(trace),
        "trace_id": trace.trace_id_hex,
        "epoch_ns": str(epoch),
        "names": [clean_text(name) for name in trace.names],
        "processes": [_process(trace, key) for key in processes],
        "threads": threads,
        "columns": columns,
        "shapes": shapes,
        "texts": texts.known,
        "events": {str(row): [_event(e, epoch) for e in events] for row, events in trace.events.items()},
        "links": _links(trace),
        "statuses": {
            str(row): [code, clean_text(message)]
            for row, (code, message) in trace.statuses.items()
            if code != STATUS_UNSET or message
        },
        "ids": {str(row): f"{own:016x}" for row, own in enumerate(trace.span_id) if trace.layer[row] in _NAMED_LAYERS},
        "story": for_browser(dict(story)),
    }
    text = orjson.dumps(header)
    return len(text).to_bytes(4, "little") + text + bytes(out.data)


class _Columns:
    """The columns one after the other; each is (offset, length) in bytes."""

    def __init__(self) -> None:
        self.data = bytearray()

    def unsigned(self, values: Sequence[int] | npt.NDArray[np.int64]) -> list[int]:
        return self._add(np.asarray(values, np.int64).astype(np.uint64))

    def signed(self, values: Sequence[int] | npt.NDArray[np.int64]) -> list[int]:
        numbers = np.asarray(values, np.int64)
        return self._add(((numbers << 1) ^ (numbers >> 63)).astype(np.uint64))

    def _add(self, values: npt.NDArray[np.uint64]) -> list[int]:
        offset = len(self.data)
        self.data += leb128(values)
        return [offset, len(self.data) - offset]


def leb128(values: npt.NDArray[np.uint64]) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more follow (DWARF 5, 7.6)."""
    sizes = np.ones(len(values), np.int64)
    for bits in range(7, 64, 7):
        sizes += values >> np.uint64(bits) > 0
    places = np.cumsum(sizes) - sizes
    found = np.zeros(int(sizes.sum()), np.uint8)
    for index in range(int(sizes.max(initial=0))):
        more = sizes > index
        seven = (values[more] >> np.uint64(7 * index)) & np.uint64(0x7F)
        flag = np.where(sizes[more] > index + 1, 0x80, 0).astype(np.uint8)
        found[places[more] + index] = seven.astype(np.uint8) | flag
    return found.tobytes()


class _Texts:
    """Values as JSON texts, each kept once."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self._index: dict[str, int] = {}

    def add(self, value: Any) -> int:
        text = orjson.dumps(for_browser(value)).decode()
        index = self._index.get(text)
        if index is None:
            index = self._index[text] = len(self.known)
            self.known.append(text)
        return index


def _shapes(trace: Trace, out: _Columns, texts: _Texts) -> list[dict[str, Any]]:
    """For each set of attribute names a column a name, over the rows that have it, in their order."""
    members: list[list[int]] = [[] for _ in trace.shapes]
    for row, shape in enumerate(trace.shape):
        members[shape].append(row)
    found = []
    for keys, rows in zip(trace.shapes, members, strict=True):
        columns = []
        for position, key in enumerate(keys):
            if key in _ELSEWHERE or not rows:
                continue
            values = [trace.values[row][position] for row in rows]
            whole = all(type(value) is int and abs(value) <= JS_SAFE for value in values)
            place = out.signed(values) if whole else out.unsigned([texts.add(value) for value in values])
            columns.append([clean_text(key), "number" if whole else "text", *place])
        found.append({"columns": columns})
    return found


def _interned(values: Iterable[Any]) -> tuple[list[Any], list[int]]:
    index: dict[Any, int] = {}
    return_values = [index.setdefault(value, len(index)) for value in values]
    return list(index), return_values


def _process(trace: Trace, key: str) -> dict[str, Any]:
    known = trace.processes.get(key)
    return {"key": clean_text(key), "attributes": for_browser(known.attributes) if known else {}}


def _event(event: Any, epoch: int) -> list[Any]:
    return [event.time_ns - epoch, clean_text(event.name), for_browser(event.attributes)]


def _links(trace: Trace) -> dict[str, list[int]]:
    """Rows that each row links to; links that leave the trace are left out."""
    rows = {span_id: row for row, span_id in enumerate(trace.span_id)} if trace.links else {}
    found = {str(row): [rows[x.span_id] for x in links if x.span_id in rows] for row, links in trace.links.items()}
    return {row: targets for row, targets in found.items() if targets}
