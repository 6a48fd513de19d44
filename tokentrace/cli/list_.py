"""`tokentrace list`: the saved runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tokentrace.cli import _streams

if TYPE_CHECKING:
    from tokentrace.report import Report


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """The saved runs, newest last.

    \b
    Examples:
      tokentrace list
      tokentrace list --json
    """
    from dataclasses import asdict

    from tokentrace import runs
    from tokentrace.emit._signs import clean
    from tokentrace.wording import duration, listed, plural

    listing = runs.listing()
    found = [(name, report) for name, report in listing if report is not None]
    unreadable = [name for name, report in listing if report is None]
    if as_json:
        keys = ("trace_id", "reply", "model", "wall_ns", "ttft_ns", "interrupted")
        rows = [
            {
                "run": name,
                **{key: getattr(report, key) for key in keys},
                "error": report.error.message if report.error is not None else None,
                "program": asdict(report.program) if report.program is not None else None,
            }
            for name, report in found
        ]
        document = {"schema": "tokentrace.list/1", "runs": rows, "unreadable": unreadable}
        _streams.print_json(document)
        return
    if not found and not unreadable:
        click.echo('there is no saved run; make one: tokentrace run "Hi"')
    for name, report in found:
        wall_ns, what = _told(report)
        # A model may write control characters; the terminal does not get them.
        shown = clean(" ".join(what.split())[:50])
        mark = "(failed) " if report.error is not None else "(interrupted) " if report.interrupted else ""
        click.echo(
            f"{clean(name)}  {duration(wall_ns).replace('µ', 'u'):>8}  {clean(report.model) or '-'}  {mark}{shown}"
        )
    if unreadable:
        click.echo(
            clean(f"{plural(len(unreadable), 'run')} without a report that can be read: {listed(unreadable)}"), err=True
        )


def _told(report: Report) -> tuple[int, str]:
    """Its time in ns and what it was: the reply of one request or why there is none, a program's name and its calls."""
    from tokentrace.wording import plural

    program = report.program
    if report.error is not None and (program is None or program.calls == 1):
        return report.wall_ns, report.error.message
    if program is None or program.calls == 1:
        return report.wall_ns, report.reply
    return program.wall_ns, f"{plural(program.calls, 'call')}: {program.name}"
