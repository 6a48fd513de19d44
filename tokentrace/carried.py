"""The report that a folded trace carries: what was worked out of every span before the spans were folded.

It lies in the trace's meta, which OTLP JSON lines keep beside the messages, where a receiver ignores it; so the file of
a run says what the run says. Other formats, and a trace that went through a receiver, carry none.
"""

from __future__ import annotations

from tokentrace.model import Trace
from tokentrace.report import Report, build, lost_sentence

_KEY = "report"


def carry(folded: Trace, report: Report) -> None:
    """Leave in a folded trace the report of the whole one."""
    folded.meta[_KEY] = {**report.to_json(), "files": []}


def carried(trace: Trace) -> Report | None:
    """The report that the trace carries; None where there is none, or one that this version cannot read."""
    told = trace.meta.get(_KEY)
    if not isinstance(told, dict):
        return None
    try:
        found = Report.from_json(told)
    except ValueError:
        return None
    if found.trace_id != trace.trace_id_hex:
        return None
    fold = trace.meta.get("fold")
    recorded = fold.get("recorded") if isinstance(fold, dict) else None
    found.spans = {"accepted": None, "rejected": None, "produced": len(trace), "recorded": recorded}
    if lost := trace.meta.get("lost"):
        found.notes.append(f"{lost_sentence(lost, trace)} What is told here is of the whole run.")
    return found


def report_of(trace: Trace) -> Report:
    """The report of a trace: the one that it carries, else what its spans tell."""
    return carried(trace) or build(trace)
