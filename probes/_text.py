"""Texts as the attributes of a span show them."""

from __future__ import annotations

SHOWN = 60  # characters


def quote(text: str) -> str:
    """In quotation marks, cut, on one line."""
    line = text[: SHOWN + 1].replace("\n", "\\n").replace("\r", "\\r")
    return f'"{line[:SHOWN]}…"' if len(line) > SHOWN else f'"{line}"'
