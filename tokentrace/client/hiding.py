"""Keeps the keys of a request out of every text that a server may have written them into.

    hider = Hider(keys.secrets(headers, query))
    hider.text("Incorrect API key: \\u0073k-abc…")   # an error, a note, a header: also what only looks like a key
    hider.reply("you sent sk-abc…")                  # what a model wrote: the request's own keys alone
    hider.pieces(["you sent sk-", "abc…"])           # the same in pieces, each of which stays a piece
    hider.live(print)                                # while it streams: what may be a key's beginning waits

A key is found as it was sent and in other letters' case, with JSON, percent, HTML or backslash escapes, over line
breaks, as hex, and as base64, also inside something longer (`user:key`). What hiding must not do is to spoil ordinary
text: a key of fewer than eight letters, or digits, or of fewer than four characters, is hidden only where it stands as
a word; one of one or two characters stands in any reply by chance, so it is hidden in errors alone; the stand-in words
of `keys` are no secrets.
"""

from __future__ import annotations

import base64
import html
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

HIDDEN = "(hidden)"
#: What a key of a well-known service looks like, wherever it stands.
SHAPE = re.compile(
    r"\b(sk-(?:ant-|or-|proj-)?[A-Za-z0-9_-]{16,}|gsk_[A-Za-z0-9]{16,}|hf_[A-Za-z0-9]{16,}|xai-[A-Za-z0-9]{16,}|"
    r"nvapi-[A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{20,}|gh[opsu]_[A-Za-z0-9]{16,}|"
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*)"
)
_UNIT = (
    r"\\+u00(?P<u>[0-9a-fA-F]{2})|\\+x(?P<x>[0-9a-fA-F]{2})|%(?:25)*(?P<p>[0-9a-fA-F]{2})|"
    r"(?P<h>&(?:#[xX]0*[0-9a-fA-F]{2}|#0*[0-9]{2,3}|amp|quot|lt|gt|apos);)|(?P<e>\\+(?=[^\w\s\\]))|(?P<b>\\{2,})"
)
_BREAK = r"(?P<n>(?<![ \t])[ \t]*(?:[\r\n]|(?<!\\)\\+[rn])(?:\s|\\+[rnt])*)"
_UNITS = re.compile(_UNIT)
_UNITS_JOINED = re.compile(f"{_BREAK}|{_UNIT}")
_BREAKS = re.compile(_BREAK)
#: The beginning of a unit at the end of a text.
_CUT_UNIT = re.compile(
    r"(?:\\+(?:u0{0,2}[0-9a-fA-F]?|x[0-9a-fA-F]?)?|%(?:25)*[0-9a-fA-F]?|&(?:#[xX]?[0-9a-fA-F]{0,5}|[a-z]{0,4}))\Z"
)
_SMALL = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_SHORT, _LONG = 4, 8
_DEEP = 60
_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Needle:
    """What is looked for in the plain form of a text. `exact`: base64, where the case counts."""

    text: str
    exact: bool = False
    word: bool = False  # only where it stands alone
    in_reply: bool = True
    distinctive: bool = False  # stands in no text by chance, so that it may be replaced before that text is read


