"""An examination as text: a line for each layer, what is wrong with its evidence, and one closing sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tokentrace.doctor.check import Check, Result, Status
from tokentrace.doctor.examine import Examination
from tokentrace.doctor.secrets import Scrub
from tokentrace.doctor.verdict import Verdict, layer_name, worst
from tokentrace.emit._signs import ASCII, clean

if TYPE_CHECKING:
    from rich.console import Console

_WORD: dict[Status, str] = {"ok": "ok", "warn": "warn", "fail": "FAIL", "unknown": "unknown", "skip": "skip"}
_STYLE: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim", "skip": "dim"}
_ORDER: tuple[Status, ...] = ("fail", "warn", "ok", "unknown", "skip")


class Page:
    """Prints onto one console; `unicode` False: our own signs in ASCII, others' text as it is but escaped."""

    def __init__(self, console: Console, unicode: bool, scrub: Scrub) -> None:
        self._console, self._unicode, self._scrub = console, unicode, scrub

    def show(self, done: Examination, verdict: Verdict, titles: Callable[[str], str], verbose: bool) -> None:
        for number in (8, 7, 6, 5, 4, 3, 2, 1, 0):
            mine = [r for r in done.results if r.layer == number]
            if mine:
                self._layer(number, mine, titles, verbose)
        self._print("")
        self.verdict(verdict)

    def verdict(self, verdict: Verdict) -> None:
        """The closing sentence, the fix, and what else was found."""
        self._print(verdict.sentence, _STYLE[verdict.status])
        if verdict.fix:
            self._print(f"  fix: {verdict.fix}")
        for line in verdict.also[:5]:
            self._print(f"  also: {line}")
        if len(verdict.also) > 5:
            self._print(f"  also: {len(verdict.also) - 5} more, see above")

    def _layer(self, number: int, mine: Sequence[Result], titles: Callable[[str], str], verbose: bool) -> None:
        status = worst(mine)
        name = layer_name(number).removeprefix("layer ") if number else "  plumbing"
        shown = mine if verbose else [r for r in mine if r.status in ("fail", "warn")]
        told = "" if shown else self._summary(mine)
        self._print(f"{_WORD[status]:<8}{name:<22} {told}".rstrip(), _STYLE[status])
        for result in sorted(shown, key=lambda r: _ORDER.index(r.status)) if not verbose else shown:
            mark = f"{_WORD[result.status]:<8}" if verbose else ""
            self._print(f"        {result.id} {mark}{titles(result.id)}: {result.detail}", _STYLE[result.status])
            if result.fix and (verbose or result.status in ("fail", "warn")):
                self._print(f"              fix: {result.fix}")
            for line in result.evidence if verbose or result.status == "fail" else ():
                self._print(f"              | {line}", "dim")

    def _summary(self, mine: Sequence[Result]) -> str:
        """One line for a layer without faults: what says most about it."""
        for status in ("ok", "unknown", "skip"):
            found = [r for r in mine if r.status == status]
            if found:
                best = next((r for r in found if r.id in _TELLING), found[0])
                more = sum(r.status == "unknown" for r in mine) if status == "ok" else 0
                return best.detail + (f" ({more} not known: -v)" if more else "")
        return ""

    def _print(self, text: str, style: str = "") -> None:
        from rich.text import Text

        line = clean(self._scrub.text(text))
        if not self._unicode:
            line = line.translate(ASCII).encode("ascii", "backslashreplace").decode("ascii")
        self._console.print(Text(line, style=style), soft_wrap=True)


#: Of a layer that is all right, the check that says so best.
_TELLING = frozenset(("TT800", "TT703", "TT610", "TT618"))


def explained(check: Check, unicode: bool = True) -> str:
    """What `--explain` prints of one check; `unicode` False: in ASCII."""
    lines = [
        f"{check.id} {check.title} ({layer_name(check.layer)})",
        "",
        check.meaning,
        "",
        f"Looks at: {check.looks}.",
        f"What to do: {check.fix}",
    ]
    text = "\n".join(lines)
    return text if unicode else text.translate(ASCII)
