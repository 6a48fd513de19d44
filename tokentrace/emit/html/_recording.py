"""What a page of an imported recording says: how much of it is shown, and the counts that the importer made of all."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tokentrace.layers import MARKS
from tokentrace.wording import duration, plural, share

if TYPE_CHECKING:
    from tokentrace.analyze._passes import PassView
    from tokentrace.model import Trace
    from tokentrace.report import Report

_SHOWN, _FOLDED, _KERNELS = (f"tokentrace.import.{key}" for key in ("shown", "folded", "kernels"))


def counts(trace: Trace) -> dict[str, int] | None:
    """{shown, folded}: events of the recording that are spans here, and those folded into one. None: no recording."""
    root = trace.attributes(0) if len(trace) else {}
    if root.get("tokentrace.pass") != "import":
        return None
    shown, folded = root.get(_SHOWN), root.get(_FOLDED)
    return {
        "shown": shown if isinstance(shown, int) else len(trace),
        "folded": folded if isinstance(folded, int) else 0,
    }


def story(trace: Trace) -> dict[str, Any] | None:
    """`counts` with the spans of each layer that are shown."""
    found = counts(trace)
    if found is None:
        return None
    marks = {code for code, name in enumerate(trace.names) if name in MARKS}
    layers: dict[str, int] = {}
    for layer, name in zip(trace.layer, trace.name, strict=True):
        if name not in marks:
            layers[str(layer)] = layers.get(str(layer), 0) + 1
    return {**found, "layers": layers}


def steps(trace: Trace, view: PassView) -> dict[int, dict[str, Any]]:
    """By index what the importer counted of each step before anything was folded: name, kernels, busy_ns.

    Empty for what is no recording.
    """
    if counts(trace) is None:
        return {}
    found = {}
    for row in view.rows:
        if trace.layer[row] == 6 and trace.names[trace.name[row]] == "step":
            own = trace.attributes(row)
            index = own.get("tokentrace.step.index")
            if isinstance(index, int):
                found[index] = {key: own.get(f"tokentrace.step.{key}") for key in ("name", "kernels", "busy_ns")}
    return found


def told(trace: Trace, report: Report) -> Report:
    """The report in the words of a recording, with the importer's count of kernels; the given one stays as it is."""
    of_recording = counts(trace)
    if of_recording is None:
        return report
    found = copy.deepcopy(report)
    found.slowest = _most(found)
    kernels = trace.attributes(0).get(_KERNELS)
    for row in found.layers:
        if row.layer == 3 and isinstance(kernels, int) and kernels and of_recording["folded"]:
            row.form_out = plural(kernels, "kernel")
    if of_recording["folded"]:
        found.gaps = []  # what is folded may fill a gap between spans that are shown
    return found


def _most(report: Report) -> str:
    """The layer with the most own time: a recording has no request whose time it could be."""
    own = {row.title: (row.own_ns_down or 0) + (row.own_ns_up or 0) for row in report.layers}
    title = max(own, key=lambda name: own[name], default="")
    if not title or not own[title]:
        return ""
    title_text = title[:1].upper() + title[1:]
    whole = report.whole or "the recording"
    return f"{title_text} took the most: {duration(own[title])}, {share(own[title], report.wall_ns)} of {whole}."
