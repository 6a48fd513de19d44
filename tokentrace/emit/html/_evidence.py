"""Which span a sentence of the report speaks of, so that a reader can go there; and what it is that is shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tokentrace.layers import MARKS

if TYPE_CHECKING:
    from tokentrace.analyze import Analysis
    from tokentrace.model import Trace
    from tokentrace.report import FindingRow

_STEP = re.compile(r"\bstep (\d+)\b")
_PASS = re.compile(r"\b(cold|warm|deep)\b")
#: A name that no plain sentence has by chance: with a colon, a dot, a digit or an underscore in it.
_TELLING = re.compile(r"[:._\d(]")


def evidence(trace: Trace, found: Analysis, finding: FindingRow) -> dict[str, Any] | None:
    """{row, label}: the longest span that the finding names, its step, else the longest of its layer. None: no span."""
    text = f"{finding.sentence} {finding.evidence}"
    named = _named(trace, text)
    if named is not None:
        return _told(trace, found, named, "the longest")
    step = _step(trace, found, text)
    if step is not None:
        return _told(trace, found, step, "")
    mentioned = [name for name in _PASS.findall(text) if name in found.passes]
    for name in (*mentioned, found.main.name, *found.passes):
        rows = [
            row for row in found.passes[name].view.rows
            if trace.layer[row] == finding.layer and name_of(trace, row) not in MARKS
        ]  # fmt: skip
        working = [row for row in rows if row not in trace.envelopes] or rows
        if working:
            return _told(trace, found, max(working, key=lambda row: _length(trace, row)), "the longest of its layer:")
    return None


def slowest_row(trace: Trace, found: Analysis, sentence: str) -> dict[str, Any] | None:
    """The span behind the report's main sentence: the longest step of the phase it names, or the span it names."""
    for word, role in (("Prefill", "prefill"), ("Decoding", "decode"), ("Mixed", "mixed")):
        if sentence.startswith(word):
            meant = {one.start_ns for one in found.main.steps if one.took_part_as(role)}
            rows = [
                row for row in found.main.view.rows
                if name_of(trace, row) == "step" and trace.start_ns[row] - found.main.view.start_ns in meant
            ]  # fmt: skip
            if rows:
                return _told(trace, found, max(rows, key=lambda row: _length(trace, row)), "the longest")
    quoted = re.match(r"`([^`]+)`", sentence)
    if quoted:
        rows = [row for row in found.main.view.rows if name_of(trace, row) == quoted[1]]
        if rows:
            return _told(trace, found, max(rows, key=lambda row: _length(trace, row)), "the longest")
    return None


def _named(trace: Trace, text: str) -> int | None:
    wanted = {
        index for index, name in enumerate(trace.names)
        if len(name) > 3 and (f"`{name}`" in text or (_TELLING.search(name) and name in text))
    }  # fmt: skip
    if not wanted:
        return None
    # A name within another ("aten::mm" in "aten::mm_out") is not the one that is meant.
    longest = max(len(trace.names[index]) for index in wanted)
    wanted = {index for index in wanted if len(trace.names[index]) == longest}
    return max((r for r in range(len(trace)) if trace.name[r] in wanted), key=lambda r: _length(trace, r), default=None)


def _step(trace: Trace, found: Analysis, text: str) -> int | None:
    numbers = {int(number) for number in _STEP.findall(text)}
    if numbers:
        for row in found.main.view.rows:
            if name_of(trace, row) == "step" and trace.attributes(row).get("tokentrace.step.index") in numbers:
                return row
    return None


def _told(trace: Trace, found: Analysis, row: int, words: str) -> dict[str, Any]:
    name = name_of(trace, row)
    index = trace.attributes(row).get("tokentrace.step.index") if name == "step" else None
    shown = name if index is None else f"step {index}"
    where = next((x.name for x in found.passes.values() if x.view.row <= row <= max(x.view.rows, default=0)), "")
    of_pass = f" in the {where} pass" if len(found.passes) > 1 and where else ""
    return {"row": row, "label": f"{words} {shown}{of_pass}".strip()}


def name_of(trace: Trace, row: int) -> str:
    return trace.names[trace.name[row]]


def _length(trace: Trace, row: int) -> int:
    return trace.end_ns[row] - trace.start_ns[row]
