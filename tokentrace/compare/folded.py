"""A pass whose spans were folded: what was worked out of it before, where its trace carries that.

Its spans are those of another tree, so nothing of it is read from them. The levels that are not carried are told as
missing, and with them what to give instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokentrace.carried import carried
from tokentrace.compare.sample import FOLDED, LEVELS, Sample, step_amounts
from tokentrace.compare.spanless import of_report
from tokentrace.layers import MARKS

if TYPE_CHECKING:
    from tokentrace.analyze import PassTimes
    from tokentrace.model import Trace


def fill_in(sample: Sample, trace: Trace, one: PassTimes) -> None:
    """Give the sample of a folded pass what is known of it."""
    report = carried(trace)
    if report is not None and one.name in report.passes:
        told = of_report(report, sample.label, one.name)
        sample.steps, sample.looks_inside = told.steps, told.looks_inside
        sample.levels = {level: told.levels[level] for level in ("layers", "steps")}
    else:
        marks = {code for code, name in enumerate(trace.names) if name in MARKS}
        sample.looks_inside = any(trace.layer[r] in (4, 3) and trace.name[r] not in marks for r in one.view.rows)
        sample.levels = {"steps": step_amounts(sample.steps)} if sample.steps else {}
    sample.missing = {level: FOLDED for level in LEVELS if level not in sample.levels}
