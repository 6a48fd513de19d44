"""Standard input and output of a command, whatever the shell has made of them."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokentrace.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

#: Narrower terminals cut their lines; nothing can be laid out in fewer columns.
_LEAST_COLUMNS = 20


def prepare() -> None:
    """Make standard streams that the shell has closed (`2>&-`, cron, a daemon) lead nowhere: Python has None for them,
    and the next file that is opened would take their number. An ASCII one does not fail at the first other character.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def has_folder() -> bool:
    """Whether the folder that this process is in is still there."""
    try:
        Path.cwd()
    except OSError:
        return False
    return True


def check_arguments(arguments: list[str]) -> None:
    """Raises UsageError: one of them is no text in this locale's encoding, and can be neither sent nor saved. A file's
    name may be so, and is refused as well."""
    for place, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"argument {place} is not valid UTF-8 text",  # it may be a key
                fix="give it as UTF-8 (rename a file); where all but English letters fail, set PYTHONUTF8=1",
            ) from None


def standard_input() -> str:
    """What was piped in, as typed: the line end that `echo` and editors add at the end is no part of the prompt."""
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError("the prompt is not valid UTF-8 text", fix="give it as UTF-8") from error
    return text[: -2 if text.endswith("\r\n") else -1] if text.endswith("\n") else text


def print_json(document: Any) -> None:
    """On standard output, indented, in UTF-8 whatever the locale."""
    import orjson

    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))


def new_console(*, stderr: bool = False, no_color: bool = False) -> Console:
    """A console of rich that is wide enough to write on."""
    from rich.console import Console

    console = Console(stderr=stderr, no_color=no_color or None, highlight=False)
    if console.width < _LEAST_COLUMNS:
        console.width = _LEAST_COLUMNS
    return console
