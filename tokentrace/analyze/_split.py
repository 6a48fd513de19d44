"""Layers 5 to 3 of a light pass: its `forward` and `sample` times, shared out as the deep pass saw them.

Light probes do not look below these two, deep probes stretch what they look at. So the time is the light pass's and
only the proportions are the deep one's: separately for each part and phase (forward of a prefill, of a decode, …).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokentrace.analyze._passes import PassView
from tokentrace.analyze._sweep import Place, direction_of
from tokentrace.model import Trace

_MODEL = (5, 4, 3)
#: Name of the outermost span of layer 5, phase of its step.
Part = tuple[str, str]


def divide(amount: int, weights: Sequence[int]) -> list[int]:
    """`amount` in whole numbers in proportion to the weights; the sum is exact (largest remainder)."""
    total = sum(weights)
    if total <= 0:
        return [amount, *([0] * (len(weights) - 1))] if weights else []
    shares = [amount * weight // total for weight in weights]
    by_rest = sorted(range(len(weights)), key=lambda i: (-(amount * weights[i] % total), i))
    for index in by_rest[: amount - sum(shares)]:
        shares[index] += 1
    return shares


def parts(
    trace: Trace, view: PassView, own: Mapping[int, int], *, looked_into: bool = False
) -> dict[Part, dict[Place, int]]:
    """Own time of layers 5 to 3 by part of the model and place, ns.

    A profiler records the first steps of a long reply only. With `looked_into`, passes through a part that show nothing
    below it are left out where others do: they say nothing of the proportions.
    """
    found: dict[Part, dict[Place, int]] = {}
    for part, through in _through(trace, own).items():
        seen = [places for places in through.values() if _shows_inside(places)] if looked_into else []
        total = found[part] = {}
        for places in seen or through.values():
            for place, spent in places.items():
                total[place] = total.get(place, 0) + spent
    return found


@dataclass(slots=True)
class LookedInto:
    """How many passes through the model show nothing below layer 5, how many do, and the time of the former.
    `at_most`: those that do, in the process that has most of them. `first`: is the request's first pass one of them?"""

    without: int = 0
    within: int = 0
    without_ns: int = 0
    at_most: int = 0
    first: bool = False


def looked_into(trace: Trace, own: Mapping[int, int]) -> LookedInto:
    """Sampling is left out, and so are phases of which nothing at all was looked into: there no profiler ran."""
    found = LookedInto()
    seen: dict[int, bool] = {}
    for (name, _), through in _through(trace, own).items():
        inside = {row: _shows_inside(places) for row, places in through.items()}
        if name == "forward":
            seen.update(inside)
        if name == "forward" and any(inside.values()):
            found.within += sum(inside.values())
            found.without += len(inside) - sum(inside.values())
            found.without_ns += sum(sum(places.values()) for row, places in through.items() if not inside[row])
    if found.within:
        found.at_most = max(Counter(trace.process[row] for row in seen if seen[row]).values())
        found.first = seen[min(seen, key=lambda row: trace.start_ns[row])]
    return found


def _through(trace: Trace, own: Mapping[int, int]) -> dict[Part, dict[int, dict[Place, int]]]:
    """Own time of layers 5 to 3 by part, then by its outermost span, then by place, ns."""
    known: dict[int, tuple[Part, int]] = {}
    times: dict[Part, dict[int, dict[Place, int]]] = {}
    for row, spent in own.items():
        if trace.layer[row] in _MODEL:
            part, outermost = _part(trace, row, known)
            places = times.setdefault(part, {}).setdefault(outermost, {})
            place = trace.layer[row], direction_of(trace, row)
            places[place] = places.get(place, 0) + spent
    return times


def _shows_inside(places: Mapping[Place, int]) -> bool:
    return any(layer < 5 for layer, _ in places)


def _part(trace: Trace, row: int, known: dict[int, tuple[Part, int]]) -> tuple[Part, int]:
    """The outermost span of layer 5 that this row lies in: its name and phase, and its row."""
    path = []
    outermost = row
    at = row
    while at > 0 and at not in known and trace.layer[at] in (5, 4, 3, 2):
        path.append(at)
        if trace.layer[at] == 5:
            outermost = at
        at = trace.parent[at]
    if at in known:
        found = known[at]
    else:
        phase = str(trace.attributes(at).get("tokentrace.step.phase", "")) if at > 0 else ""
        found = (trace.names[trace.name[outermost]], phase), outermost
    known.update(dict.fromkeys(path, found))
    return found


def by_proportions(
    light: Mapping[Part, Mapping[Place, int]], deep: Mapping[Part, Mapping[Place, int]]
) -> dict[Place, int] | None:
    """The light pass's time of layers 5 to 3, shared out; None when the deep pass shows no more than the light one, and
    when the light one has no such time: without a look at layer 5 it lies in the engine's steps, undivided."""
    if not light or not any(place[0] < 5 for places in deep.values() for place in places):
        return None
    result: dict[Place, int] = {}
    for (name, phase), places in light.items():
        weights = dict(deep.get((name, phase), {})) or _any_phase(deep, name)
        amount = sum(places.values())
        if not any(weights.values()) or any(place[0] < 5 for place in places):
            for place, spent in places.items():
                result[place] = result.get(place, 0) + spent
            continue
        targets = sorted(weights, reverse=True)
        for place, spent in zip(targets, divide(amount, [weights[t] for t in targets]), strict=True):
            result[place] = result.get(place, 0) + spent
    return result


def _any_phase(deep: Mapping[Part, Mapping[Place, int]], name: str) -> dict[Place, int]:
    found: dict[Place, int] = {}
    for (other, _), places in deep.items():
        if other == name:
            for place, spent in places.items():
                found[place] = found.get(place, 0) + spent
    return found
