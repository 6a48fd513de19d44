"""Frames on the control socket: two lengths, a JSON header, a blob."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_HEAD = struct.Struct(">II")
MAX_HEADER = 256 << 20
MAX_BLOB = 1 << 30


class Closed(Exception):
    """The other side is gone."""


def send(connection: socket.socket, header: dict[str, Any], blob: bytes = b"") -> None:
    text = json.dumps(header, separators=(",", ":"), default=str).encode()
    connection.sendall(_HEAD.pack(len(text), len(blob)) + text)
    if blob:
        connection.sendall(blob)


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """One frame. Raises Closed at the end of the stream and for anything that is no frame."""
    size, blob_size = _HEAD.unpack(_exactly(connection, _HEAD.size))
    if size > MAX_HEADER or blob_size > MAX_BLOB:
        raise Closed("not a frame")
    try:
        header = json.loads(_exactly(connection, size))
    except ValueError as error:
        raise Closed("not a frame") from error
    if not isinstance(header, dict):
        raise Closed("not a frame")
    return header, _exactly(connection, blob_size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        try:
            part = connection.recv(min(size, 1 << 20))
        except OSError as error:
            raise Closed(str(error)) from error
        if not part:
            raise Closed("end of stream")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
