"""What a folded trace still tells: which passes have lost spans, and where in them.

Siblings that became one span reach from the first to the last of them, and what was folded below a span is gone: own
times worked out from what is left would be those of another tree. A pass without a fold is as good as before.
"""

from __future__ import annotations

from tokentrace.analyze._passes import PassView, name_of
from tokentrace.model import Trace

#: Why something is not known.
FOLDED = "the trace is folded"
#: Of the root of an imported recording, whose folds have a count of their own beside the spans.
_IMPORTED = "tokentrace.import.shown"
#: Spans that hold others which were folded have lost the times of the single ones.
_MERGED, _BELOW = "tokentrace.folded.count", "tokentrace.folded.spans"
#: A fold of these lies in a step, where a request has steps.
_INSIDE = (5, 4, 3, 2)


def times_lost(trace: Trace, view: PassView) -> bool:
    """Whether the own times of this pass went with the spans that were folded. Of an import they are counted apart."""
    return folded(trace, view) and _IMPORTED not in trace.attributes(0)


def folded(trace: Trace, view: PassView) -> bool:
    """Whether spans of this pass were folded, so that the time of single steps in its layers is no longer known."""
    return bool(_folds(trace, view))


def beyond_steps(trace: Trace, view: PassView) -> bool:
    """Whether the fold reaches what is no part of a step: steps themselves, tokens, what the client did."""
    return any(not _inside(trace, row) for row in _folds(trace, view))


def _folds(trace: Trace, view: PassView) -> list[int]:
    """Each span of the pass that stands for others, its top included."""
    shapes = {index for index, keys in enumerate(trace.shapes) if _BELOW in keys or _MERGED in keys}
    return [row for row in (view.row, *view.rows) if trace.shape[row] in shapes] if shapes else []


def _inside(trace: Trace, row: int) -> bool:
    """Is it a part of a step, or a step that is still one by itself?"""
    if trace.layer[row] in _INSIDE:
        return True
    if _is_step(trace, row):
        return _MERGED not in trace.shapes[trace.shape[row]]
    while trace.parent[row] >= 0:
        row = trace.parent[row]
        if _is_step(trace, row):
            return True
    return False


def _is_step(trace: Trace, row: int) -> bool:
    return trace.layer[row] == 6 and name_of(trace, row) == "step"