class Hider:
    """See the module. Without keys it costs nothing and only `text` changes anything."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = {needle.text: needle for one in secrets if one for needle in _needles(one)}
        self._needles = sorted(found.values(), key=lambda n: len(n.text), reverse=True)
        self._in_reply = [n for n in self._needles if n.in_reply]
        self._raw = [n for n in self._needles if n.distinctive]

    def text(self, text: str) -> str:
        """For what a server or a library says: errors, notes, headers."""
        return _without(text, [*_spans(text, self._needles), *(m.span() for m in SHAPE.finditer(text))])

    def value(self, value: Any, depth: int = 0) -> Any:
        """The same for all texts of a JSON value. What is nested too deeply to be of use is hidden whole."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (list, dict)) and depth > _DEEP:
            return HIDDEN
        if isinstance(value, list):
            return [self.value(item, depth + 1) for item in value]
        if isinstance(value, dict):
            return {self.name(name): self.value(item, depth + 1) for name, item in value.items()}
        return value

    def reply(self, text: str) -> str:
        """For what a model wrote, whole."""
        return _without(text, _spans(text, self._in_reply))

    def holds(self, name: str) -> bool:
        """Is there a key in this name? One that may be an ordinary word is none, as names are made of these."""
        return bool(_spans(name, [needle for needle in self._needles if not needle.word]))

    def name(self, name: str) -> str:
        """For the name of a field or of a model. What only has a word in common with a key stays, as in `holds`."""
        return self.text(name) if self.holds(name) or SHAPE.search(name) else name

    def pieces(self, pieces: Sequence[str]) -> list[str]:
        """For what a model wrote in pieces: together they read as `reply` makes of the whole."""
        whole = "".join(pieces)
        spans = _merged(_spans(whole, self._in_reply))
        if not spans:
            return list(pieces)
        kept, begin = [], 0
        for piece in pieces:
            kept.append(_part(whole, begin, begin + len(piece), spans))
            begin += len(piece)
        return kept

    def live(self, show: Callable[[str], None]) -> Live | None:
        """Shows a reply while it comes; None where no key is in play, and nothing has to wait."""
        return Live(self._in_reply, show) if self._in_reply else None

    def raw(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The bytes of a body, before anybody has read what they mean: only what can stand in none by chance."""
        if not self._raw:
            yield from chunks
            return
        found: list[str] = []
        live = Live(self._raw, found.append, raw=True)
        for data in chunks:
            live.add(data.decode("latin-1"))
            if found:
                yield "".join(found).encode("latin-1")
                found.clear()
        live.end()
        if found:
            yield "".join(found).encode("latin-1")

    def raw_text(self, text: str) -> str:
        """The same for a text at once."""
        return _without(text, _spans(text, self._raw, raw=True))


class Live:
    """Passes text on, but for what may be the beginning of a key: that waits for what follows it."""

    def __init__(self, needles: list[_Needle], show: Callable[[str], None], *, raw: bool = False) -> None:
        self._needles, self._show, self._raw = needles, show, raw
        self._before = self._held = ""

    def add(self, text: str) -> None:
        self._held += text
        done = self._before + self._held
        spans = _merged(_spans(done, self._needles, raw=self._raw, ended=False))
        keep = max(_open(done, self._needles, self._raw, spans[-1][0] if spans else 0), len(self._before))
        if any(begin < keep < end for begin, end in spans):
            keep = next(end for begin, end in spans if begin < keep < end)
        self._pass(done, keep, spans)

    def end(self) -> None:
        """Nothing more comes."""
        done = self._before + self._held
        self._pass(done, len(done), _merged(_spans(done, self._needles, raw=self._raw)))

    def _pass(self, done: str, keep: int, spans: list[_Span]) -> None:
        begin = len(self._before)
        told = _part(done, begin, keep, [(max(a, begin), b) for a, b in spans if b > begin])
        self._before, self._held = done[max(0, keep - 1) : keep], done[keep:]
        if told:
            self._show(told)


class _Plain:
    """A text without its escapes, and where each of its characters stood. Escapes may be nested in each other."""

    def __init__(self, text: str, *, joined: bool = False) -> None:
        #: Of each stretch of `text`: where it begins there; where it stood, from which backslash on, and until where
        #: (0: it stood there as it is).
        self._begins: list[int] = []
        self._where: list[tuple[int, int, int]] = []
        if not joined and "\\" not in text and "%" not in text and "&" not in text:
            self._add(0, 0, 0, 0)
            self.text, self.small = text, _small(text)
            return
        parts: list[str] = []
        at = size = 0
        escaped = -1
        for match in (_UNITS_JOINED if joined else _UNITS).finditer(text):
            begin, end = match.span()
            if begin > at:
                self._add(size, at, escaped if escaped >= 0 else at, 0)
                parts.append(text[at:begin])
                size, escaped = size + begin - at, -1
            if decoded := _decoded(match):
                self._add(size, begin, escaped if escaped >= 0 else begin, end)
                parts.append(decoded)
                size, escaped = size + 1, -1
            elif match["e"] is not None and escaped < 0:
                escaped = begin
            at = end
        if at < len(text):
            self._add(size, at, escaped if escaped >= 0 else at, 0)
            parts.append(text[at:])
        self.text = "".join(parts)
        self.small = _small(self.text)

    def _add(self, size: int, begin: int, lead: int, end: int) -> None:
        self._begins.append(size)
        self._where.append((begin, lead, end))

    def span(self, begin: int, end: int) -> _Span:
        """Where a stretch of the plain text (not empty) stood."""
        first = bisect_right(self._begins, begin) - 1
        at, lead, _ = self._where[first]
        offset = begin - self._begins[first]
        last = bisect_right(self._begins, end - 1) - 1
        stood, _, ended = self._where[last]
        return (at + offset if offset else lead), ended or stood + end - self._begins[last]


def _small(text: str) -> str:
    """In small letters and as long as before, which str.lower does not promise beyond ASCII."""
    return text.lower() if text.isascii() else text.translate(_SMALL)


def _decoded(match: re.Match[str]) -> str:
    code = match["u"] or match["x"] or match["p"]
    if code:
        return chr(int(code, 16))
    if match["h"]:
        return html.unescape(match["h"])
    return "\\" if match["b"] else ""


def _needles(secret: str) -> Iterator[_Needle]:
    itself = _small(secret)
    plain = _Plain(secret).small  # differs where the key itself holds what could be an escape
    size = len(secret)
    digit = any(c.isdecimal() for c in secret)
    distinctive = size >= 16 or (size >= _LONG and digit)
    word = size < _SHORT or (size < _LONG and (itself.isalpha() or itself.isdecimal()))
    for form in {itself, plain} - {""}:
        yield _Needle(form, word=word or len(form) < _SHORT, in_reply=size > 2, distinctive=distinctive)
    data = secret.encode("utf-8", "replace")
    if size < _SHORT:
        yield _Needle(base64.b64encode(data).decode().rstrip("="), exact=True, word=True, in_reply=size > 2)
        return
    yield _Needle(data.hex(), distinctive=distinctive)
    for before in range(3):  # bytes before it, in the group of three that begins it
        core = base64.b64encode(b"\0" * before + data)[-(-8 * before // 6) : 8 * (before + len(data)) // 6].decode()
        for spelled in {core, core.translate(str.maketrans("+/", "-_"))}:
            yield _Needle(spelled, exact=True, distinctive=distinctive)


def _spans(text: str, needles: Sequence[_Needle], *, raw: bool = False, ended: bool = True) -> list[_Span]:
    """Where these stand. `ended`: nothing follows the text, so the greater part of a key at its end is one cut off."""
    if not needles or not text:
        return []
    found: list[_Span] = []
    for joined in (False, True):
        if joined and (raw or not _BREAKS.search(text)):
            continue
        plain = _Plain(text, joined=joined)
        for needle in needles:
            if joined and (needle.word or len(needle.text) < _LONG):
                continue
            hay = plain.text if needle.exact else plain.small
            at = hay.find(needle.text)
            while at >= 0:
                end = at + len(needle.text)
                if not needle.word or _alone(hay, at, end, ended):
                    found.append(_run(text, *plain.span(at, end)) if needle.exact and not raw else plain.span(at, end))
                at = hay.find(needle.text, end)
            if ended and not (needle.exact or needle.word or raw):
                stem = hay.rstrip("…. ")
                size = _beginning(stem, needle.text, max(6, len(needle.text) // 2))
                if size:
                    found.append(plain.span(len(stem) - size, len(stem)))
    return found


def _alone(hay: str, begin: int, end: int, ended: bool) -> bool:
    """Is it a word of its own? What may go on is not, yet."""
    before, after = hay[begin - 1 : begin] if begin else "", hay[end : end + 1]
    return not before.isalnum() and not after.isalnum() and (ended or bool(after))


def _run(text: str, begin: int, end: int) -> _Span:
    """All of the base64 that a stretch of it stands in: its first and last characters hold bits of the key too."""
    while begin and _is_base64(text[begin - 1]):
        begin -= 1
    while end < len(text) and (_is_base64(text[end]) or text[end] == "="):
        end += 1
    return begin, end


def _is_base64(one: str) -> bool:
    return one.isascii() and (one.isalnum() or one in "+/-_")


def _beginning(hay: str, needle: str, least: int = 1, whole: bool = False) -> int:
    """How many characters of the needle's beginning, `least` or more but not all (unless `whole`), the text ends in."""
    if hay[-1:] not in needle:  # as the end of a line, as most reads end, is in no key
        return 0
    most = len(needle) if whole else len(needle) - 1
    return next((n for n in range(min(most, len(hay)), least - 1, -1) if hay.endswith(needle[:n])), 0)


def _open(text: str, needles: Sequence[_Needle], raw: bool, begin: int) -> int:
    """From where on the text may be the beginning of one of these; its length when it is not."""
    keep = len(text)
    if raw and text.endswith("\n"):  # as most reads end; no header, and so no key, has a line break
        return keep
    if (cut := _CUT_UNIT.search(text, max(begin, keep - 40))) is not None:
        keep = cut.start()
    rest = text[begin:keep]
    if not rest:
        return keep
    for joined in (False, True):
        if joined and (raw or not _BREAKS.search(rest)):
            continue
        plain = _Plain(rest, joined=joined)
        for needle in needles:
            hay = plain.text if needle.exact else plain.small
            if size := _beginning(hay, needle.text, whole=needle.word):
                keep = min(keep, begin + plain.span(len(hay) - size, len(hay))[0])
    return keep


def _merged(spans: Iterable[_Span]) -> list[_Span]:
    found: list[_Span] = []
    for begin, end in sorted(spans):
        if found and begin < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _without(text: str, spans: Iterable[_Span]) -> str:
    merged = _merged(spans)
    return _part(text, 0, len(text), merged) if merged else text


def _part(text: str, begin: int, end: int, spans: Sequence[_Span]) -> str:
    """This part of the text, less the spans (in order), each replaced in the part that it begins in."""
    kept: list[str] = []
    for first, last in spans:
        if last <= begin or first >= end:
            continue
        kept.append(text[begin:first])
        if first >= begin:
            kept.append(HIDDEN)
        begin = min(last, end)
    kept.append(text[begin:end])
    return "".join(kept)
