"""Server-sent events from bytes, as the HTML standard's section 9.2 defines them.

    parser = SseParser()
    for data in reads:
        for item in parser.feed(data):   # Event or Comment, as soon as its last byte is there
            ...
    rest = parser.close()                # an event the stream's end cut off, or None

Lines end in CR, LF or CRLF, also mixed; a byte order mark at the start is skipped; an event without a data line is
not an event; how the bytes are cut into reads changes nothing. Memory is bounded by `max_event_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 2**20


class SseTooLong(Exception):
    """One event is longer than the bound. The message names the bound in bytes."""


@dataclass(slots=True)
class Event:
    """`data` as sent (lines joined by LF), `size_bytes` of the whole block with its line ends."""

    data: str
    type: str = ""
    id: str = ""
    size_bytes: int = 0


@dataclass(slots=True)
class Comment:
    """A line that begins with a colon: a keep-alive."""

    text: str
    size_bytes: int = 0


class SseParser:
    """Feed it bytes. `last_event_id` and `retry_ms` are what the stream asked a reconnecting client to use."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.last_event_id = ""
        self.retry_ms: int | None = None
        self._max = max_event_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._type = ""
        self._size = 0
        self._begun = False
        self._skip_lf = False

    def feed(self, data: bytes) -> list[Event | Comment]:
        """What these bytes complete. Raises SseTooLong."""
        found: list[Event | Comment] = []
        start, end = 0, len(data)
        if self._skip_lf and end:
            # The CR before has ended its line already; an LF that follows belongs to it.
            self._skip_lf = False
            if data[0] == 0x0A:
                start = 1
        while start < end:
            stop = _line_end(data, start)
            if stop < 0:
                self._line += data[start:]
                self._bound()
                break
            self._line += data[start:stop]
            start = stop + 1
            if data[stop] == 0x0D:
                if start == end:
                    self._skip_lf = True
                elif data[start] == 0x0A:
                    start += 1
            self._bound()
            self._take(found)
        return found

    def close(self) -> Event | None:
        """The event that was still being sent, which a conforming reader must not dispatch; None when there is none.

        The parser is empty afterwards.
        """
        rest: list[Event | Comment] = []
        if self._line:
            self._take(rest)
        data, self._data, self._line = self._data, [], bytearray()
        if not data:
            return None
        return Event(_text(b"\n".join(data)), self._type, self.last_event_id, self._size)

    def _bound(self) -> None:
        if self._size + len(self._line) > self._max:
            raise SseTooLong(f"one event is longer than {self._max:,} bytes")

    def _take(self, found: list[Event | Comment]) -> None:
        raw = bytes(self._line)
        self._line.clear()
        if not self._begun:
            self._begun = True
            if raw.startswith(_BOM):
                raw = raw[3:]
        self._size += len(raw) + 1
        if not raw:
            if self._data:
                found.append(Event(_text(b"\n".join(self._data)), self._type, self.last_event_id, self._size))
            self._data, self._type, self._size = [], "", 0
            return
        name, colon, value = raw.partition(b":")
        value = value.removeprefix(b" ")
        if colon and not name:
            found.append(Comment(_text(value), len(raw) + 1))
            self._size -= len(raw) + 1
        elif name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._type = _text(value)
        elif name == b"id":
            if b"\x00" not in value:
                self.last_event_id = _text(value)
        elif name == b"retry" and value.isdigit():
            self.retry_ms = int(value)


def _line_end(data: bytes, start: int) -> int:
    lf = data.find(b"\n", start)
    cr = data.find(b"\r", start, lf if lf >= 0 else len(data))
    return cr if cr >= 0 else lf


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
