"""Which of a request's steps a profiler recorded that records the first steps after it was switched on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tokentrace.wording import listed, plural

NO_OURS = "the profiler recorded steps of other requests only, none of this one"


class Known(Protocol):
    """A step as the engine's or a worker's hooks saw it."""

    process: str
    start_ns: int
    end_ns: int
    ours: bool


def which(header: Mapping[str, Any], process: str, known: Sequence[Known]) -> str:
    """What a recording that was `limited` lacks of the request; "" where it lacks nothing. `known`: in time order.

    Others' steps count towards its limit, and it may have been switched on for another request: whose steps they were
    is told by the times. Where these are not known it is as the recording itself says.
    """
    limited = str(header.get("limited") or "")
    start, end = int(header.get("start_ns") or 0), int(header.get("end_ns") or 0)
    ours = [step for step in known if step.ours]
    ours = [step for step in ours if step.process == process] or [
        step for step in ours if step.process == ours[0].process
    ]
    if not limited or not start or not end or not ours:
        return limited
    seen = [n for n, step in enumerate(ours, 1) if start <= (step.start_ns + step.end_ns) // 2 <= end]
    if not seen:
        return NO_OURS
    if len(seen) == len(ours):
        return ""
    if seen == list(range(1, len(seen) + 1)):
        if not header.get("recorded_steps"):
            return limited  # by time, not by a count
        return f"the profiler recorded the first {'step' if len(seen) == 1 else plural(len(seen), 'step')} only"
    numbers = f"{seen[0]} to {seen[-1]}" if seen[-1] - seen[0] == len(seen) - 1 > 0 else listed([str(n) for n in seen])
    return (
        f"the profiler recorded {len(seen)} of this request's {plural(len(ours), 'step')} (number {numbers}): "
        "it records the first ones after it was switched on, whosever they are"
    )
