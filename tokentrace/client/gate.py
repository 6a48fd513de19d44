"""The last gate before an exchange goes into a trace, a report or onto a screen: no key passes it."""

from __future__ import annotations

from tokentrace.client.hiding import Hider
from tokentrace.errors import EndpointError
from tokentrace.exchange import TOKEN_KINDS, Chunk, Exchange

_TOLD = "the reply held the key that was sent; it stands as (hidden) here"


def hide_keys(x: Exchange, hider: Hider) -> None:
    """Hide the keys in everything that the server may have had a part in. Times and counts stay as they are.

    A key that came in several chunks stands as hidden in the chunk that it begins in.
    """
    text, reasoning = hider.reply(x.text), hider.reply(x.reasoning)
    if (text, reasoning) != (x.text, x.reasoning):
        x.text, x.reasoning = text, reasoning
        x.notes.append(_TOLD)
    _in_chunks(x.chunks, hider)
    x.response_id, x.response_model = hider.text(x.response_id), hider.name(x.response_model)
    x.finish_reason = hider.text(x.finish_reason)
    x.usage = hider.value(x.usage)
    x.response_headers = {name: hider.text(value) for name, value in x.response_headers.items()}
    x.notes = [hider.text(note) for note in x.notes]
    if x.error is not None:
        x.error = hidden_error(x.error, hider)


def drop_told(x: Exchange) -> None:
    """Where hiding failed: leave out all that the server may have had a part in."""
    x.text = x.reasoning = x.response_id = x.response_model = x.finish_reason = ""
    x.chunks, x.usage, x.response_headers = [], None, {}
    x.notes = ["what the server sent is left out, as no key could be looked for in it"]
    if x.error is not None:
        x.error = EndpointError("the request failed", layer=x.error.layer, check=x.error.check)


def hidden_error(error: EndpointError, hider: Hider) -> EndpointError:
    """The same error without the keys."""
    texts = str(error), error.fix, error.detail
    message, fix, detail = (hider.text(one) for one in texts)
    if (message, fix, detail) == texts:
        return error
    return EndpointError(message, fix=fix, layer=error.layer, detail=detail, check=error.check)


def _in_chunks(chunks: list[Chunk], hider: Hider) -> None:
    streams: dict[tuple[str, int], list[Chunk]] = {}
    for chunk in chunks:
        if chunk.kind in TOKEN_KINDS:
            streams.setdefault((chunk.kind, chunk.choice), []).append(chunk)
        elif chunk.text:
            chunk.text = hider.text(chunk.text)
    for one in streams.values():
        for chunk, text in zip(one, hider.pieces([chunk.text for chunk in one]), strict=True):
            chunk.text = text
