"""Out of tokentrace: OTLP to a receiver, and files that other tools open.

    .jsonl, .jsonl.gz                OTLP JSON lines, lossless: the only format that `load` reads back
    .jaeger.json, .json              Jaeger UI JSON (.json alone is Jaeger's: viewing there is what it is mostly for)
    .perfetto.json, .trace.json      Chrome trace events, for ui.perfetto.dev
    .html                            a page to look at, whole in itself
    each of the two JSON formats may end in .gz as well

Sending is `tokentrace.emit.otlp_send.send(trace, OtlpTarget.from_env())`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tokentrace.errors import UsageError

if TYPE_CHECKING:
    from tokentrace.model import Trace
    from tokentrace.report import Report

#: Format by suffix; the longest that fits counts.
SUFFIXES = {
    ".jsonl": "otlp-file",
    ".jaeger.json": "jaeger",
    ".perfetto.json": "perfetto",
    ".trace.json": "perfetto",
    ".json": "jaeger",
    ".html": "html",
}
FORMATS = ("otlp-file", "jaeger", "perfetto", "html")
_VIEWERS = {"jaeger": "Jaeger", "perfetto": "Perfetto", "html": "a browser"}
#: A page keeps up with this many spans; whoever writes one folds what is more.
MOST_ON_A_PAGE = 300_000

__all__ = ["FORMATS", "MOST_ON_A_PAGE", "SUFFIXES", "check_target", "format_of", "load", "save"]


def format_of(path: Path | str) -> str:
    """The format that a file name asks for. Raises UsageError, which lists the suffixes."""
    name = Path(path).name.lower()
    if not name.endswith(".html.gz"):
        name = name.removesuffix(".gz")
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix):
            return SUFFIXES[suffix]
    raise UsageError(
        f"{path} has no suffix that names a trace format",
        fix="end it in .html, in .jsonl (OTLP), .jaeger.json or .perfetto.json, or one of these three with .gz",
    )


def check_target(path: Path | str) -> None:
    """Could a trace be written there? Raises UsageError: no known suffix, no such folder, no right to write."""
    format_of(path)
    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {folder}", fix=f"mkdir -p {folder}")
    if target.is_dir():
        raise UsageError(f"{path} is a folder", fix="name a file in it")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{path} cannot be written: no right to write in {folder}", fix="name a file elsewhere")


def save(trace: Trace, path: Path | str, format: str = "", report: Report | None = None) -> None:
    """Write the trace in the format of the suffix, or in the one given. Raises UsageError or ExportError.

    The file appears whole or not at all. A page shows `report`, else one made of the spans that are there.
    """
    chosen = format or format_of(path)
    if chosen == "html":
        from tokentrace.emit import html

        html.write(trace, path, report)
    else:
        _writer(chosen)(trace, path)


def _writer(format: str) -> Callable[[Trace, Path | str], None]:
    if format == "otlp-file":
        from tokentrace.emit import otlp_file

        return otlp_file.write
    if format == "jaeger":
        from tokentrace.emit import jaeger

        return jaeger.write
    if format == "perfetto":
        from tokentrace.emit import perfetto

        return perfetto.write
    raise UsageError(f"there is no format {format!r}", fix=f"formats: {', '.join(FORMATS)}")


def load(path: Path | str) -> Trace:
    """The trace in an OTLP JSON lines file, whatever its name. Raises UsageError.

    Jaeger's and Perfetto's formats do not hold all of a trace, so files written for them are refused by name.
    """
    from tokentrace.emit import otlp_file

    try:
        return otlp_file.read(path)
    except UsageError as error:
        try:
            viewer = format_of(path)
        except UsageError:
            raise error from None
        if viewer == "otlp-file" or not Path(path).is_file():
            raise
        if Path(path).name.lower().removesuffix(".gz").endswith((".jaeger.json", ".perfetto.json", ".html")):
            raise UsageError(
                f"{path} was written for {_VIEWERS[viewer]} and does not hold the whole trace",
                fix="load the run's .jsonl file, see: tokentrace list",
            ) from error
        raise UsageError(
            f"{path} is no trace of tokentrace: those are .jsonl files",
            fix=f"tokentrace import {shlex.quote(str(path))}, if it is a profiler's recording",
        ) from error
