"""`tokentrace show`: the report of a saved run."""

from __future__ import annotations

import click


@click.command("show")
@click.argument("run", required=False)
@click.option("--detail", is_flag=True, help="Show the steps too.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--no-color", is_flag=True, help="No colours.")
def command(run: str | None, detail: bool, as_json: bool, no_color: bool) -> None:
    """The report of RUN (default: the newest): its name or a part of it, or a .jsonl file.

    \b
    Examples:
      tokentrace show
      tokentrace show 20261130-101500 --detail
    """
    from rich.console import Console

    from tokentrace import emit, report, runs
    from tokentrace.emit.terminal import print_report

    path = runs.find(run)
    whole = path.with_name(runs.DETAIL)
    if path.name == runs.TRACE and whole.is_file():
        path = whole
    built = report.build(emit.load(path))
    built.files = [str(path)]
    if as_json:
        import orjson

        click.echo(orjson.dumps(built.to_json(), option=orjson.OPT_INDENT_2).decode())
        return
    click.echo(built.reply)
    print_report(built, Console(no_color=no_color or None, highlight=False), detail=detail)
