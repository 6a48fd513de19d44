"""Turns the body of an answer into the reply: chunks with their arrival, text, usage, and the facts to judge it by."""

from __future__ import annotations

from collections.abc import Callable

from tokentrace.client.chunks import Reading, parse_json, possible, read_event, read_object
from tokentrace.client.facts import KEPT_BYTES, Facts
from tokentrace.client.hiding import Hider
from tokentrace.client.sse import Comment, Event, SseParser
from tokentrace.client.transport import MAX_BODY_BYTES, BodyTooLong
from tokentrace.exchange import TOKEN_KINDS, Chunk, Exchange

_SSE_STARTS = (b"data:", b"event:", b"id:", b"retry:", b":")


class Reply:
    """Feed it the body as it arrives. What it says goes into the exchange; `done` is True after [DONE].

    `on_text` is shown the text as it comes, but for what may be the beginning of a key of the `hider`, which waits.
    """

    def __init__(
        self,
        exchange: Exchange,
        facts: Facts,
        on_text: Callable[[str], None] | None = None,
        hider: Hider | None = None,
    ) -> None:
        self._exchange = exchange
        self._facts = facts
        self._on_text = on_text
        self._live = hider.live(self._show) if hider is not None and on_text is not None else None
        self._parser = SseParser()
        self._start = b""
        self._mode = ""  # "sse", "whole" or "" while it cannot be told
        self._whole: list[bytes] = []
        self._whole_bytes = 0
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._last_ns = 0
        self.done = False
        self.display_error = ""

    def feed(self, data: bytes, now_ns: int) -> None:
        """Bytes that left the socket at `now_ns`. Raises SseTooLong, BodyTooLong."""
        self._last_ns = now_ns
        if not self._mode:
            self._start += data
            self._mode = _mode(self._start, self._facts.content_type)
            if not self._mode:
                return
            data, self._start = self._start, b""
        if self._mode == "whole":
            self._whole.append(data)
            self._whole_bytes += len(data)
            if self._whole_bytes > MAX_BODY_BYTES:
                raise BodyTooLong(f"the answer is longer than {MAX_BODY_BYTES:,} bytes")
            return
        self._exchange.streamed = True
        if not self._facts.events and len(self._facts.body) < KEPT_BYTES:
            self._facts.body += data[: KEPT_BYTES - len(self._facts.body)]
        for item in self._parser.feed(data):
            self._take(item, now_ns)

    def close(self) -> None:
        """The body has ended, well or badly."""
        if not self._mode and self._start:
            self._whole.append(self._start)
        body = b"".join(self._whole)
        if body:
            self._facts.body = body[:KEPT_BYTES]
            self._read_whole(body)
        rest = self._parser.close()
        if rest is not None and not self.done:
            if rest.data.strip() == "[DONE]" or _is_json(rest.data):
                self._take(rest, self._last_ns)  # whole but for its blank line: many servers leave that out at the end
            else:
                self._facts.unfinished_event = True
        if self._live is not None:
            self._live.end()
        self._exchange.text, self._exchange.reasoning = "".join(self._text), "".join(self._reasoning)

    def _read_whole(self, body: bytes) -> None:
        if self._facts.is_html:
            return
        try:
            value = parse_json(body)
        except ValueError:
            # One JSON object a line is another protocol; its first line tells which.
            line = body.lstrip().partition(b"\n")[0]
            if _is_json(line):
                first = read_object(parse_json(line))
                self._facts.keys, self._facts.shape = first.keys, first.shape
            return
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        reading = read_object(value)
        self._keep(reading, self._last_ns, len(body))
        self._facts.events = 0
        if reading.has_choices and reading.error is None and not self._facts.finish_reason:
            # Nothing can be missing from one JSON object.
            self._facts.saw_done = True

    def _take(self, item: Event | Comment, now_ns: int) -> None:
        exchange, facts = self._exchange, self._facts
        if isinstance(item, Comment):
            exchange.keepalives += 1
            facts.keepalives += 1
            exchange.chunks.append(Chunk(now_ns, "keepalive", item.text[:200], size_bytes=item.size_bytes))
            return
        reading = read_event(item)
        facts.events += 1
        if reading.malformed:
            facts.malformed_count += 1
            exchange.malformed += 1
            facts.malformed = facts.malformed or item.data[:200]
        self._keep(reading, now_ns, item.size_bytes)

    def _keep(self, reading: Reading, now_ns: int, size: int) -> None:
        exchange, facts = self._exchange, self._facts
        exchange.response_id = exchange.response_id or reading.response_id
        exchange.response_model = exchange.response_model or reading.model
        facts.has_choices = facts.has_choices or reading.has_choices
        facts.keys = facts.keys or reading.keys
        facts.shape = facts.shape or reading.shape
        facts.strange = facts.strange or reading.strange
        if reading.usage is not None:
            exchange.usage, odd = possible(reading.usage)
            facts.counted = exchange.output_tokens
            if odd and odd not in exchange.notes:
                exchange.notes.append(odd)
        if reading.error is not None and facts.reply_error is None:
            facts.reply_error = reading.error
        if finish := reading.finish.get(0):
            exchange.finish_reason = facts.finish_reason = finish
        counted = exchange.output_tokens if reading.usage is not None else None
        for piece in reading.pieces:
            exchange.chunks.append(Chunk(now_ns, piece.kind, piece.text, piece.choice, size, counted))
            size = 0
            if piece.kind == "done":
                self.done = exchange.saw_done = facts.saw_done = True
            if piece.choice:
                continue
            if piece.kind in TOKEN_KINDS:
                facts.text_chunks += 1
            if piece.kind == "reasoning":
                self._reasoning.append(piece.text)
            elif piece.kind == "content":
                self._text.append(piece.text)
                (self._live.add if self._live is not None else self._show)(piece.text)

    def _show(self, text: str) -> None:
        """A display that fails must not look like a network that fails, nor end the request."""
        if self._on_text is None:
            return
        try:
            self._on_text(text)
        except Exception as error:  # noqa: BLE001  # whatever the caller's function raises
            self._on_text = None
            self.display_error = f"{type(error).__name__}: {error}"


def _mode(start: bytes, content_type: str) -> str:
    """By the bytes rather than by the header, which is often wrong; "" when there are too few of them."""
    seen = start.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    if seen.startswith(_SSE_STARTS):
        return "sse"
    if seen[:1] in (b"{", b"[", b"<"):
        return "whole"
    if any(s.startswith(seen) for s in _SSE_STARTS):
        return ""
    return "sse" if "text/event-stream" in content_type.lower() else "whole"


def _is_json(text: str | bytes) -> bool:
    try:
        parse_json(text)
    except ValueError:
        return False
    return True
