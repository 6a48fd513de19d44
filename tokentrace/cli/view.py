"""`tokentrace view`: the page of a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokentrace.cli import _streams
from tokentrace.errors import UsageError
from tokentrace.wording import plural

if TYPE_CHECKING:
    from tokentrace.model import Trace
    from tokentrace.report import Report


@click.command("view")
@click.argument("run", required=False, metavar="[RUN|FILE]")
@click.option("-o", "--out", metavar="FILE", help="Write the page here; default: beside the run.")
@click.option("--folded", is_flag=True, help="Only the folded spans, for a smaller file.")
@click.option("--no-open", is_flag=True, help="Write the page and open no browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the file, its size and its spans as JSON.")
@click.option("-q", "quiet", is_flag=True, help="Print nothing but errors.")
def command(run: str | None, out: str | None, folded: bool, no_open: bool, as_json: bool, quiet: bool) -> None:
    """Open the page of RUN (default: the newest), of a .jsonl file, or of a GPU recording that `import` reads.

    The page is one HTML file that needs no network: the token's way through the eight layers, step by step, and a
    timeline of every span. It opens in the browser where there is a screen; its path is printed in any case.

    \b
    Examples:
      tokentrace view
      tokentrace view 20261130-101500 -o report.html --no-open
      tokentrace view trace.json.gz
    """
    from tokentrace.emit import html

    trace, report, beside = _load(run, folded)
    path = Path(out) if out else beside
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path} is no name for a page", fix="end it in .html")
    html.write(trace, path, report)
    opened = not no_open and not as_json and _open(path)
    size = path.stat().st_size
    if as_json:
        told = {
            "schema": "tokentrace.view/1",
            "file": str(path),
            "bytes": size,
            "spans": len(trace),
            "recorded": max(report.spans.get("recorded") or 0, len(trace)),
            "folded": _folded(trace, report),
            "trace_id": report.trace_id,
        }
        _streams.print_json(told)
    elif not quiet:
        click.echo(f"{path} ({plural(len(trace), 'span')}, {size / 1e6:.1f} MB{', opened' if opened else ''})")


def _load(run: str | None, folded: bool) -> tuple[Trace, Report, Path]:
    """The trace, its report, and where its page goes when nobody says."""
    from tokentrace import emit, runs

    given = Path(run) if run else None
    if given is not None and _is_recording(given):
        return _import(given)
    source = runs.find(run)
    if source.name != runs.TRACE:
        stem = source.name.removesuffix(".gz").removesuffix(".jsonl")
        return emit.load(source), runs.report_of(source), source.with_name(f"{stem}.html")
    report = runs.report_of(source)
    detail = source.with_name(runs.DETAIL)
    whole = detail.is_file() and not folded
    recorded = report.spans.get("recorded") or 0
    if whole and recorded > emit.MOST_ON_A_PAGE:
        click.echo(f"a page does not hold {plural(recorded, 'span')}: it shows the folded ones", err=True)
        whole = False
    return emit.load(detail if whole else source), report, source.with_name("report.html")


def _folded(trace: Trace, report: Report) -> int:
    """How many of the recorded spans the page does not show one by one."""
    from tokentrace.emit.html import recorded

    of_recording = recorded(trace)
    if of_recording is not None:
        return of_recording["folded"]
    return max((report.spans.get("recorded") or 0) - len(trace), 0)


def _is_recording(path: Path) -> bool:
    """A file or folder that `import` reads: neither a run's folder nor OTLP lines."""
    from tokentrace import runs

    if path.is_dir():
        return not runs.is_place(path)
    return path.is_file() and not path.name.lower().removesuffix(".gz").endswith(".jsonl")


def _import(path: Path) -> tuple[Trace, Report, Path]:
    from tokentrace import importers
    from tokentrace.importers.report import of_trace

    imported = importers.load([str(path)])
    report = of_trace(imported.trace, [str(path)])
    return imported.trace, report, path.with_name(f"{path.name.split('.')[0]}.html")


def _open(path: Path) -> bool:
    """Whether a browser with a window took it. Without a screen a text browser would only get in the way."""
    import webbrowser

    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not screen:
        return False
    try:
        return webbrowser.open(path.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return False
