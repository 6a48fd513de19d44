"""Texts as the attributes of a span show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHOWN = 60  # characters


def quote(text: str) -> str:
    """In quotation marks, cut, on one line."""
    line = text[: SHOWN + 1].replace("\n", "\\n").replace("\r", "\\r")
    return f'"{line[:SHOWN]}…"' if len(line) > SHOWN else f'"{line}"'


def prompt_of(request: Mapping[str, Any]) -> str:
    """What the user said last; of content in parts the texts."""
    for message in reversed(request.get("messages") or ()):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, list):
                return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
            return str(content or "")
    prompt = request.get("prompt")
    return prompt if isinstance(prompt, str) else ""
