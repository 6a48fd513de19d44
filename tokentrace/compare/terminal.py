"""The comparison as text: the verdict, how noise was told, and one table a level."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokentrace.compare import legend
from tokentrace.compare.diff import Diff
from tokentrace.compare.legend import BEYOND, LIKE_ALL, SMALL, UNKNOWN, UNSURE, WITHIN
from tokentrace.compare.rows import Row
from tokentrace.compare.sample import Sample
from tokentrace.compare.verdict import signed
from tokentrace.emit._signs import ASCII, clean, cut
from tokentrace.wording import duration

if TYPE_CHECKING:
    from rich.console import Console

TITLES = {
    "layers": "Layers, own time",
    "spans": "Spans, own",
    "steps": "Steps",
    "modules": "Modules",
    "operators": "Operators",
    "kernels": "Kernels",
}
#: Rows shown of each level unless all are wanted.
_SHOWN = {"layers": 9, "spans": 5, "steps": 5, "modules": 5, "operators": 5, "kernels": 5}
#: Least widths of base, new, change, its share, noise; and which are left out, in this order, where they do not fit.
_LEAST = (8, 8, 9, 9, 5)
_DROPPED = (3, 4, 2)
_NAME = 14
_STYLE = {"slower": "bold red", "faster": "bold green", "shifted": "yellow", "same": "bold", "unknown": "magenta"}


def print_diff(found: Diff, console: Console, *, unicode: bool, every: bool = False) -> None:
    """Print on `console`, which interprets no markup. `every`: all rows instead of those that differ most."""
    _Printer(console, unicode, every).diff(found)


class _Printer:
    def __init__(self, console: Console, unicode: bool, every: bool) -> None:
        self.console, self.unicode, self.every = console, unicode, every
        self.width = min(console.width, 120)

    def diff(self, found: Diff) -> None:
        self._line(found.verdict.sentence, _STYLE[found.verdict.status])
        if found.verdict.fix:
            self._line(f"to know: {found.verdict.fix}")
        self._line()
        for name, samples in (("base", found.base), ("new", found.new)):
            self._line(f"{name:<6}{', '.join(_sample(s) for s in samples)}")
        self._line(f"noise {found.noise}", "dim")
        for note in found.notes:
            self._line(f"note  {note}", "yellow")
        self._table(found.title, [row for row in (found.wall, found.ttft) if row is not None], len(found.levels))
        for level, rows in found.levels.items():
            if rows:
                self._table(TITLES[level] + _pass(found, level), rows, _SHOWN[level])
        self._line()
        for level, why in found.missing.items():
            self._line(f"{level}: not compared: {why}", "dim")
        for line in legend.lines(found):
            self._line(line, "dim")

    def _table(self, title: str, rows: list[Row], most: int) -> None:
        shown = rows if self.every else rows[:most]
        lines: list[tuple[str, tuple[str, ...], str]] = [(title, ("base", "new", "change", "", "noise"), "bold")]
        for row in shown:
            style = "" if row.beyond_noise is None else "dim" if not row.beyond_noise else _sign(row)
            change = "" if row.change is None else f"{row.change:+.1%}".replace("%", " %")
            plus = "+" if row.difference_ns > 0 else ""
            cells = (_time(row.base_ns), _time(row.new_ns), plus + duration(row.difference_ns), change, _noise(row))
            lines.append((short_label(row), tuple(self._ours(cell) for cell in cells), style))
        widths = [max(least, *(len(figures[at]) for _, figures, _ in lines)) for at, least in enumerate(_LEAST)]
        kept = self._kept(widths)
        name = max(1, self.width - sum(widths[at] + 1 for at in kept) - (4 in kept))
        self._line()
        for label, figures, style in lines:
            self._cells(label, [(at, figures[at], widths[at]) for at in kept], name, style)
        if len(rows) > len(shown):
            self._line(f"  {len(rows) - len(shown)} more that differ less: --all", "dim")

    def _kept(self, widths: list[int]) -> list[int]:
        """The columns that fit beside a name: a column goes as a whole, for a figure cut short is another figure."""
        kept = list(range(len(widths)))
        for gone in _DROPPED:
            if sum(widths[at] + 1 for at in kept) + 1 + _NAME <= self.width:
                break
            kept.remove(gone)
        return kept

    def _cells(self, label: str, cells: list[tuple[int, str, int]], name: int, style: str) -> None:
        from rich.cells import cell_len

        first = cut(self._ours(clean(label)), name, "…" if self.unicode else "...")
        text = first + " " * (name - cell_len(first))
        for at, cell, width in cells:
            text += f"  {cell}" if at == len(_LEAST) - 1 else f" {cell:>{width}}"
        self._print(text.rstrip(), style)

    def _ours(self, text: str) -> str:
        return text if self.unicode else text.translate(ASCII)

    def _line(self, text: str = "", style: str = "") -> None:
        from rich.text import Text

        for line in Text(self._ours(clean(text)), overflow="fold").wrap(self.console, self.width) or [Text("")]:
            self._print(line.plain.rstrip(), style)

    def _print(self, text: str, style: str) -> None:
        from rich.text import Text

        self.console.print(Text(text, style=style, no_wrap=True, overflow="ignore"), crop=False)


def _sample(sample: Sample) -> str:
    return f"{sample.label} ({sample.pass_name} {duration(sample.wall_ns)})"


def _pass(found: Diff, level: str) -> str:
    """Which pass a level is from, where that is another one than the times above."""
    passes = {s.deep_pass for s in (*found.base, *found.new) if s.deep_pass and s.deep_pass != s.pass_name}
    return f" ({' and '.join(sorted(passes))})" if level in ("modules", "operators", "kernels") and passes else ""


def short_label(row: Row) -> str:
    """For a table: 7 tokenizer, 5-3 the model."""
    match = re.fullmatch(r"the (.*) \(layers? (\d)(?: to (\d))?\)", row.label)
    if match is None:
        return row.label
    return f"{match[2]}{'-' + match[3] if match[3] else ''} {match[1]}"


def _time(ns: float | None) -> str:
    return "–" if ns is None else duration(ns)


def _noise(row: Row) -> str:
    if row.only_in:
        return f"only in {row.only_in}"
    if row.small:
        return SMALL
    if row.is_even:
        return LIKE_ALL if row.is_whole else f"{LIKE_ALL} ±{duration(row.limit_ns or 0)}"
    if row.beyond_noise is None:
        return UNKNOWN
    if row.low_ns is not None and row.high_ns is not None:
        # Not "within": these bound the difference, not the noise.
        return f"{BEYOND if row.beyond_noise else UNSURE}: {between(row.low_ns, row.high_ns)}"
    return f"{BEYOND if row.beyond_noise else WITHIN} ±{duration(row.limit_ns or 0)}"


def between(low: float, high: float) -> str:
    """-4.1…12.3 ms: a unit that both share is said once."""
    first, second = duration(low), duration(high)
    if first.rpartition(" ")[2] == second.rpartition(" ")[2]:
        first = first.rpartition(" ")[0]
    return f"{first}…{second}"


def _sign(row: Row) -> str:
    return "red" if row.difference_ns > 0 else "green"


def one_line(found: Diff) -> str:
    """For -q: the verdict and the change."""
    return f"{found.verdict.status}: {signed(found.wall)}"
