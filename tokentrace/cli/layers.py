"""`tokentrace layers`: the table, and whether each layer can be seen on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokentrace.cli import _streams
from tokentrace.errors import TokentraceError
from tokentrace.layers import Layer, load
from tokentrace.probe import ProbeContext
from tokentrace.registry import create

if TYPE_CHECKING:
    from rich.console import Console

#: The table of four columns has no room below this.
_NARROW = 72
#: Layers that lie inside the serving process.
_INSIDE = frozenset(range(2, 8))
#: What a layer shows on a machine without GPU.
_ON_CPU = {
    3: "no GPU here: the leaf operators; with --compile the C++ kernels too",
    2: "nothing to compile unless --compile is given",
}


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
        document = {"schema": "tokentrace.layers/1", "layers": rows}
        _streams.print_json(document)
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
    """(status, reason, fix): can `tokentrace run` see this layer on this machine? `ok`, else why not and what helps.

    Layers inside the serving process are seen by the local engine's agent, so what counts is whether that engine can
    run here; the others are asked themselves.
    """
    try:
        probe = create(layer)
        if layer.number in _INSIDE:
            _local_engine_runs()
            return "ok", _ON_CPU.get(layer.number, "") if not _device_node() else "", ""
        found = list(probe.check(ProbeContext(mode="local", pass_name="check", deep=True)))
    except TokentraceError as error:
        return "unseen", str(error), error.fix
    if not found or any(finding.status == "ok" for finding in found):
        return "ok", "", ""
    return "unseen", "; ".join(finding.sentence for finding in found), found[0].fix


def _local_engine_runs() -> None:
    from tokentrace.engines.local.loading import check_transformers

    check_transformers()


def _device_node() -> bool:
    """Is there a GPU's device file? (Asking torch would take seconds.)"""
    return any(Path(path).exists() for path in ("/dev/nvidia0", "/dev/kfd"))


def _table(rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    console = _streams.new_console()
    if console.width < _NARROW:
        for row in rows:
            console.print(f"{row['number']} {row['title']}: {row['status']}", markup=False, style="bold")
            console.print(f"  {row['question']}", markup=False)
        _reasons(console, rows)
        return
    table = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else box.ASCII, pad_edge=False)
    table.add_column("layer", no_wrap=True)
    table.add_column("question", overflow="fold")
    table.add_column("probe", no_wrap=True)
    table.add_column("here", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row['number']} {row['title']}", row["question"], row["probe"].rpartition(":")[2], row["status"]
        )
    console.print(table)
    _reasons(console, rows)


def _reasons(console: Console, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["reason"]:
            console.print(f"layer {row['number']} {row['status']}: {row['reason']}", markup=False)
        if row["fix"]:
            console.print(f"    to see it: {row['fix']}", markup=False)
