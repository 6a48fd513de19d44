"""Decimal microseconds as text -> integer nanoseconds, exactly and in bulk.

A float64 of epoch microseconds is wrong by up to 253 ns, so no timestamp ever passes through a float: the digits
are read as integers. Nearly all recordings write either whole microseconds or three decimals, which numpy can
read in one call; anything else (exponents, signs, more digits, rubbish) goes number by number through `Decimal`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_LIMIT = 2**62  # nanoseconds; leaves room for adding a base time and for end = start + duration
_PLAIN = b"0123456789.\n"
_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN)


def microseconds_to_ns(texts: Sequence[Any]) -> tuple[Ints, Mask | None]:
    """Nanoseconds of each decimal text (bytes-like, quoted or not), and a mask of the unreadable ones, None if none.

    More than three decimals are rounded half to even.
    """
    if not texts:
        return np.empty(0, np.int64), None
    text = b"\n".join(texts)
    if b'"' in text:
        text = text.replace(b'"', b"")
    if not text.translate(None, _PLAIN):
        fast = _bulk(text, len(texts))
        if fast is not None:
            return fast, None
    return _one_by_one(text.split(b"\n"), len(texts))


def _integers(text: bytes, count: int) -> Ints | None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # numpy's sign of text it could not read
        try:
            found = np.fromstring(text, dtype=np.int64, sep="\n")
        except (DeprecationWarning, ValueError):
            return None
    # Too many digits saturate instead of failing.
    return found if len(found) == count and int(found.max()) < _LIMIT else None


def _bulk(text: bytes, count: int) -> Ints | None:
    dots = text.count(b".")
    if dots == 0:
        whole = _integers(text, count)
        return whole * 1000 if whole is not None and int(whole.max()) < _LIMIT // 1000 else None
    raw = np.frombuffer(text, np.uint8)
    dot = np.flatnonzero(raw == 46)
    line_end = np.append(np.flatnonzero(raw == 10), len(raw))
    if dots == count and bool((line_end - dot == 4).all()) and bool((dot[1:] > line_end[:-1]).all()):
        return _integers(text.replace(b".", b""), count)
    owner = np.searchsorted(line_end, dot)
    if dots > 1 and not bool((np.diff(owner) > 0).all()):
        return None
    digits = line_end[owner] - dot - 1
    if int(digits.max()) > 3:
        return None
    parts = _integers(text.replace(b".", b"\n"), count + dots)
    if parts is None:
        return None
    has = np.zeros(count, np.int64)
    has[owner] = 1
    first = np.arange(count) + np.cumsum(has) - has
    whole = parts[first]
    if int(whole.max()) >= _LIMIT // 1000:
        return None
    result: Ints = whole * 1000
    result[owner] += parts[first[owner] + 1] * 10 ** (3 - digits)
    return result


def _one_by_one(texts: list[bytes], count: int) -> tuple[Ints, Mask | None]:
    values = np.zeros(count, np.int64)
    bad = np.zeros(count, np.bool_)
    if len(texts) != count:  # a line break inside a quoted number: nothing can be told apart any more
        return values, ~bad
    for index, text in enumerate(texts):
        value = decimal_ns(text)
        if value is None:
            bad[index] = True
        else:
            values[index] = value
    return values, bad if bool(bad.any()) else None


def decimal_ns(text: bytes) -> int | None:
    """Nanoseconds of one decimal text in microseconds; None when it is no finite number or out of range."""
    if len(text) > 400:
        return None
    try:
        value = _CONTEXT.multiply(Decimal(text.decode("ascii").strip()), Decimal(1000))
        if not value.is_finite() or value.adjusted() > 20:
            return None
        result = int(value.to_integral_value(ROUND_HALF_EVEN, _CONTEXT))
    except (InvalidOperation, ValueError, ArithmeticError):
        return None
    return result if -_LIMIT < result < _LIMIT else None
