"""Where the time went: own time of every layer, exactly, and what stands out.

Every instant of a request belongs to one layer: that of the active span nearest the chip. What only envelopes cover
(the request as such, waiting, a handler) is unattributed. Own times and the unattributed rest add up to the wall time
to the nanosecond.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

from tokentrace.model import DOWN, UP, Trace

_LOWEST, _HIGHEST = 2, 8


@dataclass(slots=True)
class PassTimes:
    """One pass. `own_ns` is by (layer, direction); `gaps` are the longest unattributed stretches (start, length)."""

    name: str
    wall_ns: int
    start_ns: int
    own_ns: dict[tuple[int, str], int] = field(default_factory=dict)
    unattributed_ns: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def coverage(self) -> float:
        return 1.0 - self.unattributed_ns / self.wall_ns if self.wall_ns else 0.0

    def layer_ns(self, layer: int) -> int:
        return sum(ns for (number, _), ns in self.own_ns.items() if number == layer)


def passes(trace: Trace) -> dict[str, PassTimes]:
    """Own times of every pass of a trace, in order."""
    found: dict[str, PassTimes] = {}
    top = [row for row in range(1, len(trace)) if trace.parent[row] == 0]
    owner = [-1] * len(trace)
    for row in range(1, len(trace)):
        parent = trace.parent[row]
        owner[row] = row if parent == 0 else owner[parent]
    rows_of: dict[int, list[int]] = {row: [] for row in top}
    for row in range(1, len(trace)):
        rows_of[owner[row]].append(row)
    for row in top:
        attributes = trace.attributes(row)
        name = str(attributes.get("tokentrace.pass") or trace.names[trace.name[row]])
        rows = rows_of[row]
        chat = next((r for r in rows if trace.layer[r] == 8 and trace.names[trace.name[r]].startswith("chat ")), row)
        found[name] = _times(trace, name, chat, rows)
    return found


def _times(trace: Trace, name: str, chat: int, rows: list[int]) -> PassTimes:
    start, end = trace.start_ns[chat], trace.end_ns[chat]
    times = PassTimes(name, end - start, start)
    work = [
        row
        for row in rows
        if _LOWEST <= trace.layer[row] <= _HIGHEST
        and row not in trace.envelopes
        and trace.end_ns[row] > trace.start_ns[row]
    ]
    sweep(trace, work, start, end, times)
    for row in rows:
        if trace.names[trace.name[row]] == "step":
            a = trace.attributes(row)
            times.steps.append(
                {
                    "index": a.get("tokentrace.step.index"),
                    "phase": a.get("tokentrace.step.phase"),
                    "tokens": a.get("tokentrace.step.scheduled_tokens"),
                    "batch": a.get("tokentrace.step.batch_size"),
                    "cached_tokens": a.get("tokentrace.step.cached_tokens"),
                    "start_ns": trace.start_ns[row] - start,
                    "duration_ns": trace.end_ns[row] - trace.start_ns[row],
                }
            )
    times.steps.sort(key=lambda step: step["start_ns"])
    return times


def sweep(trace: Trace, rows: list[int], start: int, end: int, into: PassTimes) -> None:
    """Give every instant of [start, end) to one (layer, direction), or to nobody."""
    begins = sorted((max(trace.start_ns[row], start), row) for row in rows)
    ends = sorted((min(trace.end_ns[row], end), row) for row in rows)
    # The heap's top is the active span nearest the chip; among those of one layer the one that began last.
    heap: list[tuple[int, int, int]] = []
    over = [False] * len(trace)
    at, i, j = start, 0, 0
    gaps: list[tuple[int, int]] = []
    while at < end:
        while i < len(begins) and begins[i][0] <= at:
            row = begins[i][1]
            heapq.heappush(heap, (trace.layer[row], -trace.start_ns[row], row))
            i += 1
        while j < len(ends) and ends[j][0] <= at:
            over[ends[j][1]] = True
            j += 1
        while heap and over[heap[0][2]]:
            heapq.heappop(heap)
        until = min(begins[i][0] if i < len(begins) else end, ends[j][0] if j < len(ends) else end, end)
        if heap:
            row = heap[0][2]
            key = (trace.layer[row], trace.direction[row] or DOWN)
            into.own_ns[key] = into.own_ns.get(key, 0) + until - at
        else:
            into.unattributed_ns += until - at
            if gaps and sum(gaps[-1]) == at:
                gaps[-1] = (gaps[-1][0], gaps[-1][1] + until - at)
            else:
                gaps.append((at, until - at))
        at = until
    into.gaps = sorted(((at - start, length) for at, length in gaps), key=lambda gap: -gap[1])[:5]


def split(total_ns: int, shares: dict[tuple[int, str], int]) -> dict[tuple[int, str], int]:
    """`total_ns` in the proportions of `shares`, whole nanoseconds that add up (largest remainder)."""
    weight = sum(shares.values())
    if not weight:
        return {}
    parts = {key: total_ns * share // weight for key, share in shares.items()}
    rest = total_ns - sum(parts.values())
    for key in sorted(shares, key=lambda k: -(total_ns * shares[k] % weight))[:rest]:
        parts[key] += 1
    return parts


def headline(found: dict[str, PassTimes]) -> tuple[PassTimes, bool]:
    """The pass whose times are told, and whether its layers 5 to 3 were split by the deep pass.

    The warm pass, where there is one: its own time below the forward pass is one figure, measured, and is shared out
    among layers 5 to 3 as the deep pass shows it (leveled measurement, arXiv 1908.06869).
    """
    warm, deep = found.get("warm"), found.get("deep")
    if warm is None:
        return next(reversed(found.values())), False
    if deep is None:
        return warm, False
    shares = {key: ns for key, ns in deep.own_ns.items() if key[0] in (3, 4, 5)}
    if not any(key[0] in (3, 4) for key in shares):
        return warm, False
    below = sum(ns for key, ns in warm.own_ns.items() if key[0] == 5)
    own = {key: ns for key, ns in warm.own_ns.items() if key[0] != 5}
    own.update(split(below, shares))
    return PassTimes(warm.name, warm.wall_ns, warm.start_ns, own, warm.unattributed_ns, warm.gaps, warm.steps), True


def slowest(trace: Trace, times: PassTimes) -> str:
    """One sentence on what took the most time of the headline pass."""
    from tokentrace.layers import by_number

    if not times.own_ns or not times.wall_ns:
        return ""
    if times.unattributed_ns * 2 > times.wall_ns:
        share = times.unattributed_ns / times.wall_ns
        return f"{share:.0%} of the time passed where nothing of the inside is seen."
    number = max(range(_LOWEST, _HIGHEST + 1), key=times.layer_ns)
    share = times.layer_ns(number) / times.wall_ns
    sentence = f"Layer {number} ({by_number(number).title}) had {share:.0%} of the time"
    prefill = [s for s in times.steps if s["phase"] == "prefill"]
    decode = sorted(s["duration_ns"] for s in times.steps if s["phase"] == "decode")
    if prefill and decode:
        sentence += (
            f"; the prefill step took {sum(s['duration_ns'] for s in prefill) / 1e6:.0f} ms and each of the "
            f"{len(decode)} decode steps {decode[len(decode) // 2] / 1e6:.0f} ms (median)"
        )
    return sentence + "."


DIRECTIONS = (DOWN, UP)
