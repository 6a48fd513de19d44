"""What a Trace keeps in columns and OTLP has no field for: it travels as span attributes.

Layer, direction, thread and "is an envelope" have an attribute name each. A row whose attributes hold the same
value already gets nothing added; one whose attributes contradict the column keeps its attribute and carries the
column under a reserved name, so that reading a file gives back exactly what was written.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def split(attributes: dict[str, Any], added: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reverse of `extras`: (own attributes, column values)."""
    values: dict[str, Any] = {}
    own = dict(attributes)
    for bit, name in enumerate(COLUMNS):
        if RESERVED + name in own:
            value = own.pop(RESERVED + name)
        elif added & (1 << bit):
            value = own.pop(name, ABSENT[name])
        else:
            value = own.get(name, ABSENT[name])
        values[name] = value if type(value) is type(ABSENT[name]) else ABSENT[name]
    return own, values


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)
