"""Percentiles with intervals, and the honesty to refuse those that so few measurements cannot carry.

A percentile is linear interpolation between order statistics. Its 95 % interval is a percentile bootstrap over whole
requests (the gaps of one reply are no independent measurements), seeded, so that the same data give the same figures.

- Refused: fewer than one measurement is expected beyond it (p99 of less than 100).
- Its upper end is open where the chance that all n measurements lie below the true percentile, q^n, is over 2.5 %: no
  resampling of what was seen can tell how far beyond it goes. p90 is closed from 36 measurements on, p99 from 368.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tokentrace.wording import plural

PERCENTILES = (0.5, 0.9, 0.99)
_RESAMPLES = 2_000
_MOST_WORK = 100_000_000
_TAIL = 0.025
#: An interval from fewer requests would be a guess.
_FEWEST = 5

Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Quantile:
    """`value` None: refused, `why` says so. `low` and `high` None: that end of the interval is open."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Figure:
    """One quantity over all requests that have it, in its own unit. `count` measurements of `requests` requests."""

    unit: str
    count: int
    requests: int
    mean: float | None
    least: float | None
    most: float | None
    quantiles: dict[str, Quantile]
    bound: str = ""  # "at least" or "at most", where some of the measurements are no more than that

    def as_dict(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "count": self.count,
            "requests": self.requests,
            "mean": self.mean,
            "min": self.least,
            "max": self.most,
            "bound": self.bound,
            **{name: quantile.as_dict() for name, quantile in self.quantiles.items()},
        }


def name_of(q: float) -> str:
    return f"p{q * 100:g}"


def figure(groups: Sequence[Sequence[float]], unit: str, seed: int = 0) -> Figure:
    """The figure of measurements grouped by request; a group may hold one measurement, many or none."""
    filled = [np.asarray(g, np.float64) for g in groups if len(g)]
    if not filled:
        none = {name_of(q): Quantile(None, why="nothing was measured") for q in PERCENTILES}
        return Figure(unit, 0, 0, None, None, None, none)
    every = np.concatenate(filled)
    drawn = _resampled(filled, every, seed)
    found = {name_of(q): _quantile(q, every, len(filled), drawn) for q in PERCENTILES}
    return Figure(
        unit, len(every), len(filled), float(every.mean()), float(every.min()), float(every.max()), found
    )  # fmt: skip


def _quantile(q: float, every: Floats, requests: int, drawn: dict[float, Floats] | None) -> Quantile:
    count = len(every)
    if count * (1 - q) < 1 - 1e-9:
        least = math.ceil(1 / (1 - q) - 1e-9)
        return Quantile(
            None, why=f"of {plural(count, 'measurement')} none is expected beyond {name_of(q)}; it takes {least}"
        )
    value = float(np.quantile(every, q))
    if drawn is None:
        return Quantile(value, why=f"no interval from {plural(requests, 'request')}; it takes {_FEWEST}")
    # By requests where each has one measurement; the gaps of one reply are many, but they do not reach as far.
    low, high = (float(x) for x in np.quantile(drawn[q], [_TAIL, 1 - _TAIL]))
    why = ""
    closed_above, closed_below = q**count <= _TAIL, (1 - q) ** count <= _TAIL
    if not closed_above:
        why = f"so few measurements ({count}) do not show how far above it may be"
    return Quantile(value, low if closed_below else None, high if closed_above else None, why)


def _resampled(groups: list[Floats], every: Floats, seed: int) -> dict[float, Floats] | None:
    """The percentiles of many resamples; requests are drawn with all they hold. None for too few requests."""
    if len(groups) < _FEWEST:
        return None
    draws = max(200, min(_RESAMPLES, _MOST_WORK // len(every)))
    random = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    order = np.argsort(every, kind="stable")
    values, owner = every[order], owner[order]
    found = {q: np.empty(draws) for q in PERCENTILES}
    for number in range(draws):
        times = np.bincount(random.integers(0, len(groups), len(groups)), minlength=len(groups))
        ends = np.cumsum(times[owner])
        total = int(ends[-1])
        for q in PERCENTILES:
            found[q][number] = _weighted(values, ends, q * (total - 1))
    return found


def _weighted(values: Floats, ends: npt.NDArray[np.int64], at: float) -> float:
    """Element number `at` (interpolated) of the sorted list in which value i stands `ends[i] - ends[i - 1]` times."""
    below = math.floor(at)
    first = values[np.searchsorted(ends, below, side="right")]
    if at == below:
        return float(first)
    second = values[np.searchsorted(ends, below + 1, side="right")]
    return float(first + (second - first) * (at - below))


def success_interval(good: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share. https://www.jstor.org/stable/2276774"""
    if count == 0:
        return 0.0, 1.0
    z = 1.959964
    share = good / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
