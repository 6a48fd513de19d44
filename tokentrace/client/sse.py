"""Server-sent events, parsed as the HTML standard says, and what an OpenAI-style chunk holds.

Comments, events without data, `id` and `retry` lines, any line end, a byte order mark and characters split between
reads are all legal. https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_EVENT_BYTES = 32 << 20


class TooLarge(ValueError):
    """One event is larger than any answer should be."""


@dataclass(slots=True)
class SseEvent:
    """One dispatched event, or a comment (`comment=True`). `size_bytes` counts its lines."""

    data: str
    event: str = ""
    comment: bool = False
    size_bytes: int = 0


class SseParser:
    """Feed bytes as they come; get the events that they complete."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[str] = []
        self._event = ""
        self._size = 0
        self._start = True

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        """Events completed by these bytes. Raises TooLarge."""
        self._buffer += chunk
        if self._start and len(self._buffer) >= 3:
            self._buffer = self._buffer.removeprefix(b"\xef\xbb\xbf")
            self._start = False
        elif self._start and not b"\xef\xbb\xbf".startswith(self._buffer):
            self._start = False
        elif self._start:
            return
        while True:
            line, rest = _line(self._buffer)
            if line is None:
                break
            self._buffer = rest
            yield from self._take(line)
        if len(self._buffer) + self._size > MAX_EVENT_BYTES:
            raise TooLarge(f"one event of the stream is larger than {MAX_EVENT_BYTES >> 20} MiB")

    def finish(self) -> Iterator[SseEvent]:
        """The stream has ended: a last line without line end counts, an event without its blank line is dispatched."""
        if self._buffer:
            line, self._buffer = self._buffer.rstrip(b"\r"), b""
            yield from self._take(line)
        yield from self._take(b"")

    def _take(self, line: bytes) -> Iterator[SseEvent]:
        self._size += len(line) + 1
        if not line:
            if self._data:
                yield SseEvent("\n".join(self._data), self._event, size_bytes=self._size)
            self._data, self._event, self._size = [], "", 0
        elif line.startswith(b":"):
            yield SseEvent(line[1:].decode("utf-8", "replace").strip(), comment=True, size_bytes=len(line) + 1)
        else:
            name, _, value = line.partition(b":")
            text = value.removeprefix(b" ").decode("utf-8", "replace")
            if name == b"data":
                self._data.append(text)
            elif name == b"event":
                self._event = text


def _line(buffer: bytes) -> tuple[bytes | None, bytes]:
    cut_n, cut_r = buffer.find(b"\n"), buffer.find(b"\r")
    if cut_n < 0 and cut_r < 0:
        return None, buffer
    if cut_r < 0 or 0 <= cut_n < cut_r:
        return buffer[:cut_n], buffer[cut_n + 1 :]
    if cut_r == len(buffer) - 1:  # the other half of CRLF may still come
        return None, buffer
    return buffer[:cut_r], buffer[cut_r + (2 if buffer[cut_r + 1 : cut_r + 2] == b"\n" else 1) :]


@dataclass(slots=True)
class Piece:
    """What one data event says: kind as in exchange.CHUNK_KINDS, with the text for one choice."""

    kind: str
    text: str = ""
    choice: int = 0
    finish: str = ""


def parse_json(data: str) -> Any:
    """The event's value, or None when it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def pieces(value: dict[str, Any]) -> list[Piece]:
    """What a chunk carries. Choices may be missing, empty or several; nothing is indexed unguarded."""
    if value.get("error"):
        return [Piece("error", error_text(value["error"]))]
    found: list[Piece] = []
    choices = value.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if not isinstance(choice, dict):
            continue
        index = choice.get("index") if isinstance(choice.get("index"), int) else 0
        found += _choice(choice, index or 0)
    if not found and usage_of(value) is not None:
        found.append(Piece("usage"))
    return found or [Piece("other")]


def _choice(choice: dict[str, Any], index: int) -> list[Piece]:
    found: list[Piece] = []
    delta = choice.get("delta") or choice.get("message") or {}
    delta = delta if isinstance(delta, dict) else {}
    content = delta.get("content", choice.get("text"))
    if isinstance(content, list):  # parts, as some servers send them
        content = "".join(str(p.get("text") or "") for p in content if isinstance(p, dict))
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        found.append(Piece("reasoning", reasoning, index))
    if isinstance(content, str) and content:
        found.append(Piece("content", content, index))
    calls = delta.get("tool_calls")
    if isinstance(calls, list) and calls:
        parts = [c.get("function") for c in calls if isinstance(c, dict)]
        text = "".join(str(p.get("name") or "") + str(p.get("arguments") or "") for p in parts if isinstance(p, dict))
        found.append(Piece("tool", text, index))
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason:
        found.append(Piece("finish", reason, index, reason))
    if not found and "role" in delta:
        found.append(Piece("role", choice=index))
    return found


def usage_of(value: dict[str, Any]) -> dict[str, Any] | None:
    """Usage, at the top or where Groq puts it."""
    for place in (
        value.get("usage"),
        (value.get("x_groq") or {}).get("usage") if isinstance(value.get("x_groq"), dict) else None,
    ):
        if isinstance(place, dict):
            return place
    return None


def error_text(error: Any) -> str:
    """The message inside an `error` of any shape."""
    if isinstance(error, dict):
        return str(error.get("message") or error.get("code") or error.get("type") or error)[:500]
    return str(error)[:500]
