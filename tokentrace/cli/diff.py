"""`tokentrace diff`: what got slower between two runs, and whether it is more than noise."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import click

from tokentrace.cli import _streams
from tokentrace.errors import UsageError


@click.command("diff")
@click.argument("sides", nargs=-1, metavar="[BASE NEW]")
@click.option("--base", "bases", multiple=True, metavar="RUN", help="A run of the base side; repeat it for noise.")
@click.option("--new", "news", multiple=True, metavar="RUN", help="A run of the new side; repeat it for noise.")
@click.option("--passes", nargs=2, metavar="BASE NEW", help="Compare two passes, such as cold warm.")
@click.option("--fail-over", metavar="LIMIT", help="Exit 1 when slower by more than this (10% or 50ms) beyond noise.")
@click.option("-o", "--out", metavar="FILE", help="Write the comparison as one .html file.")
@click.option("--all", "every", is_flag=True, help="Show every row.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option("-q", "quiet", is_flag=True, help="Only the verdict.")
@click.option("--no-color", is_flag=True, help="No colours.")
def command(
    sides: tuple[str, ...],
    bases: tuple[str, ...],
    news: tuple[str, ...],
    passes: tuple[str, str] | None,
    fail_over: str | None,
    out: str | None,
    every: bool,
    as_json: bool,
    quiet: bool,
    no_color: bool,
) -> None:
    """Compare BASE with NEW: runs, trace files, saved reports or GPU recordings; several on a side with commas.

    A run is named as in tokentrace list, by a part of that, or by a path to it or to a folder with one run in it.
    One run a side shows no noise between runs; give three or more to know. RUN:cold names one pass of a run.

    The noise column: beyond noise, within it (one run a side), unsure (several: equal sides may differ so much), like
    all (more than noise, but all parts changed alike). What the words mean stands beneath the tables.

    Exit code: 0; with --fail-over 1 when slower by more, 2 when that cannot be told; 2 for what cannot be compared.

    \b
    Examples:
      tokentrace diff 20261130-101500 20261130-113000
      tokentrace diff a1,a2,a3 b1,b2,b3 --fail-over 10%
      tokentrace diff RUN --passes cold warm
      tokentrace diff before.json.gz after.json.gz -o diff.html
    """
    from tokentrace.compare import compare

    limit = _limit(fail_over)
    if out is not None and not out.lower().endswith((".html", ".htm")):
        raise UsageError(f"{out} does not end in .html", fix="the comparison is written as a page: -o diff.html")
    base, new = _sides(sides, bases, news, passes is not None)
    base_pass, new_pass = passes or ("", "")
    line = _Line(not quiet)
    try:
        found = compare(base, new, base_pass=base_pass, new_pass=new_pass, progress=line.tell)
    finally:
        line.end()
    if out is not None:
        from tokentrace.compare.page import write_diff

        write_diff(found, Path(out))
    exceeded, undecided = found.exceeds(*limit), found.undecided(*limit)
    if as_json:
        document = found.to_json()
        if fail_over is not None:
            document["fail_over"] = {"limit": fail_over, "exceeded": None if undecided else exceeded}
        _streams.print_json(document)
    elif quiet:
        click.echo(found.verdict.sentence)
    else:
        from tokentrace.compare.terminal import print_diff
        from tokentrace.emit.terminal import make_console, shows_unicode

        console = make_console(color=False if no_color else None)
        print_diff(found, console, unicode=shows_unicode(console), every=every)
        if out is not None:
            click.echo(f"page: {out}")
    if exceeded:
        click.echo(f"slower by more than {fail_over}, beyond noise", err=True)
        sys.exit(1)
    if undecided:
        click.echo(f"whether it is slower by more than {fail_over} cannot be told", err=True)
        if found.verdict.fix:
            click.echo(f"  fix: {found.verdict.fix}", err=True)
        sys.exit(2)


def _sides(
    sides: tuple[str, ...], bases: tuple[str, ...], news: tuple[str, ...], of_passes: bool
) -> tuple[list[str], list[str]]:
    if of_passes:
        given = [*sides, *bases, *news]
        if not given or ((bases or news) and sides):
            raise UsageError("--passes wants the runs once", fix="tokentrace diff RUN --passes cold warm")
        return (list(bases), list(news)) if bases and news else (given, given)
    if len(sides) == 2 and not bases and not news:
        return [sides[0]], [sides[1]]
    if not sides and bases and news:
        return list(bases), list(news)
    raise UsageError(
        "two sides are needed",
        fix="tokentrace diff BASE NEW, or --base RUN … --new RUN …; see tokentrace list for runs",
    )


def _limit(value: str | None) -> tuple[float | None, float | None]:
    """(share, ns) of --fail-over; both None without it."""
    if value is None:
        return None, None
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)\s*(%|ms|us|µs|s)", value.strip())
    if not match:
        raise UsageError(f"--fail-over {value!r} is neither a share nor a time", fix="for example --fail-over 10%")
    number = float(match[1])
    if match[2] == "%":
        return number / 100, None
    return None, number * {"ms": 1e6, "us": 1e3, "µs": 1e3, "s": 1e9}[match[2]]


class _Line:
    """What is being read, on one line of standard error on a terminal."""

    def __init__(self, wanted: bool) -> None:
        self._terminal = wanted and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def tell(self, sentence: str) -> None:
        if self._terminal:
            shown = "".join(c if c.isprintable() else "?" for c in sentence)[:100]
            sys.stderr.write(f"\r\x1b[2K{shown} …")
            sys.stderr.flush()

    def end(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
