"""Attribute values as OTLP, JSON and a browser can carry them. Nothing is lost, only converted.

OTLP has 64-bit signed integers and UTF-8 text. An exporter drops a larger integer or a lone surrogate together
with its attribute and counts nothing; here an integer beyond 64 bits becomes its decimal text and a lone
surrogate its backslash escape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: Largest integer that a JavaScript number holds exactly (ECMA-262, Number.MAX_SAFE_INTEGER).
JS_SAFE = 2**53 - 1


def clean_text(text: str) -> str:
    """The text with lone surrogates as `\\udc80` escapes, so that it is valid UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def clean(value: Any) -> Any:
    """The value as str, int (64 bits), float, bool, bytes, None, list or dict of those."""
    kind = type(value)
    if kind is str:
        return clean_text(value)
    if kind is bool or kind is float or value is None or kind is bytes:
        return value
    if kind is int:
        return value if INT64_MIN <= value <= INT64_MAX else str(value)
    if kind is list or kind is tuple:
        return [clean(item) for item in value]
    return _clean_other(value)


def _clean_other(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(str.__str__(value))
    if isinstance(value, int):
        return clean(int(value))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): clean(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [clean(item) for item in value]
    for method in ("tolist", "item"):  # numpy scalars and arrays, without importing numpy
        convert = getattr(value, method, None)
        if callable(convert):
            plain = convert()
            if type(plain) is not type(value):
                return clean(plain)
    return clean_text(str(value))


def for_browser(value: Any) -> Any:
    """`clean`, and then what JSON in a browser holds exactly: big integers, NaN and infinities as text."""
    return _browser(clean(value))


def _browser(value: Any) -> Any:
    if type(value) is int and abs(value) > JS_SAFE:
        return str(value)
    if type(value) is float and not math.isfinite(value):
        return str(value)
    if type(value) is bytes:
        return value.hex()
    if type(value) is list:
        return [_browser(item) for item in value]
    if type(value) is dict:
        return {key: _browser(item) for key, item in value.items()}
    return value
