"""Did everything take longer by the same share? A busier, hotter or throttled machine does that to a whole run.

Of one run a side nothing tells such a machine from a change that slows all parts alike. What can be told is whether
one part differs from what all the others do; so the common share is taken off before a part is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokentrace.compare.sample import Sample

#: So many common parts it takes to speak of all parts.
_COMMON = 4
#: Levels that are seen in the deep pass, which met another machine than the pass that speaks for the run.
_DEEP = ("modules", "operators", "kernels")


@dataclass(frozen=True, slots=True)
class Even:
    """The typical part's change as a share of the base: in the passes that are compared, and in those that looked
    inside. 0 where too few parts are common to say. `spread` is how far the modules typically lie from theirs."""

    main: float = 0.0
    deep: float = 0.0
    spread: float = 0.0

    def of(self, level: str) -> float:
        return self.deep if level in _DEEP else self.main

    def spread_of(self, level: str) -> float:
        return self.spread if level in _DEEP else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def even_of(base: Sequence[Sample], new: Sequence[Sample]) -> Even:
    """Of one request a side. Several runs show by themselves what the machine does, and a chip's recording has no
    other programs beside it."""
    if len(base) + len(new) > 2 or base[0].kind == "import":
        return Even()
    one, other = base[0], new[0]
    modules = [{key: amount.total for key, amount in s.levels.get("modules", {}).items()} for s in (one, other)]
    main, (deep, spread) = _typical(_changes(one.steady, other.steady)), _modules(*modules)
    return Even(main, deep, spread)


def _modules(base: Mapping[Any, int], new: Mapping[Any, int]) -> tuple[float, float]:
    changes = _changes(base, new)
    middle = _typical(changes)
    # Of a normal distribution the median distance from the middle is 0.6745 standard deviations.
    return middle, _typical([(abs(change - middle), weight) for change, weight in changes]) / 0.6745


def _changes(base: Mapping[Any, int], new: Mapping[Any, int]) -> list[tuple[float, int]]:
    """(change, time) of the parts that both have."""
    return [(new[key] / base[key] - 1, min(base[key], new[key])) for key in base.keys() & new.keys()
            if base[key] > 0 and new[key] > 0]  # fmt: skip


def _typical(values: Sequence[tuple[float, int]]) -> float:
    """The median, each value counted by its weight; 0 of too few."""
    if len(values) < _COMMON:
        return 0.0
    ordered = sorted(values)
    left = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        left -= weight
        if left <= 0:
            return value
    return ordered[-1][0]
