"""What a command that sends a prompt shows while it runs and when it has ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tokentrace.cli import _streams

if TYPE_CHECKING:
    from rich.console import Console

    from tokentrace.client.settings import Endpoint
    from tokentrace.workflow import Run


def end_as_ctrl_c_does() -> None:
    """SIGTERM from now on keeps what was seen, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: object) -> None:
    """SIGTERM ends the run as Ctrl-C does."""
    raise KeyboardInterrupt


def show(
    done: Run,
    console: Console,
    *,
    endpoint: Endpoint | None,
    as_json: bool,
    quiet: bool,
    detail: bool,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Report, warnings and errors of a run, and the exit code that goes with them. `more` is added to the JSON.

    A request to `endpoint` that failed ends with the doctor's sentence for that failure.
    """
    from tokentrace import runs
    from tokentrace.cli import show_error
    from tokentrace.emit.terminal import print_report

    if done.error is not None and endpoint is not None:
        from tokentrace.doctor import after_failure

        done.error = after_failure(done.error, endpoint)
    if as_json:
        _streams.print_json({**done.report.to_json(), **(more or {})})
    elif not quiet and (done.error is None or detail or done.report.reply):
        # A request that failed before a byte of its reply came has nothing to show but the failure.
        print_report(done.report, console, detail=detail, runs_folder=runs.folder())
    for warning in done.warnings:
        click.echo(f"warning: {warning}", err=True)
    if done.error is not None:
        show_error(done.error)
        sys.exit(done.error.exit_code)
    if done.interrupted:
        saved = "; what was seen until then is saved" if done.folder is not None else ""
        click.echo(f"interrupted{saved}", err=True)
        sys.exit(130)
    if done.export_error is not None:
        show_error(done.export_error)
        sys.exit(done.export_error.exit_code)


class Screen:
    """Progress on one line of standard error, the reply on standard output as it streams."""

    def __init__(self, console: Console, *, show_text: bool, show_progress: bool) -> None:
        self._console, self._show_text = console, show_text
        self._terminal = show_progress and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._lines = show_progress and not self._terminal
        self._told = ""
        self._on_line = False

    def progress(self, sentence: str, fraction: float | None = None) -> None:
        if self._terminal:
            self._end_line()
            share = "" if fraction is None else f" {fraction:.0%}"
            sys.stderr.write(f"\r\x1b[2K{sentence}{share} …")
            sys.stderr.flush()
        elif self._lines and sentence != self._told:
            self._told = sentence
            self._end_line()
            sys.stderr.write(f"{sentence}\n")

    def _end_line(self) -> None:
        """The reply has no end of line of its own, and may go to the same place."""
        if self._on_line:
            self._on_line = False
            sys.stdout.write("\n")
            sys.stdout.flush()

    def text(self, piece: str) -> None:
        """A piece of the reply. A model may write control characters; the terminal does not get them."""
        from tokentrace.emit._signs import clean

        if not self._show_text:
            return
        if self._terminal and not self._on_line:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
        self._on_line = True
        sys.stdout.write(clean(piece, newlines=True))
        sys.stdout.flush()

    def end(self) -> None:
        self._end_line()
        if self._terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
