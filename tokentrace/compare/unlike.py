"""Was it the same work, and seen alike? Sides with other numbers of tokens are compared a token as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tokentrace.compare.sample import Sample
from tokentrace.wording import listed


@dataclass(frozen=True, slots=True)
class PerToken:
    """Median time of a token after the first, ns; `change` is a share of the base's."""

    base_ns: float
    new_ns: float
    change: float

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def per_token_of(base: Sequence[Sample], new: Sequence[Sample]) -> PerToken | None:
    """None where one measurement does not tell it exactly; see `exchange.Pace`."""
    medians = []
    for side in (base, new):
        known = [value for s in side if s.pace.exact and (value := s.pace.per_token_ns) is not None]
        if len(known) < len(side):
            return None
        medians.append(median(known))
    return PerToken(medians[0], medians[1], medians[1] / medians[0] - 1) if medians[0] > 0 else None


def no_per_token(base: Sequence[Sample], new: Sequence[Sample]) -> str:
    """Why `per_token_of` is None, as a sentence; "" where nobody would ask: of recordings."""
    for name, side in (("the base", base), ("the new side", new)):
        for sample in side:
            if not sample.pace.exact and sample.kind != "import":
                return f"How long a token after the first took is not known of {name}: {sample.pace.why}."
    return ""


def unlike_tokens(base: Sequence[Sample], new: Sequence[Sample]) -> list[str]:
    """`10 against 400 output tokens`, where no measurement of one side had as many as one of the other."""
    found = []
    for name in ("input", "output"):
        sides = [sorted({n for s in side if (n := s.tokens.get(name)) is not None}) for side in (base, new)]
        if sides[0] and sides[1] and not set(sides[0]) & set(sides[1]):
            before, after = (f"{one[0]}" if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in sides)
            found.append(f"{before} against {after} {name} tokens")
    return found


def unlike_depth(base: Sequence[Sample], new: Sequence[Sample]) -> list[str]:
    """Where one pass saw the model from outside and another inside, their spans are others and are not compared.

    The same goes for what was seen inside in one and the same pass. Their levels have been worked out before.
    """
    every = [*base, *new]
    inside = [{(s.source, s.deep_pass) for s in side if s.source and s.deep_pass} for side in (base, new)]
    for _, name in inside[0] & inside[1]:
        _leave_out(every, ("modules", "operators", "kernels"), f"both sides have only the {name} pass of one run")
    light, deep = (sorted({s.pass_name for s in every if s.looks_inside is looks}) for looks in (False, True))
    if not light or not deep or any(s.kind == "import" for s in every):
        return []
    why = f"the {listed(light)} pass saw the model from outside and the {listed(deep)} pass looked inside"
    _leave_out(every, ("spans",), why)
    return [f"{why}, which takes time of its own"]


def _leave_out(samples: Sequence[Sample], levels: Sequence[str], why: str) -> None:
    for level in levels:
        if all(level in sample.levels for sample in samples):  # else another reason is told already
            for sample in samples:
                sample.levels.pop(level, None)
                sample.missing[level] = why
