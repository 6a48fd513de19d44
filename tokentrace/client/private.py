"""Keeps the prompt out of what a server's error repeats of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HIDDEN = "(your prompt)"
#: As long as this, a piece that both have in common is the prompt and no coincidence.
_PIECE = 12
_SHORTEST = 5


def texts(messages: object) -> tuple[str, ...]:
    """Everything that a user wrote into the messages of a request."""
    return tuple(dict.fromkeys(t for t in _texts(messages) if len(t.strip()) >= _SHORTEST))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in ("role", "type"):
                yield from _texts(inner)
    elif isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        for inner in value:
            yield from _texts(inner)


def without(text: str, private: Iterable[str]) -> str:
    """The text with every piece of these hidden, also as JSON writes them."""
    for one in private:
        for form in dict.fromkeys((one, " ".join(one.split()), json.dumps(one)[1:-1], _json(one))):
            text = _hide(text, form)
    return text


def _json(text: Any) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _hide(text: str, form: str) -> str:
    size = min(_PIECE, len(form))
    if size < _SHORTEST:
        return text
    if size < _PIECE:
        return text.replace(form, HIDDEN)
    kept: list[str] = []
    at = 0
    while at < len(text):
        if text[at : at + size] not in form or at + size > len(text):
            kept.append(text[at])
            at += 1
            continue
        end = at + size
        while end < len(text) and text[at : end + 1] in form:
            end += 1
        kept.append(HIDDEN)
        at = end
    return "".join(kept)
