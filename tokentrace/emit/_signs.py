"""Text that a terminal can be given: our signs in ASCII where needed, control characters of others made harmless."""

from __future__ import annotations

import re

#: Our signs, for terminals and files that take only ASCII.
ASCII = str.maketrans(
    {"→": "->", "↓": "v", "↑": "^", "…": "...", "–": "-", "×": "x", "µ": "u", "·": "|", "├": "|", "└": "`", "│": "|",
     "─": "-", "±": "+-", "≤": "<=", "≥": ">="}
)  # fmt: skip
#: C0 and C1 control characters, and those that turn the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean(text: str, newlines: bool = False) -> str:
    """Control characters as escapes, line ends too unless they are wanted."""
    text = text.replace("\r\n", "\n")
    if not newlines:
        text = text.replace("\n", "\\n").replace("\t", " ")
    text = _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def cut(text: str, width: int, ellipsis: str = "…") -> str:
    """At most `width` terminal cells, the end replaced by the ellipsis."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    kept = max(0, width - len(ellipsis))
    return (set_cell_size(text, kept).rstrip() + ellipsis)[:width] if width > 0 else ""
