"""What the words in the tables of a comparison mean, in a few lines: those of one run a side, or of several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokentrace.wording import listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokentrace.compare.diff import Diff
    from tokentrace.compare.rows import Row

#: In the noise column: beyond noise, yet within it once the share by which all parts changed is taken off.
LIKE_ALL = "like all"
BEYOND, WITHIN, UNSURE, UNKNOWN, SMALL = "beyond", "within", "unsure", "unknown", "small"


def lines(found: Diff) -> list[str]:
    """One line for the noise column and one for the modules, as far as there are such."""
    rows = [row for row in (found.wall, found.ttft, *(r for level in found.levels.values() for r in level)) if row]
    told = [*_words(rows, found)]
    made = [f"noise column: {'; '.join(told)}"] if told else []
    if found.levels.get("modules"):
        made.append(
            "modules: own time with the operators that a module calls, without the modules inside it; "
            "(no module): operators that ran in that span and in no module"
        )
    return made


def _words(rows: Iterable[Row], found: Diff) -> Iterable[str]:
    rows = [row for row in rows if not row.only_in]
    if any(row.limit_ns is not None for row in rows):
        yield "beyond ±X: more than noise seen inside the runs can make"
        yield "within ±X: noise can make that much"
    even = [found.even.of(n) for n, some in found.levels.items() if any(row.is_even and not row.small for row in some)]
    if any(row is not None and row.is_even for row in (found.wall, found.ttft)):
        even.append(found.even.main)
    if even:
        share = listed(sorted({f"{one:+.0%}".replace("%", " %") for one in even}))
        yield f"{LIKE_ALL}: all parts changed alike ({share}); what is left without that is within noise (of ±X)"
    known = sorted({row.confidence for row in rows if row.low_ns is not None and row.confidence is not None})
    if known:
        yield "beyond: more than noise"
        yield "unsure: equal sides may differ so much" + (
            ", even where A…B leaves out 0: of few runs, or of many rows, some do"
            if any(not row.beyond_noise and not row.small and _leaves_out_0(row) for row in rows)
            else ""
        )
        share = listed([f"{one:.0%}".replace("%", " %") for one in known])
        yield f"A…B: the difference lies between these with {share} confidence"
    if any(row.beyond_noise is None and not row.small and not row.is_even for row in rows):
        yield "unknown: nothing shows the noise of it"
    if any(row.small for row in rows):
        yield "small: under 0.1 % of the request, not tested"


def _leaves_out_0(row: Row) -> bool:
    return row.low_ns is not None and row.high_ns is not None and (row.low_ns > 0 or row.high_ns < 0)
