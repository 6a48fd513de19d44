"""Protobuf wire format of OTLP's attributes, events and links, one value at a time.

Field numbers are those of opentelemetry-proto 1.x (trace/v1/trace.proto, common/v1/common.proto). Fields are
written in the order of their numbers with minimal varints, as the protobuf library does, so that a message
parsed and serialised again has the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from tokentrace.emit._values import clean, clean_text
from tokentrace.model import STATUS_UNSET, Event, Link

#: Span flags 0x101: sampled (W3C), and "the parent is known not to be remote" (OTLP's bit 8).
FLAGS = 0x101
_FLAGS_FIXED32 = struct.pack("<I", FLAGS)
SPAN_FLAGS = b"\x85\x01" + _FLAGS_FIXED32  # field 16, fixed32
_pack_double = struct.Struct("<d").pack
_pack_fixed64 = struct.Struct("<Q").pack


def varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def delimited(tag: int, body: bytes) -> bytes:
    """A length-delimited field; `tag` is the encoded key, below 128."""
    return bytes((tag,)) + varint(len(body)) + body


#: Entries of an ArrayValue for 0 to 127: shapes and grids consist of them.
_INT_ITEMS = {number: bytes((0x0A, 2, 0x18, number)) for number in range(128)}


def any_value(value: Any) -> bytes:
    """Body of an AnyValue message; `value` has been through `clean`."""
    kind = type(value)
    if kind is str:
        return delimited(0x0A, value.encode())
    if kind is bool:
        return b"\x10\x01" if value else b"\x10\x00"
    if kind is int:
        return b"\x18" + varint(value & 0xFFFFFFFFFFFFFFFF)
    if kind is float:
        return b"\x21" + _pack_double(value)
    if kind is list:
        if set(map(type, value)) == {int}:
            items = [_INT_ITEMS.get(item) or delimited(0x0A, any_value(item)) for item in value]
            return delimited(0x2A, b"".join(items))
        return delimited(0x2A, b"".join(delimited(0x0A, any_value(item)) for item in value))
    if kind is dict:
        return delimited(0x32, b"".join(delimited(0x0A, key_value(k, v)) for k, v in value.items()))
    if kind is bytes:
        return delimited(0x3A, value)
    return b""  # None: an AnyValue with nothing set


def _key(key: str) -> bytes:
    # proto3 leaves an empty string out.
    return delimited(0x0A, key.encode()) if key else b""


def key_value(key: str, value: Any) -> bytes:
    """Body of a KeyValue message; both have been cleaned."""
    return _key(key) + delimited(0x12, any_value(value))


def attribute(tag: int, key: str, value: Any) -> bytes:
    """A KeyValue as field `tag` of the message that holds it."""
    return delimited(tag, key_value(clean_text(key), clean(value)))


def attributes(tag: int, items: Mapping[str, Any]) -> bytes:
    return b"".join([attribute(tag, key, value) for key, value in items.items()])


def key_prefix(key: str) -> bytes:
    """What precedes the AnyValue in a KeyValue."""
    return _key(clean_text(key))


def _event(event: Event) -> bytes:
    name = clean_text(event.name).encode()
    return delimited(
        0x5A,
        (b"\x09" + _pack_fixed64(event.time_ns) if event.time_ns else b"")
        + (delimited(0x12, name) if name else b"")
        + attributes(0x1A, event.attributes),
    )


def _link(trace_id: bytes, link: Link) -> bytes:
    if not link.attributes:
        span_id = link.span_id.to_bytes(8, "big")
        return b"\x6a\x21\x0a\x10" + trace_id + b"\x12\x08" + span_id + b"\x35" + _FLAGS_FIXED32
    return delimited(
        0x6A,
        b"\x0a\x10"
        + trace_id
        + b"\x12\x08"
        + link.span_id.to_bytes(8, "big")
        + attributes(0x22, link.attributes)
        + b"\x35"
        + _FLAGS_FIXED32,
    )


def tail(
    trace_id: bytes, events: Iterable[Event], links: Iterable[Link], status: tuple[int, str], dropped_events: int = 0
) -> bytes:
    """Everything of a span that follows its attributes."""
    parts = [_event(event) for event in events]
    if dropped_events:
        parts.append(b"\x60" + varint(dropped_events))
    parts += [_link(trace_id, link) for link in links]
    code, message = status
    if code != STATUS_UNSET:
        text = clean_text(message).encode()
        parts.append(delimited(0x7A, (delimited(0x12, text) if text else b"") + b"\x18" + varint(code)))
    parts.append(SPAN_FLAGS)
    return b"".join(parts)
