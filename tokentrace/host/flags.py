"""The options of a command line, as vLLM's, SGLang's and our own server take them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def flags_of(command: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """(option without its dashes -> value, everything else): --name value, --name=value, --name.

    Underscores count as dashes, of one that is given twice the last holds, several values are joined by spaces. What
    stands behind a value without belonging to it (a model behind a port) cannot be told from it: of an option that
    takes one value, it is the first word.
    """
    flags: dict[str, str] = {}
    rest: list[str] = []
    at = 0
    while at < len(command):
        part = command[at]
        at += 1
        if not part.startswith("--"):
            rest.append(part)
            continue
        name, equals, value = part[2:].partition("=")
        if not equals:
            values = list(takewhile(lambda v: not v.startswith("--"), command[at:]))  # a list takes several
            value = " ".join(values)
            at += len(values)
        flags[name.replace("_", "-")] = value
    return flags, rest
