"""Two endpoints on the same prompts: which is quicker, and is that more than noise?

Requests of one round run at the same time and see the same server, so a round is one measurement: its median. Rounds
of the two endpoints took turns, so what drifts falls on both. They are compared as runs are (`compare.noise`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from tokentrace.bench.measured import Measured
from tokentrace.compare.noise import holm, shift
from tokentrace.wording import duration, listed

#: More rounds are put together into this many, by order: the exact test takes time with the square of them.
_BLOCKS = 40

METRICS: dict[str, tuple[str, Callable[[Measured], float | None], bool]] = {
    "ttft": ("first token", lambda m: m.ttft_ns, False),
    # Of two bounds none can say which is the larger quantity.
    "mean_inter_token": ("time a token", lambda m: m.mean_between_ns if m.exact else None, False),
    "total": ("whole request", lambda m: m.total_ns, False),
    "tokens_per_s": ("tokens a second", lambda m: m.tokens_per_s if m.exact else None, True),
}


@dataclass(slots=True)
class Versus:
    """One quantity of two targets. `difference`: of the medians over rounds, second less first, in the metric's unit;
    `beyond_noise` None: too few rounds to tell."""

    metric: str
    title: str
    first: str
    second: str
    first_median: float | None
    second_median: float | None
    difference: float | None
    change: float | None
    low: float | None
    high: float | None
    confidence: float | None
    rounds: int
    beyond_noise: bool | None
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def compare(first: str, second: str, one: Sequence[Measured], other: Sequence[Measured]) -> list[Versus]:
    """All metrics of two targets' requests."""
    found: list[Versus] = []
    tests: dict[Any, float] = {}
    separated: dict[str, bool] = {}
    for metric, (title, read, _) in METRICS.items():
        sides = [_blocks(_by_round(measured, read)) for measured in (one, other)]
        rounds = min(map(len, sides))
        middle = [median(side) if side else None for side in sides]
        row = Versus(metric, title, first, second, middle[0], middle[1], None, None, None, None, None, rounds, None)
        found.append(row)
        if middle[0] is None or middle[1] is None:
            row.why = "not known of both"
            continue
        row.difference = middle[1] - middle[0]
        row.change = row.difference / middle[0] if middle[0] else None
        if rounds < 2:
            row.why = "one round a side shows no noise: more requests, or fewer at a time"
            continue
        told = shift(*sides)
        row.low, row.high, row.confidence = told.low, told.high, told.confidence
        separated[metric] = told.separated
        if told.p_size is not None:
            tests[metric] = told.p_size
    hold = holm(tests)
    for row in found:
        if row.metric in tests:
            row.beyond_noise = row.metric in hold and separated[row.metric]
    return found


def sentence(rows: Sequence[Versus]) -> str:
    """The comparison in one or two sentences."""
    if not rows:
        return ""
    second, first = rows[0].second, rows[0].first
    told = [f"{row.title} {_change(row)}" for row in rows if row.beyond_noise]
    same = [row.title for row in rows if row.beyond_noise is False]
    unknown = [row.title for row in rows if row.beyond_noise is None]
    parts = []
    if told:
        parts.append(f"{second} against {first}: {listed(told)}.")
    if same:
        parts.append(f"No difference beyond noise between {first} and {second} in {listed(same)}.")
    if unknown:
        why = next((row.why for row in rows if row.beyond_noise is None and row.why), "")
        parts.append(f"Not told apart: {listed(unknown)}{f' ({why})' if why else ''}.")
    return " ".join(parts)


def _change(row: Versus) -> str:
    better_up = METRICS[row.metric][2]
    assert row.difference is not None
    up = row.difference > 0
    share = f" ({row.change:+.0%})".replace("%", " %") if row.change is not None else ""
    if better_up:
        return f"{abs(row.difference):.1f} {'more' if up else 'fewer'}{share}"
    inside = ""
    if row.low is not None and row.high is not None and row.confidence is not None:
        ends = sorted((abs(row.low), abs(row.high)))
        inside = f", {row.confidence:.0%} interval {duration(ends[0])} to {duration(ends[1])}".replace("%", " %")
    return f"{duration(abs(row.difference))} {'longer' if up else 'shorter'}{share}{inside}"


def _by_round(measured: Sequence[Measured], read: Callable[[Measured], float | None]) -> list[float]:
    rounds: dict[int, list[float]] = {}
    for m in measured:
        value = read(m) if m.ok else None
        if value is not None:
            rounds.setdefault(m.round, []).append(float(value))
    return [median(rounds[number]) for number in sorted(rounds)]


def _blocks(values: list[float]) -> list[float]:
    if len(values) <= _BLOCKS:
        return values
    edges = [round(number * len(values) / _BLOCKS) for number in range(_BLOCKS + 1)]
    return [median(values[a:b]) for a, b in pairwise(edges)]
