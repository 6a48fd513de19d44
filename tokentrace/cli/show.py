"""`tokentrace show`: the report of a saved run."""

from __future__ import annotations

from pathlib import Path

import click

from tokentrace.cli import _streams
from tokentrace.errors import UsageError


@click.command("show")
@click.argument("run", required=False)
@click.option("--detail", is_flag=True, help="Show the steps too.")
@click.option("--tree", is_flag=True, help="Show the spans as a tree instead.")
@click.option("--pass", "pass_name", default="", help="With --tree: only this pass (cold, warm, deep, once).")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--no-color", is_flag=True, help="No colours.")
def command(run: str | None, detail: bool, tree: bool, pass_name: str, as_json: bool, no_color: bool) -> None:
    """The report of RUN (default: the newest): its name or a part of it, or a .jsonl file.

    \b
    Examples:
      tokentrace show
      tokentrace show 20261130-101500 --detail
      tokentrace show --tree --pass warm
    """

    from tokentrace import runs
    from tokentrace.emit.terminal import print_report

    if tree and as_json:
        raise UsageError("the tree has no JSON", fix="leave out --tree, or export RUN -o FILE.jsonl has every span")
    if pass_name and not tree:
        raise UsageError(f"--pass {pass_name} says nothing without --tree", fix=f"--tree --pass {pass_name}")
    path = runs.find(run)
    if tree:
        _tree(path, pass_name, None if not no_color else False)
        return
    report = runs.report_of(path)
    if as_json:
        _streams.print_json(report.to_json())
        return
    console = _streams.new_console(no_color=no_color)
    print_report(report, console, detail=detail, reply=True, runs_folder=runs.folder())


def _tree(path: Path, pass_name: str, color: bool | None) -> None:
    from tokentrace import emit
    from tokentrace.emit.terminal import print_tree

    trace = emit.load(path)
    known = list(trace.meta.get("passes") or ())
    if pass_name and pass_name not in known:
        raise UsageError(f"this run has no {pass_name} pass", fix=f"it has: {', '.join(known) or 'none'}")
    print_tree(trace, color=color, pass_name=pass_name)
