"""What a recording came to as a report: the same one that `tokentrace run` makes, with the recording's own figures.

What the importer found of every event goes with the trace, as one attribute of its root, so that the report of a saved
import is the one that was printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokentrace.analyze import Counted, OperatorRow, analyze
from tokentrace.carried import carried
from tokentrace.report import KEPT, FindingRow, Report, build

if TYPE_CHECKING:
    from tokentrace.model import Trace
    from tokentrace.probe import Finding, LayerState

_FOLDED = "tokentrace.import.folded"
#: Operators told of, those with the most own time.
_OPERATORS = 20


@dataclass(slots=True)
class _Kept:
    """The attribute KEPT, as JSON. `own_ns` and `evidence` by layer, of the layers that were seen; `lanes`: of several
    recordings together."""

    findings: list[FindingRow] = field(default_factory=list)
    whole: str = ""
    own_ns: dict[int, int] = field(default_factory=dict)
    evidence: dict[int, int] = field(default_factory=dict)
    operators: list[OperatorRow] = field(default_factory=list)
    operators_own_ns: int = 0
    lanes: bool = False


def keep(
    trace: Trace,
    findings: Sequence[Finding],
    states: Sequence[LayerState] = (),
    operators: Sequence[dict[str, Any]] = (),
    *,
    whole: str = "",
    lanes: bool = False,
) -> None:
    """Leave in the trace what its report needs beside its spans. `whole`: what the wall time is of."""
    seen = [state for state in states if state.status == "seen"]
    _store(
        trace,
        _Kept(
            [_row(finding) for finding in findings],
            whole,
            {state.layer: state.facts["own_ns"] for state in seen if state.facts.get("own_ns") is not None},
            {state.layer: int(state.facts["evidence"]) for state in seen if state.facts.get("evidence")},
            [
                OperatorRow(one["name"], one["calls"], one["own_ns"], None, "")
                for one in sorted(operators, key=lambda one: (-int(one["own_ns"]), one["name"]))[:_OPERATORS]
            ],
            sum(int(one["own_ns"]) for one in operators),
            lanes,
        ),
    )


def keep_also(trace: Trace, findings: Sequence[Finding]) -> None:
    """Add findings to those that the trace keeps: what was joined to it later."""
    kept = _kept(trace) or _Kept()
    kept.findings += [_row(finding) for finding in findings]
    _store(trace, kept)


def of_trace(trace: Trace, files: Sequence[str] = ()) -> Report:
    """The report of a trace, with what an importer kept in it; of any other trace that of its spans. `files` are named
    in it."""
    kept = _kept(trace)
    part = kept is not None and not kept.lanes and kept.operators and trace.attributes(0).get(_FOLDED)
    counted = Counted(kept.operators, kept.operators_own_ns, kept.own_ns) if kept is not None and part else None
    report = build(trace, analyze(trace, counted))
    report.files = list(files)
    if kept is None:
        return report
    if "tokentrace.import.shown" not in trace.attributes(0):  # a run to which something was joined
        return _joined(report, kept, carried(trace))
    report.findings = kept.findings
    report.whole = kept.whole
    _take_figures(report, kept, trace)
    return report


def _joined(report: Report, kept: _Kept, carried: Report | None) -> Report:
    """Power is as the spans have it now; all else as the run that was folded carries it."""
    if carried is not None:
        carried.layers = [one for one in carried.layers if one.layer != 1]
        carried.layers += [one for one in report.layers if one.layer == 1]
        carried.files = report.files
        report = carried
    report.findings += kept.findings
    return report


def _row(finding: Finding) -> FindingRow:
    return FindingRow(finding.layer, finding.status, finding.sentence, finding.evidence, finding.fix)


def _store(trace: Trace, kept: _Kept) -> None:
    import msgspec

    trace.set_attributes(0, {KEPT: msgspec.json.encode(kept).decode()})


def _kept(trace: Trace) -> _Kept | None:
    """None where nothing was kept, or what is there was not written by this version."""
    import msgspec

    text = trace.attributes(0).get(KEPT) if len(trace) else None
    if not isinstance(text, str):
        return None
    try:
        return msgspec.json.decode(text, type=_Kept)
    except msgspec.DecodeError:
        return None


def _take_figures(report: Report, kept: _Kept, trace: Trace) -> None:
    """The recording's own counts and times, which the importer made of every event, in place of those of the spans
    that fitted into the trace. Times only of a single recording: those of several run beside each other."""
    root = trace.attributes(0)
    shown, folded = root.get("tokentrace.import.shown"), root.get(_FOLDED, 0)
    if not isinstance(shown, int) or not isinstance(folded, int):
        return
    report.spans["recorded"] = shown + folded
    if not folded:
        return
    for row in report.layers:
        row.evidence = kept.evidence.get(row.layer, row.evidence)
    own = kept.own_ns
    spent = sum(own.values())
    if kept.lanes or not spent or spent > report.wall_ns:
        report.notes.append("Times by layer are those of the spans that this page shows.")
        return
    measured = report.passes[report.headline_pass].own_ns
    measured.clear()
    for row in report.layers:
        ns = own.get(row.layer)
        if ns is None:
            continue
        up = round(ns * (row.own_ns_up or 0) / max((row.own_ns_down or 0) + (row.own_ns_up or 0), 1))
        row.own_ns_down, row.own_ns_up, row.share = ns - up, up, ns / max(report.wall_ns, 1)
        # Both ways together are measured; how they part is known of the spans that are shown.
        row.own_source = "parted as the spans shown" if up else "measured"
        measured |= {f"{row.layer}.{way}": part for way, part in (("down", ns - up), ("up", up)) if part}
    report.unattributed_ns = report.passes[report.headline_pass].unattributed_ns = report.wall_ns - spent
    report.coverage = report.passes[report.headline_pass].coverage = spent / report.wall_ns
