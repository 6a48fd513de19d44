"""Was it the same work? Sides with other numbers of tokens are compared a token as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tokentrace.compare.sample import Sample


@dataclass(frozen=True, slots=True)
class PerToken:
    """Median time of a token after the first, ns; `change` is a share of the base's."""

    base_ns: float
    new_ns: float
    change: float

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def per_token_of(base: Sequence[Sample], new: Sequence[Sample]) -> PerToken | None:
    """None where one measurement does not tell its first token or its number of tokens."""
    medians = []
    for side in (base, new):
        known = [value for sample in side if (value := sample.per_token_ns) is not None]
        if len(known) < len(side):
            return None
        medians.append(median(known))
    return PerToken(medians[0], medians[1], medians[1] / medians[0] - 1) if medians[0] > 0 else None


def unlike_tokens(base: Sequence[Sample], new: Sequence[Sample]) -> list[str]:
    """`10 against 400 output tokens`, where no measurement of one side had as many as one of the other."""
    found = []
    for name in ("input", "output"):
        sides = [sorted({n for s in side if (n := s.tokens.get(name)) is not None}) for side in (base, new)]
        if sides[0] and sides[1] and not set(sides[0]) & set(sides[1]):
            before, after = (f"{one[0]}" if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in sides)
            found.append(f"{before} against {after} {name} tokens")
    return found
