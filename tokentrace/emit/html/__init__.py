"""The page of a run: one HTML file that holds everything and asks the network for nothing.

The page's own source is in `assets`: a template, style sheets, and ES modules that are joined when it is written. All
that comes from the run (spans, report, texts of the user and the model) travels as compressed data, never as markup;
the page puts it on the screen as text. What the page may do is bounded by its Content-Security-Policy: the hashes of
its own script and style, and nothing from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from tokentrace.emit._atomic import atomic
from tokentrace.emit._values import clean_text
from tokentrace.wording import duration

if TYPE_CHECKING:
    from tokentrace.model import Trace
    from tokentrace.report import LayerRow, Report

_LINE = 76 * 1000


def write(trace: Trace, path: Path | str, report: Report | None = None) -> None:
    """Write the page of a trace. `report`: the run's own; else the one that the trace carries, or what its spans tell.
    Raises as `atomic` does."""
    page = render(trace, report)
    with atomic(Path(path)) as out:
        out.write(page)


def render(trace: Trace, report: Report | None = None) -> bytes:
    """The page as UTF-8."""
    from tokentrace.analyze import analyze
    from tokentrace.carried import carried
    from tokentrace.emit.html import _bundle, _pack, _recording, _story
    from tokentrace.report import build

    found = analyze(trace)
    report = _recording.told(trace, report or carried(trace) or build(trace, found))
    packed = zlib.compress(_pack.pack(trace, _story.story(trace, found, report)), 6)
    text = base64.b64encode(packed).decode()
    data = "\n".join(text[start : start + _LINE] for start in range(0, len(text), _LINE))
    script, style = _bundle.script(), _bundle.style()
    parts = {
        "policy": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        "title": _escaped(f"{_title(trace, report)} · tokentrace"),
        "style": style,
        "script": script,
        "data": data,
        "without_script": _without_script(report),
    }
    return _bundle.page(parts).encode()


def recorded(trace: Trace) -> dict[str, int] | None:
    """{shown, folded}: how many events of an imported recording are spans of this trace, and how many it folded."""
    from tokentrace.emit.html import _recording

    return _recording.counts(trace)


def _hash(text: str) -> str:
    """As a policy names an inline script or style: of exactly what stands between its tags."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _title(trace: Trace, report: Report) -> str:
    """A program of several calls goes by its own name, anything else by its prompt."""
    if len(report.passes) > 1 and trace.meta.get("mode") == "trace":
        return _short(trace.names[trace.name[0]])
    return _short(report.prompt) or ("imported recording" if recorded(trace) else "request")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"


def _escaped(text: str) -> str:
    return html.escape(clean_text(text), quote=True)


def _without_script(report: Report) -> str:
    """The report in a few lines of plain HTML, for a browser that runs no scripts."""
    rows = "".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in _cells(row))}</tr>" for row in report.layers)
    return (
        f"<p>{_escaped(_short(report.prompt))} → {_escaped(report.reply[:2000])}</p><p>{_escaped(report.slowest)}</p>"
        f"<table><tr><th>layer</th><th>status</th><th>down</th><th>up</th></tr>{rows}</table>"
        "<p>The rest of this page needs JavaScript, which this browser does not run.</p>"
    )


def _cells(row: LayerRow) -> tuple[str, str, str, str]:
    down, up = (("–" if ns is None else duration(ns)) for ns in (row.own_ns_down, row.own_ns_up))
    return f"{row.layer} {row.title}", f"{row.status} {row.reason}".strip(), down, up
