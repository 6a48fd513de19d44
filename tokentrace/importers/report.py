"""What a recording came to as a report: the same one that `tokentrace run` makes, with the recording's own figures."""

from __future__ import annotations

from collections.abc import Sequence

from tokentrace.importers._collect import Imported
from tokentrace.report import FindingRow, Report, build


def as_report(imported: Imported, files: Sequence[str] = ()) -> Report:
    """The report of an import; `files` are named in it."""
    report = build(imported.trace)
    report.findings = [FindingRow(f.layer, f.status, f.sentence, f.evidence, f.fix) for f in imported.findings]
    report.files = list(files)
    _take_figures(report, imported)
    return report


def _take_figures(report: Report, imported: Imported) -> None:
    """The recording's own counts and times, which the importer made of every event, in place of those of the spans
    that fitted into the trace. Times only of a single recording: those of several run beside each other."""
    root = imported.trace.attributes(0)
    folded = root.get("tokentrace.import.folded", 0)
    report.spans["recorded"] = root.get("tokentrace.import.shown", len(imported.trace)) + folded
    if not folded:
        return
    states = {state.layer: state for state in imported.layers if state.status == "seen"}
    for row in report.layers:
        state = states.get(row.layer)
        if state is not None:
            row.evidence = int(state.facts.get("evidence") or row.evidence)
    own = {number: state.facts.get("own_ns") for number, state in states.items()}
    spent = sum(ns for ns in own.values() if ns is not None)
    if imported.figures.get("lanes") or not spent or spent > report.wall_ns:
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
    if imported.operators:
        report.operators = [
            {"name": one["name"], "calls": one["calls"], "own_ns": one["own_ns"], "total_ns": None, "shapes": ""}
            for one in sorted(imported.operators, key=lambda one: -int(one["own_ns"]))
        ]
