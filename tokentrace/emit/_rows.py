"""What a Trace keeps in columns and OTLP has no field for: it travels as span attributes.

Layer, direction, thread and "is an envelope" have an attribute name each. A row whose attributes hold the same
value already gets nothing added; one whose attributes contradict the column keeps its attribute and carries the
column under a reserved name, so that reading a file gives back exactly what was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from tokentrace.model import Trace

LAYER, DIRECTION = "tokentrace.layer", "tokentrace.direction"
THREAD, ENVELOPE = "thread.id", "tokentrace.envelope"
#: Attribute names in the order they are added; the position is the bit in `Extras.added`.
COLUMNS = (LAYER, DIRECTION, THREAD, ENVELOPE)
#: The value that a missing attribute stands for.
ABSENT: dict[str, Any] = {LAYER: 0, DIRECTION: "", THREAD: 0, ENVELOPE: False}
RESERVED = "tokentrace.column."


class Extras(NamedTuple):
    """Attributes to add to a row, and which columns (bits, in the order of COLUMNS) went under their own name."""

    attributes: dict[str, Any]
    added: int


def columns(trace: Trace, row: int) -> dict[str, Any]:
    """The row's column values by attribute name."""
    return {
        LAYER: trace.layer[row],
        DIRECTION: trace.direction[row],
        THREAD: trace.thread[row],
        ENVELOPE: row in trace.envelopes,
    }


def extras(own: Mapping[str, Any], column_values: Mapping[str, Any]) -> Extras:
    """What has to be added to the row's `own` attributes so that the columns can be told from them."""
    found: dict[str, Any] = {}
    added = 0
    for bit, name in enumerate(COLUMNS):
        value = column_values[name]
        if name in own:
            if not _same(own[name], value):
                found[RESERVED + name] = value
        elif value != ABSENT[name]:
            found[name] = value
            added |= 1 << bit
    return Extras(found, added)


class Split:
    """The reverse of `extras`, worked out once for all rows whose attributes have these names in this order."""

    def __init__(self, keys: tuple[str, ...], added: int) -> None:
        at = {key: index for index, key in enumerate(keys)}  # of a name that comes twice, the last
        columns: list[int] = []
        for bit, name in enumerate(COLUMNS):
            if RESERVED + name in at:
                columns.append(at.pop(RESERVED + name))
            elif added & (1 << bit):
                columns.append(at.pop(name, -1))
            else:
                columns.append(at.get(name, -1))
        self.keys = tuple(at)
        self._own = list(at.values())
        self._pick = itemgetter(*self._own) if len(self._own) > 1 else None
        self._columns = tuple(zip(columns, ABSENT.values(), strict=True))

    def own(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The row's own values, those of `keys`."""
        if self._pick is None:
            return tuple([values[index] for index in self._own])
        found: tuple[Any, ...] = self._pick(values)
        return found

    def columns(self, values: Sequence[Any]) -> list[Any]:
        """The values of COLUMNS; one of another type than the column's is as good as absent."""
        return [
            values[index] if index >= 0 and type(values[index]) is type(absent) else absent
            for index, absent in self._columns
        ]


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)
