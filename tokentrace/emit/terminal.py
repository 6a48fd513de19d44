"""The report in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokentrace.report import LayerRow, Report

if TYPE_CHECKING:
    from rich.console import Console


def print_report(report: Report, console: Console, *, detail: bool = False) -> None:
    """Table of the layers, coverage, gaps, passes, findings and files. Plain ASCII where the console is no terminal."""
    from rich.markup import escape

    ascii_only = not console.is_terminal or console.encoding.lower() not in ("utf-8", "utf8")
    _table(report, console, ascii_only)
    ttft = "unknown" if report.ttft_ns is None else _ms(report.ttft_ns)
    tokens = report.tokens
    console.print(
        f"{report.headline} request: {_ms(report.wall_ns)}, first token after {ttft}, "
        f"{_count(tokens['input'])} tokens in, {_count(tokens['output'])} out; "
        f"{report.coverage:.1%} of the time is explained"
    )
    if report.gaps:
        told = ", ".join(f"{_ms(g['length_ns'])} at {_ms(g['start_ns'])} ({g['around']})" for g in report.gaps[:3])
        console.print(escape(f"largest gaps: {told}"))
    for sentence in (report.slowest, report.cold):
        if sentence:
            console.print(escape(sentence))
    if len(report.passes) > 1:
        console.print(", ".join(f"{n} {_ms(p['wall_ns'])}" for n, p in report.passes.items()))
    for finding in report.findings:
        console.print(escape(f"[layer {finding['layer']}] {finding['sentence']}"))
        if finding["fix"]:
            console.print(escape(f"    fix: {finding['fix']}"))
    for note in report.notes:
        console.print(escape(f"note: {note}"))
    if detail:
        _detail(report, console)
    for path in report.files:
        console.print(escape(path), soft_wrap=True)


def _table(report: Report, console: Console, ascii_only: bool) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    arrow = "->" if ascii_only else "→"
    table = Table(box=box.ASCII2 if ascii_only else box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layer", no_wrap=True)
    table.add_column("the token", overflow="fold")
    for title in ("down", "up", "share", "spans"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in report.layers:
        form = f"{row.form_in} {arrow} {row.form_out}\n{row.form_up_in} {arrow} {row.form_up_out}"
        table.add_row(
            f"{row.layer} {row.title}",
            escape(form if row.status == "seen" else f"{row.status}, see below"),
            _own(row, row.own_ns_down),
            _own(row, row.own_ns_up),
            _share(row),
            str(row.evidence),
        )
    share = report.unattributed_ns / report.wall_ns if report.wall_ns else 0.0
    table.add_row("  unattributed", "", _ms(report.unattributed_ns), "", f"{share:.1%}", "")
    console.print(table)
    if any(_estimated(row) for row in report.layers):
        console.print("~ measured as one in the warm request, shared out in the proportions of the deep one")
    for row in report.layers:
        if row.reason:
            console.print(escape(f"layer {row.layer} {row.status}: {row.reason}"))
        if row.reason and row.fix:
            console.print(escape(f"    to see it: {row.fix}"))


def _detail(report: Report, console: Console) -> None:
    from rich.markup import escape

    for step in report.passes[report.headline]["steps"]:
        console.print(f"  step {step['index']} {step['phase']}: {step['batch_tokens']} tokens, {_ms(step['wall_ns'])}")
    for row in report.operators:
        console.print(escape(f"  {_ms(row['own_ns'])} own in {row['calls']} calls of {row['name']} {row['shapes']}"))
    for token in report.token_rows:
        since = "" if token["itl_ns"] is None else f", {_ms(token['itl_ns'])} after the one before"
        console.print(escape(f"  token {token['index']} {token['text']!r}{since}"))


def _own(row: LayerRow, ns: int | None) -> str:
    return "-" if ns is None else ("~" if _estimated(row) else "") + _ms(ns)


def _estimated(row: LayerRow) -> bool:
    return row.own_ns_down is not None and row.source == "deep proportions"


def _share(row: LayerRow) -> str:
    return "-" if row.share is None else f"{row.share:.1%}"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.0f} ms" if ns >= 100e6 else f"{ns / 1e6:.2f} ms"


def _count(number: int | None) -> str:
    return "an unknown number of" if number is None else str(number)
