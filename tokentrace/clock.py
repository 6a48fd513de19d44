"""One timeline for several processes: the offset between two clocks, and how wrong it may be.

Processes of one host read the same clock, but a container or another host may not; so the offset is measured
on every connection, never assumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """`local = remote + offset_ns`, wrong by at most `bound_ns` (half of the best round trip)."""

    offset_ns: int = 0
    bound_ns: int = 0


def measure(remote_time_ns: Callable[[], int], rounds: int = 8) -> ClockOffset:
    """Ask the other side for its time a few times and keep the fastest answer (Cristian's algorithm).

    An offset within the bound is not distinguishable from none and is reported as 0, so that the spans of one
    host keep the times they were recorded with.
    """
    best: ClockOffset | None = None
    for _ in range(rounds):
        before = time.time_ns()
        remote = remote_time_ns()
        after = time.time_ns()
        bound = max(1, (after - before) // 2)
        if best is None or bound < best.bound_ns:
            best = ClockOffset(before + bound - remote, bound)
    assert best is not None, "rounds must be at least 1"
    return ClockOffset(0, best.bound_ns) if abs(best.offset_ns) <= best.bound_ns else best
