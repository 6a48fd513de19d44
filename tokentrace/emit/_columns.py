"""Columns of numbers as byte pieces, one for each value: a numpy table filled from a byte template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokentrace.emit import _wire


def double_column(key: str, column: Sequence[float]) -> list[bytes]:
    prefix = _wire.key_prefix(key) + b"\x12\x09\x21"
    table = filled(_wire.delimited(0x4A, prefix + bytes(8)), len(column))
    table[:, -8:] = bytes_of(np.array(column, dtype="<f8"))
    return as_list(table)


_VARINT_STEPS = np.array([1 << (7 * n) for n in range(1, 10)], dtype=np.uint64)


def int_column(key: str, column: npt.NDArray[np.int64]) -> list[bytes]:
    """Minimal varints: one byte template for each width that occurs."""
    numbers = column.view(np.uint64)
    widths = np.searchsorted(_VARINT_STEPS, numbers, side="right") + 1
    present = np.unique(widths).tolist()
    whole = np.empty(len(column), dtype=object)
    for width in present:
        chosen = np.flatnonzero(widths == width)
        prefix = _wire.key_prefix(key) + b"\x12" + _wire.varint(width + 1) + b"\x18"
        table = filled(_wire.delimited(0x4A, prefix + bytes(width)), len(chosen))
        _put_varints(table[:, -width:], numbers[chosen])
        pieces = as_list(table)
        if len(present) == 1:
            return pieces
        whole[chosen] = pieces
    return list(whole)


def _put_varints(table: npt.NDArray[np.uint8], numbers: npt.NDArray[np.uint64]) -> None:
    width = table.shape[1]
    for index in range(width):
        more = 128 if index < width - 1 else 0
        table[:, index] = (numbers >> np.uint64(7 * index)) & np.uint64(127) | np.uint64(more)


def filled(template: bytes, count: int) -> npt.NDArray[np.uint8]:
    """`count` rows of the template."""
    table = np.empty((count, len(template)), dtype=np.uint8)
    table[:] = np.frombuffer(template, dtype=np.uint8)
    return table


def bytes_of(column: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """A column of 8-byte numbers as eight columns of bytes, in the byte order of its type."""
    return column.view(np.uint8).reshape(-1, 8)


def as_list(table: npt.NDArray[np.uint8]) -> list[bytes]:
    """Each row of the table as bytes; numpy's void type, unlike its bytes type, keeps trailing zeros."""
    void: Any = np.dtype((np.void, table.shape[1]))
    found: list[bytes] = table.view(void).ravel().tolist()
    return found
