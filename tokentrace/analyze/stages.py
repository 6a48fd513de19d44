"""What each stage of a traced program took: its own whole time, how much of that lay in calls, and their tokens.

A stage that ran several times is one row, told by its name and those of the stages around it. Its times are those at
which at least one of its runs was open, so that runs beside each other are not counted twice. What lay outside of every
stage is the last row: with the outermost stages it adds up to the whole program, unless these ran beside each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tokentrace.analyze._passes import PassView
from tokentrace.model import Trace
from tokentrace.stitch import STAGE, STAGE_OF

Span: TypeAlias = tuple[int, int]
Way: TypeAlias = tuple[str, ...]


@dataclass(slots=True)
class StageTimes:
    """`way`: the names of the stages around it, the outermost first, and its own; () for what lay outside of all."""

    way: Way
    runs: int
    wall_ns: int
    in_calls_ns: int
    calls: list[PassView] = field(default_factory=list)  # also those of the stages inside it

    def tokens(self, which: str) -> int | None:
        """Input or output tokens of its calls together; None where no call tells them."""
        told = [one.exchange.get(f"{which}_tokens") for one in self.calls]
        known = [value for value in told if isinstance(value, int)]
        return sum(known) if known else None

    @property
    def failed(self) -> int:
        return sum(bool(one.exchange.get("error")) for one in self.calls)


def stages(trace: Trace, views: Mapping[str, PassView]) -> list[StageTimes]:
    """In the order in which they first began, a stage before those inside it. Empty for a trace without stages."""
    ways: dict[int, Way] = {0: ()}
    runs: dict[Way, list[Span]] = {}
    for row in range(1, len(trace)):
        name = trace.names[trace.name[row]]
        if not trace.layer[row] and name.startswith(STAGE) and trace.parent[row] in ways:
            way = (*ways[trace.parent[row]], name.removeprefix(STAGE))
            ways[row] = way
            runs.setdefault(way, []).append((trace.start_ns[row], trace.end_ns[row]))
    if not runs:
        return []
    by_id = {f"{trace.span_id[row]:016x}": way for row, way in ways.items()}
    calls: dict[Way, list[PassView]] = {}
    for view in views.values():
        if view.exchange:
            # A reply that was read on after its stage hangs elsewhere, and says whose it is.
            of = by_id.get(str(trace.attributes(view.row).get(STAGE_OF)), ways.get(trace.parent[view.row], ()))
            for depth in range(1, len(of) + 1):
                calls.setdefault(of[:depth], []).append(view)
            if not of:
                calls.setdefault((), []).append(view)
    return [
        *(_one(way, runs[way], len(runs[way]), calls.get(way, [])) for way in _in_order(runs)),
        _one((), _outside((trace.start_ns[0], trace.end_ns[0]), runs), 1, calls.get((), [])),
    ]


def _in_order(runs: Mapping[Way, Sequence[Span]], above: Way = ()) -> Iterable[Way]:
    for way in runs:  # they were met in order of time
        if way[:-1] == above:
            yield way
            yield from _in_order(runs, way)


def _one(way: Way, times: Sequence[Span], runs: int, calls: list[PassView]) -> StageTimes:
    open_then = _union(times)
    in_calls = _union((one.start_ns, one.end_ns) for one in calls)
    in_both = _length(open_then) + _length(in_calls) - _length(_union([*open_then, *in_calls]))
    return StageTimes(way, runs, _length(open_then), in_both, calls)


def _outside(whole: Span, runs: Mapping[Way, Sequence[Span]]) -> list[Span]:
    found, at = [], whole[0]
    for start, end in _union(span for way, spans in runs.items() if len(way) == 1 for span in spans):
        found.append((at, max(start, at)))
        at = max(at, end)
    return [*found, (at, max(whole[1], at))]


def _union(spans: Iterable[Span]) -> list[Span]:
    """Without overlap, in order of time."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _length(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)
