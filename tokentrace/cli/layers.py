"""`tokentrace layers`: the table, and whether each layer can be seen on this machine."""

from __future__ import annotations

import sys
from typing import Any

import click

from tokentrace.errors import TokentraceError
from tokentrace.layers import Layer, load
from tokentrace.probe import Finding, ProbeContext
from tokentrace.registry import create

_WORST = ("fail", "warn", "unknown", "ok")


@click.command("layers")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    """The eight layers, what each one answers, and whether it can be seen on this machine.

    \b
    Examples:
      tokentrace layers
      tokentrace layers --json
    """
    rows = [_row(layer) for layer in load()]
    if as_json:
        import orjson

        document = {"schema": "tokentrace.layers/1", "layers": rows}
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        return
    _table(rows)


def _row(layer: Layer) -> dict[str, Any]:
    status, reason, fix = visibility(layer)
    return {
        "number": layer.number,
        "id": layer.id,
        "title": layer.title,
        "question": layer.question,
        "probe": layer.probe,
        "cost": layer.cost,
        "modes": list(layer.modes),
        "status": status,
        "reason": reason,
        "fix": fix,
    }


def visibility(layer: Layer) -> tuple[str, str, str]:
    """(status, reason, fix) of a layer on this machine, by its own probe's check."""
    try:
        probe = create(layer)
        found: list[Finding] = list(probe.check(ProbeContext(mode="local", pass_name="check", deep=True)))
    except TokentraceError as error:
        return "unknown", str(error), error.fix
    if not found:
        return "ok", "", ""
    worst = min(found, key=lambda finding: _WORST.index(finding.status))
    return worst.status, worst.sentence, worst.fix


def _table(rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else box.ASCII, pad_edge=False)
    table.add_column("layer", no_wrap=True)
    table.add_column("question", overflow="fold")
    table.add_column("probe", no_wrap=True)
    table.add_column("here", overflow="fold")
    for row in rows:
        here = "ok" if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
        table.add_row(f"{row['number']} {row['title']}", row["question"], row["probe"].rpartition(":")[2], here)
    console.print(table)
