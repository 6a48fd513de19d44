"""The report and a trace's tree as text, for a terminal of any width, with or without colour, in Unicode or ASCII.

Without a terminal at the other end, or where it cannot show Unicode, the signs are plain ASCII; the user's own text
stays what it is. Control characters in it are shown as escapes, so that a reply cannot drive the terminal.
"""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from tokentrace.model import Trace
    from tokentrace.report import Report

_MIN_WIDTH, _MAX_WIDTH = 40, 160


def print_report(
    report: Report,
    console: Console | None = None,
    *,
    file: IO[str] | None = None,
    width: int | None = None,
    color: bool | None = None,
    unicode: bool | None = None,
    detail: bool = False,
    reply: bool = False,
    runs_folder: Path | None = None,
) -> None:
    """Print the report on `console`, else on one made of the other arguments.

    `color` None: as the terminal and NO_COLOR say; `unicode` None: as the terminal can; `reply`: the reply first, for
    when it was not streamed already; `runs_folder`: where a run is found by its name alone.
    """
    from tokentrace.emit._page import Page

    console = console or make_console(file, width, color)
    Page(console, shows_unicode(console) if unicode is None else unicode, detail, runs_folder).report(report, reply)


def report_text(
    report: Report, *, width: int = 80, unicode: bool = False, detail: bool = False, runs_folder: Path | None = None
) -> str:
    """The report as plain text."""
    buffer = io.StringIO()
    print_report(
        report,
        file=buffer,
        width=width,
        color=False,
        unicode=unicode,
        detail=detail,
        reply=True,
        runs_folder=runs_folder,
    )
    return buffer.getvalue()


def make_console(file: IO[str] | None = None, width: int | None = None, color: bool | None = None) -> Console:
    """A console for our own text: no markup, no highlighting, at most 160 columns."""
    from rich.console import Console

    console = Console(
        file=file,
        width=width,
        no_color=None if color is None else not color,
        color_system="auto" if color is not False else None,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
    )
    if width is None:
        console.width = max(_MIN_WIDTH, min(console.width, _MAX_WIDTH))
    return console


def shows_unicode(console: Console) -> bool:
    """Is there a terminal that shows more than ASCII?"""
    return console.is_terminal and (console.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf8sig")


def print_tree(
    trace: Trace,
    *,
    file: IO[str] | None = None,
    width: int | None = None,
    color: bool | None = None,
    unicode: bool | None = None,
    depth: int | None = None,
    max_lines: int = 120,
    pass_name: str = "",
) -> None:
    """Print a trace's spans as a tree, at most `max_lines`: start (after the top span's) and duration of each.

    `depth` None: as deep as fits. `pass_name`: only that pass. Of many siblings with one name some are shown and the
    others counted.
    """
    from tokentrace.emit._tree import TreeView

    console = make_console(file, width, color)
    view = TreeView(trace, console, shows_unicode(console) if unicode is None else unicode)
    view.show(depth, max_lines, pass_name)
