"""The eight layers as they stood: seen, idle or unseen, their own time down and up, and where that time is from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokentrace.analyze._folded import FOLDED
from tokentrace.analyze._passes import PassView, name_of
from tokentrace.analyze._sweep import Place, direction_of
from tokentrace.layers import MARKS, Layer, load
from tokentrace.model import DOWN, UP, Trace
from tokentrace.probe import LEFT_OUT

MEASURED, PROPORTIONS = "measured", "deep proportions"
_DEEP_ONLY = "seen only in the deep pass"
#: Without the server's writes nothing of the way up has a time: reading a chunk is part of the wait for it.
_DOWN_ONLY = "measured on the way down; the work on the reply's chunks was not measured"
#: Each one's spans hold those of the next: a step of the engine, the model, its operators, their kernels.
_NESTED = (6, 5, 4, 3)
_RANK = {"seen": 0, "idle": 1, "unseen": 2}


@dataclass(slots=True)
class LayerTimes:
    """One layer. Own times are None where they are not known; `source` says how they were found, or why not."""

    layer: Layer
    status: str
    reason: str
    fix: str
    own_ns_down: int | None
    own_ns_up: int | None
    source: str
    evidence: int | None  # spans of this layer in the pass that shows it best; None where that was folded
    evidence_pass: str
    hidden: list[str] = field(default_factory=list)  # directions in which it ran, but only while a lower layer did
    facts: dict[str, Any] = field(default_factory=dict)  # numbers and short texts of its probe
    #: Layers below whose time is in its own: nobody looked into them, or only the deep pass did.
    holds: list[int] = field(default_factory=list)

    @property
    def own_ns(self) -> int | None:
        if self.own_ns_down is None and self.own_ns_up is None:
            return None
        return (self.own_ns_down or 0) + (self.own_ns_up or 0)


def layer_times(
    trace: Trace,
    main: PassView,
    deep: PassView | None,
    own: Mapping[Place, int],
    shared: Mapping[Place, int] | None,
    folded: Collection[str] = (),
) -> list[LayerTimes]:
    """All eight, nearest the user first. `shared` is the model's time by the deep pass's proportions, if it was.
    `folded`: names of passes whose spans are not all there."""
    views = [main] if deep is None or deep is main else [main, deep]
    counts = {view.name: _counts(trace, view) for view in views}
    active = _active(trace, main)
    result = []
    for layer in load():
        number = layer.number
        state = _state(number, views)
        # On a tie the pass whose times these are.
        best = max(views, key=lambda v: counts[v.name].get(number, (0, 0))[0])
        times = shared if shared is not None and number in (5, 4, 3) else own
        source = PROPORTIONS if times is shared and number in (5, 4, 3) else MEASURED
        down: int | None = times.get((number, DOWN), 0)
        up: int | None = times.get((number, UP), 0)
        why = _unknown(number, str(state["status"]), [counts[v.name].get(number, (0, 0)) for v in views], shared)
        lost = state["status"] == "seen" and _lost(number, main.name, folded)
        if lost:
            down, up, source = None, None, FOLDED
        elif why and not down and not up:
            down = up = None
            source = why
        elif number == 8 and state["status"] == "seen" and not up and (8, UP) not in active:
            up, source = None, _DOWN_ONLY
        own_by_way = {DOWN: down, UP: up}
        hidden = [way for way, spent in own_by_way.items() if spent == 0 and (number, way) in active]
        result.append(
            LayerTimes(
                layer,
                str(state["status"]),
                str(state.get("reason") or ""),
                str(state.get("fix") or ""),
                down,
                up,
                source,
                None if lost or best.name in folded else counts[best.name].get(number, (0, 0))[0],
                best.name,
                hidden,
                _scalars(state.get("facts") or {}),
            )
        )
    _say_what_is_held(result)
    return result


def _lost(number: int, main: str, folded: Collection[str]) -> bool:
    """Did this layer's own time go with spans that were folded? Those of 5 to 3 come from both passes."""
    return number > 1 and (main in folded or (number in (5, 4, 3) and bool(folded)))


def _say_what_is_held(layers: list[LayerTimes]) -> None:
    """Nobody looked into layers that the user left out, and of one below them that only the deep pass saw no part of
    the main pass's time is known: the next one above that was seen has their time in its own."""
    held: list[int] = []
    by_number = {one.layer.number: one for one in layers}
    for number in reversed(_NESTED):
        one = by_number[number]
        if one.reason == LEFT_OUT or one.source == _DEEP_ONLY:
            held.insert(0, number)
        else:
            if held and one.status == "seen" and one.own_ns:
                one.holds = held
            held = []


def _unknown(number: int, status: str, counts: list[tuple[int, int]], shared: Mapping[Place, int] | None) -> str:
    """Why a layer's own time is not known; "" when it is."""
    if status == "unseen":
        return "unseen"
    if number == 1:
        return "power has no time of its own"
    if status == "idle":
        return ""
    if counts[0][1]:
        return ""
    if number in (5, 4, 3) and shared is not None:
        return ""
    if number == 2 and counts[0][0]:
        return ""  # cache look-ups are instants: that they took nothing is known
    if not any(timed for _, timed in counts):
        return "seen from outside, without times"
    return "" if number == 2 else _DEEP_ONLY


def _counts(trace: Trace, view: PassView) -> dict[int, tuple[int, int]]:
    """For each layer how many spans there are, and how many of them have a length."""
    found: dict[int, tuple[int, int]] = {}
    for row in view.rows:
        if name_of(trace, row) not in MARKS:
            every, timed = found.get(trace.layer[row], (0, 0))
            found[trace.layer[row]] = every + 1, timed + (trace.end_ns[row] > trace.start_ns[row])
    return found


def _active(trace: Trace, view: PassView) -> set[Place]:
    """Layers and directions that have working spans in this pass."""
    return {
        (trace.layer[row], direction_of(trace, row))
        for row in view.rows
        if trace.layer[row] > 5 and row not in trace.envelopes and trace.end_ns[row] > trace.start_ns[row]
    }


def _scalars(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if isinstance(value, (bool, int, float, str))}


def _state(number: int, views: list[PassView]) -> Mapping[str, Any]:
    """The better of the passes' states; the first one's when they are equal."""
    states = [view.states[number] for view in views if number in view.states]
    if not states:
        return {"status": "unseen", "reason": "its probe did not run", "fix": ""}
    return min(states, key=lambda s: _RANK.get(str(s.get("status")), 2))
