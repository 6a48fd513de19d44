"""What the groups keep of texts, token ids and what compilers tell, and where a chat's messages hold their texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MAX_TEXT = 2000  # characters
MAX_IDS = 4096
MAX_TOLD = 300  # characters


def cut(value: Any) -> str:
    """What a compiler tells as text, not too long; "" where it tells nothing."""
    return "" if value is None else str(value)[:MAX_TOLD]


def texts_of(messages: Any) -> Iterator[str]:
    """The texts of a chat's messages, whose content is a text or a list of parts."""
    for message in messages or ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            yield from (
                part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
