"""Groups: spans between the root and the passes, such as the stages of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokentrace.model import STATUS_ERROR, STATUS_UNSET, Trace

#: Of a pass that ended after its group: the span id of that, and by how much.
STAGE_OF, OUTLIVED = "tokentrace.stage.span_id", "tokentrace.stage.outlived_ns"
STAGE = "stage "


@dataclass(slots=True)
class Group:
    """`above`: the number of the group around it, an earlier one, or -1. `failed` says how it ended badly."""

    name: str
    start_ns: int
    end_ns: int
    above: int = -1
    attributes: Mapping[str, Any] = field(default_factory=dict)
    failed: str = ""


def add_groups(trace: Trace, groups: Sequence[Group], process: str) -> list[int]:
    """A span for each below the root; their rows. Raises ValueError when one stands before the one around it."""
    rows: list[int] = []
    for number, one in enumerate(groups):
        if one.above >= number:
            raise ValueError(f"group {one.name!r} stands before the one around it")
        end = max(one.end_ns, one.start_ns)
        parent, more = fitting(trace, rows[one.above] if one.above >= 0 else 0, one.start_ns, end)
        rows.append(
            trace.add(
                f"{STAGE}{one.name}",
                0,
                one.start_ns,
                end,
                parent,
                {**one.attributes, **more, "tokentrace.layer": 0},
                process=process,
                status=STATUS_ERROR if one.failed else STATUS_UNSET,
                status_message=one.failed,
                envelope=True,
            )
        )
    return rows


def fitting(trace: Trace, wanted: int, start_ns: int, end_ns: int) -> tuple[int, dict[str, Any]]:
    """The nearest group from row `wanted` upwards that holds this time; a reply may be read after its stage has ended.
    Where that is another one, the attributes name the one it belongs to."""
    row = wanted
    while row > 0 and not trace.start_ns[row] <= start_ns <= end_ns <= trace.end_ns[row]:
        row = trace.parent[row]
    if row == wanted:
        return row, {}
    return row, {STAGE_OF: f"{trace.span_id[wanted]:016x}", OUTLIVED: max(end_ns - trace.end_ns[wanted], 0)}
