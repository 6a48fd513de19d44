"""Cold against warm, deep against warm: the same request, seen in different passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from tokentrace.analyze._passes import PassView, name_of
from tokentrace.analyze._steps import StepRow, decoded
from tokentrace.analyze._sweep import Place
from tokentrace.model import Trace
from tokentrace.wording import duration, listed

#: Light passes do not tell these three apart: what happens below `forward` counts as its own.
MODEL = frozenset((5, 4, 3))


@dataclass(slots=True)
class Extra:
    """What one layer (5 for layers 5 to 3 together, 0 for time of nobody) took more in one pass than in another, ns."""

    layer: int
    extra_ns: int


def extras(more: Mapping[Place, int], less: Mapping[Place, int], more_free: int, less_free: int) -> list[Extra]:
    """The difference by layer, the largest first. Adds up to the difference of the wall times."""
    total: dict[int, int] = {0: more_free - less_free}
    for places, sign in ((more, 1), (less, -1)):
        for (layer, _), spent in places.items():
            key = 5 if layer in MODEL else layer
            total[key] = total.get(key, 0) + sign * spent
    found = [Extra(layer, ns) for layer, ns in total.items() if ns]
    return sorted(found, key=lambda e: (-abs(e.extra_ns), -e.layer))


def titles(layer: int) -> str:
    from tokentrace.layers import by_number

    if layer == 0:
        return "time of no layer"
    return "the model (layers 5 to 3)" if layer == 5 else f"the {by_number(layer).title} (layer {layer})"


def cold_sentence(cold: PassView, warm: PassView, extra: list[Extra], cached: int) -> str:
    """What the first request paid for, in one sentence. `cached`: prompt tokens that only the warm one had cached."""
    difference = cold.wall_ns - warm.wall_ns
    if difference <= 0:
        return f"The first request was no slower than the warm one ({duration(cold.wall_ns)})."
    named = [f"{duration(e.extra_ns)} in {titles(e.layer)}" for e in extra if e.extra_ns > difference // 50][:3]
    work = f"; the warm one took {cached} prompt tokens from the prefix cache" if cached > 0 else ""
    return f"The first request took {duration(difference)} longer than the warm one: {listed(named)}{work}."


def dilation(deep: PassView, warm: PassView) -> float | None:
    return deep.wall_ns / warm.wall_ns if warm.wall_ns > 0 else None


def waited(trace: Trace, view: PassView) -> int:
    """How long a pass's request waited in the engine's queues, ns."""
    waits = [r for r in view.rows if trace.layer[r] == 6 and name_of(trace, r) in ("queue wait", "input queue")]
    return sum(trace.end_ns[r] - trace.start_ns[r] for r in waits)


def step_dilation(deep: list[StepRow], warm: list[StepRow], phase: str) -> float | None:
    """Ratio of median step times of one phase; None when either pass has no such step."""
    stretched = [s.wall_ns for s in deep if s.took_part_as(phase)]
    plain = [s.wall_ns for s in warm if s.took_part_as(phase)]
    if not stretched or not plain or median(plain) <= 0:
        return None
    return float(median(stretched) / median(plain))


def replies(trace: Trace, views: Mapping[str, PassView]) -> dict[str, Any] | None:
    """The first place where passes' replies differ; None when they do not, or cannot be compared.

    Token ids are compared where the tokenizer was seen in both passes, else the text. A reply that broke off is left
    out: it says nothing about the tokens it lacks.
    """
    whole = [v for v in views.values() if v.exchange and v.whole]
    for one, other in ((whole[0], view) for view in whole[1:]):
        left, right = decoded(trace, one), decoded(trace, other)
        ids = [i for i, _ in left], [i for i, _ in right]
        texts = str(one.exchange.get("text", "")), str(other.exchange.get("text", ""))
        if left and right:
            if ids[0] == ids[1]:
                continue
            at = _first_difference(ids[0], ids[1])
            return {"passes": (one.name, other.name), "token": at, "left": left[at : at + 1],
                    "right": right[at : at + 1]}  # fmt: skip
        if texts[0] != texts[1]:
            return {"passes": (one.name, other.name), "character": _first_difference(*texts)}
    return None


def _first_difference(left: Any, right: Any) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
