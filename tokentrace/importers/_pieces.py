"""A Chrome trace's event list as a stream of decoded pieces, tolerant of damage.

A piece is cut behind a complete event and decoded into typed structs: msgspec skips what is not asked for, and numbers
stay text until they become integer nanoseconds. A piece that is not clean JSON is taken event by event with the
standard library's tolerant decoder; what cannot be read is counted. Only the fields named here are ever looked at.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any, TypeAlias

import msgspec

from tokentrace.errors import UsageError
from tokentrace.importers import _source
from tokentrace.importers.columns import NONE, Lost
from tokentrace.wording import plural

Id: TypeAlias = "int | str | float | None"

NOTHING = msgspec.Raw(b"")
_NULL = msgspec.Raw(b"null")
_HEADER_LIMIT = 64 << 20
_EVENT_LIMIT = 64 << 20
_TAIL_LIMIT = 4 << 20
_PATIENCE = 4 << 20
_CANDIDATES = 64  # places that look like the list of events; a recording has one or two
_TORN = 16  # a torn literal, number or escape is no longer than this

_FIELDS = rb"(?:ph|name|cat|pid|tid|ts|args|dur|id|s|bp)"
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{\s*\"" + _FIELDS + rb"\"\s*:)")
_START = re.compile(r"[,\[\]}]\s*(\{\s*\"" + _FIELDS.decode() + r"\"\s*:)")
_EVENTS_KEY = re.compile(rb"\"traceEvents\"\s*:\s*\[")
_TOLERANT = JSONDecoder(strict=False, parse_float=lambda text: _Text(text), parse_constant=lambda text: None)


class _Text(str):
    """A number kept as the text it was."""


class Args(msgspec.Struct, gc=False):
    correlation: Id = NONE
    external: Id = msgspec.field(default=NONE, name="External id")
    external_2021: Id = msgspec.field(default=NONE, name="external id")
    device: Id = None
    stream: Id = None
    bytes: Id = -1
    graph_node: Id = msgspec.field(default=0, name="graph node id")
    grid: msgspec.Raw = NOTHING
    block: msgspec.Raw = NOTHING
    dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = _NULL
    dur: msgspec.Raw = _NULL
    args: Args | None = None


_decode = msgspec.json.Decoder(list[Event]).decode


class Reader:
    """Cuts the stream into lists of events and keeps what stands before and after them."""

    def __init__(self, name: str, lost: Lost) -> None:
        self.name = name
        self.lost = lost
        self.header = b""
        self.tail = b""
        self.done = False
        self._damaged = 0

    def pieces(self, stream: Iterator[bytes], progress: Callable[[int], None] | None) -> Iterator[list[Event]]:
        held: list[bytes] = []
        size = retry = seen = 0
        started = False
        for piece in stream:
            seen += len(piece)
            if progress:
                progress(seen)
            if self.done:
                if len(self.tail) < _TAIL_LIMIT:
                    self.tail += piece
                continue
            held.append(piece)
            size += len(piece)
            if size < retry:
                continue
            rest = held[0] if len(held) == 1 else b"".join(held)
            if not started:
                begin = self._find_events(rest)
                if begin < 0:
                    if size > _HEADER_LIMIT:
                        break
                    held, retry = [rest], min(2 * size, _HEADER_LIMIT + 1)
                    continue
                started = True
                rest = rest[begin:]
            events, rest = self._take(rest)
            if events:
                yield events
            held, size = [rest] if rest else [], len(rest)
            # What could not be taken is looked at again when there is twice as much: never more work than the file.
            retry = min(2 * size, _EVENT_LIMIT + 1) if size > 2 * _source.CHUNK else 0
            if size > _EVENT_LIMIT and not self.done:
                told = f"an event longer than {_EVENT_LIMIT >> 20} MiB: it and what follows is lost"
                self.lost.add(1, told, torn=True)
                return
        rest = b"".join(held)
        if not started:
            started_at = self._find_events(rest) if retry else -1
            if started_at < 0:
                raise self._no_events(rest)
            rest = rest[started_at:]
        if not self.done:
            events, rest = self._take(rest, last=True)
            if events:
                yield events
            if not self.done:
                rest = rest.strip(b", \r\n\t")
                # Where the file ends as one does, something in the list kept its end from being found.
                whole = rest.endswith((b"]", b"}"))
                told = (
                    "no event could be read up to the end"
                    if whole
                    else "the file is cut: the list of events has no end"
                )
                self.lost.add(1 if rest else 0, told, torn=True)
        if self._damaged:
            self.lost.add(0, f"{plural(self._damaged, 'damaged event')} skipped")

    def _find_events(self, text: bytes) -> int:
        """Where the first event begins, -1 when it is not to be seen yet."""
        begin = text[:64].removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if begin == b"[":
            return text.index(b"[") + 1
        if begin not in (b"{", b""):
            raise self._no_events(text)
        first = -1
        for match in itertools.islice(_EVENTS_KEY.finditer(text), _CANDIDATES):
            first = match.end() if first < 0 else first
            candidate = text[: match.start()] + b'"":0}'
            try:
                msgspec.json.decode(candidate.removeprefix(b"\xef\xbb\xbf"), type=dict[str, msgspec.Raw])
            except msgspec.DecodeError:
                continue
            self.header = candidate
            return match.end()
        if first >= 0:  # a damaged header: the events count more
            self.header = text[:first]
        return first

    def _no_events(self, text: bytes) -> UsageError:
        begin = text.lstrip()[:1]
        if begin != b"{":
            return UsageError(
                f"{self.name} is not a recording: it is neither JSON nor an nsys export",
                fix="give a torch.profiler trace, an nsys .sqlite export or a rocprofv3 JSON result",
            )
        return UsageError(
            f"{self.name} is JSON, but no profiler trace: there is no list 'traceEvents' in it",
            fix="give a torch.profiler trace, an nsys .sqlite export or a rocprofv3 JSON result",
        )

    def _take(self, text: bytes, last: bool = False) -> tuple[list[Event], bytes]:
        """Events of the clean beginning of `text`, and what is left of it."""
        end = len(text) if last else _boundary(text)
        if end < 0:
            return self._short(text)
        block = b"".join((b"[", memoryview(text)[:end], b"" if last else b"]"))
        try:
            events = _decode(block)
        except (msgspec.DecodeError, RecursionError) as error:
            cut = _trailing(error)
            if cut is None:
                return self._salvage(text, last)
            # The list ends inside this block; what follows belongs to the file, not to an event.
            close = block.rfind(b"]", 0, cut)
            try:
                events = _decode(block[: close + 1])
            except (msgspec.DecodeError, RecursionError):
                return self._salvage(text, last)
            self.done = True
            self.tail = text[close:]
            return events, b""
        if last:
            self.done = True
            return events, b""
        return events, text[end:].lstrip(b", \r\n\t")

    def _short(self, text: bytes) -> tuple[list[Event], bytes]:
        """No boundary yet: more must come, unless the list is already at its end."""
        if re.match(rb"\s*\]", text):
            self.done = True
            self.tail = text.lstrip()[1:]
            return [], b""
        if len(text) > 2 * _source.CHUNK or text.rstrip()[-1:] in (b"}", b"]"):
            return self._salvage(text, False)
        return [], text

    def _salvage(self, text: bytes, last: bool) -> tuple[list[Event], bytes]:
        """Event by event with the tolerant decoder. Surrogate escapes carry undecodable bytes through unharmed."""
        string = text.decode("utf-8", "surrogateescape")
        events: list[Event] = []
        at = 0
        length = len(string)
        while True:
            while at < length and string[at] in ", \r\n\t":
                at += 1
            if at >= length:
                return events, b""
            if string[at] == "]":
                self.done = True
                self.tail = string[at + 1 :].encode("utf-8", "surrogateescape")
                return events, b""
            if string[at] == "{":
                try:
                    begin = at
                    value, at = _TOLERANT.raw_decode(string, begin)
                    if string.find("\0", begin, at) >= 0:  # a hole of the disk: what it swallowed may be many events
                        self.lost.events += 1
                        self._damaged += 1
                        continue
                    event = _coerce(value)
                    if event is not None:
                        events.append(event)
                    continue
                except JSONDecodeError as error:
                    # An event that only lacks its end is kept until more has come; one that stays open for long is
                    # damaged (a lost quote) and must not hold up the rest.
                    open_end = error.pos >= length - _TORN or error.msg.startswith("Unterminated string")
                    if open_end and not last and length - at < _PATIENCE:
                        return events, string[at:].encode("utf-8", "surrogateescape")
                except (ValueError, RecursionError):
                    pass
            found = _START.search(string, at + 1)
            if found is None:
                return events, string[at:].encode("utf-8", "surrogateescape")
            self.lost.events += 1
            self._damaged += 1
            at = found.start(1)


def _boundary(text: bytes) -> int:
    """Behind the last event of which it is sure that it is complete, -1 when there is none. Events are short, so the
    search begins close to the end."""
    for size in (1 << 12, 1 << 16, len(text)):
        end = -1
        for match in _BOUNDARY.finditer(text, max(0, len(text) - size)):
            end = match.start() + 1
        if end >= 0 or size >= len(text):
            return end
    return -1


def _trailing(error: BaseException) -> int | None:
    found = re.search(r"trailing characters \(byte (\d+)\)", str(error))
    return int(found[1]) if found else None


def _coerce(value: Any) -> Event | None:
    """A tolerant reading of one event; None when it is no event at all."""
    if not isinstance(value, dict) or "ph" not in value:
        return None
    args = value.get("args")
    args = args if isinstance(args, dict) else {}

    def ident(key: str, default: Any) -> Any:
        found = args.get(key, default)
        if isinstance(found, _Text):
            return str(found)
        return found if isinstance(found, (int, str)) and not isinstance(found, bool) else default

    def text(key: str) -> str:
        found = value.get(key)
        return "" if found is None else found if type(found) is str else str(found)

    def track(key: str) -> Any:
        found = value.get(key)
        return found if isinstance(found, (int, str)) else None

    def raw(source: dict[str, Any], key: str, default: msgspec.Raw) -> msgspec.Raw:
        found = source.get(key)
        if found is None or isinstance(found, bool):
            return default if key not in source else _NULL
        try:
            return msgspec.Raw(str(found).encode("ascii", "replace").replace(b"\n", b"?"))
        except ValueError:  # an integer of thousands of digits
            return _NULL

    return Event(
        ph=text("ph"), cat=text("cat"), name=text("name"), pid=track("pid"), tid=track("tid"),
        ts=raw(value, "ts", _NULL), dur=raw(value, "dur", _NULL),
        args=Args(
            correlation=ident("correlation", NONE), external=ident("External id", NONE),
            external_2021=ident("external id", NONE), device=ident("device", None), stream=ident("stream", None),
            bytes=ident("bytes", -1), graph_node=ident("graph node id", 0),
            grid=raw(args, "grid", NOTHING), block=raw(args, "block", NOTHING),
            dims=raw(args, "Input Dims", NOTHING),
        ),
    )  # fmt: skip
