"""`tokentrace list`: the saved runs."""

from __future__ import annotations

import click


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """The saved runs, newest last.

    \b
    Examples:
      tokentrace list
      tokentrace list --json
    """
    from tokentrace import runs

    found = runs.entries()
    if as_json:
        import orjson

        keys = ("trace_id", "reply", "model", "wall_ns", "ttft_ns", "interrupted")
        rows = [{"run": name, **{key: getattr(report, key) for key in keys}} for name, report in found]
        click.echo(orjson.dumps({"schema": "tokentrace.list/1", "runs": rows}, option=orjson.OPT_INDENT_2).decode())
        return
    if not found:
        click.echo('there is no saved run; make one: tokentrace run "Hi"')
    for name, report in found:
        reply = " ".join(report.reply.split())[:50]
        mark = "(interrupted) " if report.interrupted else ""
        click.echo(f"{name}  {report.wall_ns / 1e6:8.0f} ms  {report.model or '-'}  {mark}{reply}")
