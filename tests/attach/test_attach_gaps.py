"""What was not seen of watched requests is said where they are shown."""

from __future__ import annotations

import io

from rich.console import Console

from tokentrace.cli._attach_shown import show_gaps


def shown(gaps: dict[str, int]) -> list[str]:
    console = Console(width=60, file=io.StringIO())
    show_gaps(gaps, console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def test_each_sentence_is_said_once_with_the_number_of_requests() -> None:
    assert shown({}) == []
    assert shown({"5 records found no room": 1, "a hook failed": 12}) == [
        "in 1 request: 5 records found no room",
        "in 12 requests: a hook failed",
    ]


def test_many_sentences_are_cut() -> None:
    told = shown({f"{n} records found no room": 1 for n in range(9)})
    assert len(told) == 4 and told[-1].startswith("and 6 more such sentences")
