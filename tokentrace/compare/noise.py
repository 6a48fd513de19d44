"""Is a difference more than noise? Statistics for few measurements that a wild one among them does not break.

Several measurements a side: a difference is beyond noise when both of these hold.

- Order: the exact Mann-Whitney test (two-sided) says at most 5 %. Where so few measurements cannot say that (fewer
  than four a side), every measurement of one side must lie beyond every one of the other.
- Size: the difference of the medians, in units of what runs of one side typically differ by (the median of all such
  differences), is larger than equal sides would show in 5 % of cases.

Neither is led astray by one wild run. The wall time is tested by itself; the rows of all levels together get another
5 %: a sixth for each level, and in a level Holm's correction for the number of its rows.

The interval of a difference is that of Hodges and Lehmann: order statistics of all pairwise differences, with the
confidence that they have exactly.

One measurement a side: nothing is known of what separates equal runs. What can be seen is the scatter of repeated parts
inside each of them; `floor` is what that alone would make of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from statistics import fmean, median, stdev

import numpy as np
import numpy.typing as npt

ALPHA = 0.05
#: One run a side: a difference counts from this many times the floor on.
FLOORS = 3.0
#: So many repetitions it takes to speak of scatter.
_REPEATED = 4
_EXACT_PAIRS = 4_000
#: Pairs of equal sides, and differences inside of them, that are simulated at most; so many differences at once. No p
#: is smaller than one in as many draws, which leaves room for 300 rows at a level. Sides of more runs than `_ALL_DRAWN`
#: get fewer draws, too few for that, and are therefore also measured against sides of so many.
_DRAWS, _MOST_DRAWN, _AT_ONCE = 40_000, 8_000_000, 1_000_000
_ALL_DRAWN = 14

Floats = npt.NDArray[np.float64]

#: ("decode", 3) is the fourth decode step; a part that runs once has ("", 0).
Slot = tuple[str, int]
Slots = Mapping[Slot, int]


@dataclass(frozen=True, slots=True)
class Shift:
    """How far two samples lie apart. `low` to `high` holds the shift with probability `confidence`."""

    difference: float  # of the medians, new less base
    low: float | None
    high: float | None
    confidence: float | None
    p_order: float | None
    p_size: float | None
    separated: bool  # as far apart in order as so many measurements can be told, see the module's docstring


def shift(base: Sequence[float], new: Sequence[float]) -> Shift:
    """Raises ValueError for an empty side. With one measurement each only the difference is known."""
    if not base or not new:
        raise ValueError("a side has no measurement")
    difference = median(new) - median(base)
    if len(base) == 1 and len(new) == 1:
        return Shift(difference, None, None, None, None, None, False)
    low, high, confidence = _interval(base, new)
    order = rank_p(base, new)
    reachable = 2 / math.comb(len(base) + len(new), len(base))
    return Shift(difference, low, high, confidence, order, size_p(base, new), order <= max(ALPHA, reachable * 1.000001))


def holm(values: Mapping[Hashable, float], alpha: float = ALPHA) -> set[Hashable]:
    """Which of these tests hold together at `alpha`. https://www.jstor.org/stable/4615733"""
    found: set[Hashable] = set()
    ordered = sorted(values.items(), key=lambda item: item[1])
    for number, (key, p) in enumerate(ordered):
        if p > alpha / (len(ordered) - number):
            break
        found.add(key)
    return found


def rank_p(base: Sequence[float], new: Sequence[float]) -> float:
    """Two-sided p of Mann and Whitney: exact for few pairs, normal with continuity correction for many.

    Ties count half, which in the exact distribution is conservative.
    """
    m, n = len(base), len(new)
    u = sum(1.0 if b > a else 0.5 if b == a else 0.0 for a in base for b in new)
    smaller = min(u, m * n - u)
    if m * n > _EXACT_PAIRS:
        spread = math.sqrt(m * n * (m + n + 1) / 12)
        return min(1.0, math.erfc(max(0.0, m * n / 2 - smaller - 0.5) / spread / math.sqrt(2)))
    counts = _ranks(m, n)
    below = sum(counts[: math.ceil(smaller) + 1])
    return min(1.0, 2 * below / math.comb(m + n, m))


def size_p(base: Sequence[float], new: Sequence[float]) -> float:
    """How often sides that are equal lie as far apart as these, measured in what their own measurements differ by.

    The difference of the medians over the median of all differences inside a side: one wild run changes neither much.
    Its distribution for equal sides has no formula and is simulated, for light and for heavy tails (the larger counts).
    What was seen counts as one of the draws: a simulation can say that something is as rare as that, and never that it
    cannot be. Fewer runs scatter more, so what is rare among equal sides of fewer is at least as rare among these.
    """
    typical = median(_inside(base) + _inside(new))
    difference = abs(median(new) - median(base))
    if difference == 0:
        return 1.0
    ratio = difference / typical if typical > 0 else math.inf
    m, n = len(base), len(new)
    sizes = {(m, n), (min(m, _ALL_DRAWN), min(n, _ALL_DRAWN))}
    return min(max(float(((d >= ratio).sum() + 1) / (len(d) + 1)) for d in _equal(*size)) for size in sizes)


def _equal(m: int, n: int) -> list[Floats]:
    return _equal_sides(*sorted((m, n)))


def _inside(side: Sequence[float]) -> list[float]:
    return [abs(a - b) for a, b in combinations(side, 2)]


