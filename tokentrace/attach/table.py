"""The table of others' requests: it grows while they are watched, and its last rows stay."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tokentrace.attach.watch import Row
from tokentrace.wording import duration, plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tokentrace import workflow

#: Of the table: name, width, and which goes first where the terminal is narrow (the highest number).
_COLUMNS = (("request", 24, 5), ("tokens", 15, 4), ("first token", 11, 0), ("waited", 7, 0), ("prefill", 7, 0),
            ("per token", 9, 0), ("batch", 5, 3), ("took most", 24, 0))  # fmt: skip
_GAP = 2
_WIDE = 140  # of a file or a pipe


def table(rows: Sequence[Row], under_way: int = 0, most: int = 30, width: int = 0) -> Table:
    """The last rows as a table; in `width` columns (0: any) whole columns are left out rather than a figure cut."""
    from rich.table import Table

    columns = list(_COLUMNS)
    while width and sum(wide + _GAP for _, wide, _ in columns) > width and any(rank for *_, rank in columns):
        columns.remove(max(columns, key=lambda one: one[2]))
    shown = Table(box=None, header_style="bold", padding=(0, _GAP, 0, 0))
    for name, wide, _ in columns:
        left = name in ("request", "took most")
        shown.add_column(name, justify="left" if left else "right", no_wrap=True, min_width=wide)
    for row in rows[-most:]:
        name = row.request if row.status < 400 or not row.path else row.path
        cells = {
            "request": name if len(name) <= 24 else f"{name[:23]}…",
            "tokens": _tokens(row),
            "first token": _time(row.ttft_ns),
            "waited": _time(row.wait_ns),
            "prefill": _time(row.prefill_ns),
            "per token": _time(row.decode_ns_per_token),
            "batch": _count(row.batch),
            "took most": _most(row),
        }
        if row.status >= 400 and row.prompt_tokens is None:  # it never came to the engine
            cells = {name: "-" if cell == "?" else cell for name, cell in cells.items()}
        shown.add_row(*(cells[name] for name, *_ in columns))
    if under_way:
        shown.caption = f"{plural(under_way, 'request')} under way"
    return shown


def _tokens(row: Row) -> str:
    if row.prompt_tokens is None and row.reply_tokens is None:
        return "? + ?" if row.status < 400 else "-"
    several = f", 1 of {row.replies}" if row.replies > 1 else ""
    return f"{_count(row.prompt_tokens)} + {_count(row.reply_tokens)}{several}"


def _most(row: Row) -> str:
    """The layer that took most; how the request ended, where that was not well."""
    if row.status >= 400:
        return f"refused: HTTP {row.status}" if row.status < 500 else f"failed: HTTP {row.status}"
    most = f"{row.layer} {row.share:.0%}" if row.layer and row.share is not None else "?"
    how = {"abort": "aborted; ", "cut": "cut off; "}.get(row.ended, "")
    return f"{how}{most}"


def has_unknown(rows: Sequence[Row]) -> bool:
    """Whether the table shows a figure as "?"."""
    return any(
        None in (row.ttft_ns, row.wait_ns, row.prefill_ns, row.decode_ns_per_token, row.batch, row.share,
                 row.prompt_tokens, row.reply_tokens)
        for row in rows if row.status < 400
    )  # fmt: skip


def _time(ns: float | None) -> str:
    return "?" if ns is None else duration(ns)


def _count(value: int | None) -> str:
    return "?" if value is None else str(value)


def show(watched: Callable[[Callable[[int], None]], Iterator[tuple[Row, workflow.Run]]], console: Console) -> list[Row]:
    """Print requests as they finish: a table that grows in a terminal, a line each elsewhere.

    `watched(idle)` starts the watching; the rows come back, also after Ctrl-C.
    """
    from rich.live import Live

    rows: list[Row] = []
    if not console.is_terminal:
        console.print(table([]), crop=False, width=_WIDE)
        for row, _ in watched(lambda under_way: None):
            rows.append(row)
            lines = table([row])
            lines.show_header = False
            console.print(lines, crop=False, width=_WIDE)
        return rows
    wide = console.width
    with (
        Live(table([], width=wide), console=console, refresh_per_second=5) as live,
        contextlib.suppress(KeyboardInterrupt),
    ):
        for row, _ in watched(lambda under_way: live.update(table(rows, under_way, width=wide))):
            rows.append(row)
            live.update(table(rows, width=wide))
    return rows
