"""Keeps the prompt out of what a server's error repeats of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    """The text with every piece of these hidden, also as JSON writes them.

    In time proportional to their lengths: a prompt may be long, and the server may repeat all of it.
    """
    forms = {form for one in private for form in _forms(one)}
    runs = _between(text, [form for form in forms if len(form) >= _PIECE])
    short = sorted((form for form in forms if _SHORTEST <= len(form) < _PIECE), key=len, reverse=True)
    if short:
        words = re.compile("|".join(map(re.escape, short)))
        runs = [words.sub(HIDDEN, run) for run in runs]
    return HIDDEN.join(runs)


def _forms(text: str) -> tuple[str, ...]:
    return text, " ".join(text.split()), json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


def _between(text: str, forms: Sequence[str]) -> list[str]:
    """What remains of the text between the pieces that it has in common with any of these."""
    if not forms:
        return [text]
    common = set(_pieces(text)).intersection(piece for form in forms for piece in _pieces(form))
    runs: list[str] = []
    begin = 0
    for at, piece in enumerate(_pieces(text) if common else ()):
        if piece in common:
            if at >= begin:
                runs.append(text[begin:at])
            begin = at + _PIECE
    return [*runs, text[begin:]]


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + _PIECE] for at in range(len(text) - _PIECE + 1))