@lru_cache(maxsize=64)
def _equal_sides(m: int, n: int) -> list[Floats]:
    """The ratio of `size_p` for many pairs of equal sides: normal, and t with three degrees of freedom. Seeded."""
    pairs = [np.triu_indices(count, 1) for count in (m, n)]
    draws = max(2_000, min(_DRAWS, _MOST_DRAWN // max(1, sum(len(i) for i, _ in pairs))))
    random = np.random.default_rng(20_240)
    at_once = max(1, _AT_ONCE // max(1, sum(len(i) for i, _ in pairs)))
    found = []
    for heavy in (False, True):
        ratios = []
        for begin in range(0, draws, at_once):
            shapes = [(min(at_once, draws - begin), count) for count in (m, n)]
            sides = [np.asarray(random.standard_t(3, s) if heavy else random.standard_normal(s)) for s in shapes]
            inside = np.concatenate([np.abs(x[:, i] - x[:, j]) for x, (i, j) in zip(sides, pairs, strict=True)], axis=1)
            between = np.abs(np.median(sides[1], axis=1) - np.median(sides[0], axis=1))
            ratios.append(between / np.median(inside, axis=1))
        found.append(np.concatenate(ratios))
    return found


def _interval(base: Sequence[float], new: Sequence[float]) -> tuple[float, float, float]:
    m, n = len(base), len(new)
    differences = sorted(b - a for a in base for b in new)
    if m * n > _EXACT_PAIRS:
        cut = max(0, math.floor(m * n / 2 - 1.96 * math.sqrt(m * n * (m + n + 1) / 12)))
        return differences[cut], differences[-1 - cut], 1 - ALPHA
    counts, every = _ranks(m, n), math.comb(m + n, m)
    cut, below = 0, counts[0]
    while cut + 1 < m * n / 2 and 2 * (below + counts[cut + 1]) / every <= ALPHA:
        cut += 1
        below += counts[cut]
    return differences[cut], differences[-1 - cut], 1 - 2 * below / every


def _ranks(m: int, n: int) -> list[int]:
    """In how many orders of m and n distinct values each value of U comes about: a Gaussian binomial coefficient."""
    counts = [1] + [0] * (m * n)
    for i in range(1, min(m, n) + 1):
        top = max(m, n) + i
        for j in range(m * n, top - 1, -1):  # times 1 - q^top
            counts[j] -= counts[j - top]
        for j in range(i, m * n + 1):  # over 1 - q^i
            counts[j] += counts[j - i]
    return counts


@dataclass(frozen=True, slots=True)
class Scatter:
    """How much a repeated part varies: its standard deviation as a share of its mean, and that mean in ns."""

    share: float
    mean_ns: float

    def variance(self, value: int) -> float:
        """Of a part that was seen once. A longer one than the repeated parts is taken for several of them in a row,
        whose variations partly even out."""
        return self.share**2 * value * min(value, self.mean_ns)


def scatter(slots: Slots, other: Scatter | None = None) -> tuple[float, Scatter | None]:
    """(variance of the sum that the scatter of repeated parts makes, that scatter).

    Parts that are not repeated often enough get the scatter of those that are; where nothing is repeated, `other`.
    When there is neither the result is (0, None).
    """
    by_phase: dict[str, list[int]] = {}
    for (phase, _), value in slots.items():
        by_phase.setdefault(phase, []).append(value)
    repeated = {phase: values for phase, values in by_phase.items() if len(values) >= _REPEATED}
    variance = sum(len(values) * stdev(values) ** 2 for values in repeated.values())
    if repeated:
        most = max(repeated.values(), key=sum)
        if fmean(most) > 0:
            other = Scatter(stdev(most) / fmean(most), fmean(most))
    if other is not None:
        variance += sum(other.variance(v) for p, values in by_phase.items() if p not in repeated for v in values)
    return variance, other


def drift(slots: Slots, again: Slots) -> float | None:
    """By how much the same repeated parts differ between two passes of one run, as a share; None: nothing to compare.

    Medians by phase, so that one wild step does not count; the largest phase speaks.
    """
    best: tuple[int, float] | None = None
    for phase in {p for p, _ in slots}:
        one = [v for (p, _), v in slots.items() if p == phase]
        other = [v for (p, _), v in again.items() if p == phase]
        if len(one) >= _REPEATED and len(other) >= _REPEATED and median(one) > 0:
            share = abs(median(other) / median(one) - 1)
            if best is None or sum(one) > best[0]:
                best = sum(one), share
    return best[1] if best else None


@dataclass(frozen=True, slots=True)
class Side:
    """One single run, for `floor`: the slots of a sum, and how much any part of that run scatters or drifts."""

    slots: Slots
    steps: Scatter | None = None  # scatter of its steps, for sums without repeated parts of their own
    drifts: Sequence[float] = ()  # see `drift`
    again: Sequence[int] = ()  # the same sum in other passes of the run that should have taken as long


def floor(base: Side, new: Side) -> float | None:
    """What noise seen inside two single runs makes of the difference of two sums, ns; None when there is none to see.

    The root of the summed squares of: the scatter of repeated parts on both sides, the smaller side times the largest
    drift between passes of one run, and the largest difference of the same sum in two passes of one run. The smaller
    side, because equal sides would both take about that long: of the larger one, the drift of a long run would hide
    any difference from a short one.
    """
    seen = False
    squares = 0.0
    for side in (base, new):
        variance, known = scatter(side.slots, side.steps)
        seen = seen or known is not None
        squares += variance
    drifts = [*base.drifts, *new.drifts]
    if drifts:
        seen = True
        sums = [sum(side.slots.values()) for side in (base, new)]
        squares += (max(drifts) * min((one for one in sums if one > 0), default=0)) ** 2
    again = [sum(side.slots.values()) - other for side in (base, new) for other in side.again]
    if again:
        seen = True
        squares += max(one * one for one in again)
    return math.sqrt(squares) if seen else None
