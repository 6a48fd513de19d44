"""Draws the report of a saved run as SVG: `python scripts/picture.py [RUN] -o docs/run.svg`."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from rich.console import Console

from tokentrace import runs
from tokentrace.emit.terminal import print_report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?")
    parser.add_argument("-o", "--out", default="docs/run.svg")
    given = parser.parse_args()
    report = runs.report_of(runs.find(given.run))
    if report.error or not report.prompt:
        parser.error("this run failed or asked nothing: name another one")
    report.files = []  # where they lie here is of no use to a reader
    console = Console(record=True, width=112, force_terminal=True, file=io.StringIO(), highlight=False)
    console.print(f'$ tokentrace run "{report.prompt}"\n{report.reply}')
    print_report(report, console)
    Path(given.out).write_text(console.export_svg(title="tokentrace"), encoding="utf-8")


if __name__ == "__main__":
    main()
