"""One measurement, as amounts of time by level: here a pass of a run; a report or a recording, see `spanless`.

Levels: layers (own time; they and the time of nobody, 0, add up to the wall time), spans (own time by name within
layers 8 to 5 and 2), steps, modules, operators and kernels. The last three come from the pass that looked that deep.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokentrace.analyze import Analysis, PassTimes
from tokentrace.analyze.tree import STEP, Node
from tokentrace.carried import Trees
from tokentrace.compare.noise import Scatter, Slot, Slots, drift, scatter
from tokentrace.compare.processor import Processor, of_rows
from tokentrace.compare.tree import Merged, merge
from tokentrace.exchange import Pace, pace

if TYPE_CHECKING:
    from tokentrace.model import Trace

LEVELS = ("layers", "spans", "steps", "modules", "operators", "kernels")
FOLDED = "the trace is folded: give the run's folder, which holds all spans"
NOBODY = 0
_IN_MODEL = (5, 4, 3)
OPERATORS = (4, 3)
_COMPILING = 2
#: Layers whose work is the same in every pass after the first, and is not stretched by looking deeper.
_UNSTRETCHED = (8, 7, 6)
ONCE: Slot = ("", 0)


@dataclass(slots=True)
class Amount:
    """Time of one thing in one measurement, ns by slot."""

    label: str
    layer: int
    slots: dict[Slot, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.slots.values())


Amounts = dict[Hashable, Amount]


@dataclass(slots=True)
class Step:
    """One engine step (or marked step of a recording) that served the request."""

    slot: Slot
    index: int | None
    wall_ns: int
    tokens: int | None = None
    name: str = ""


@dataclass(slots=True)
class Sample:
    """See the module's docstring. `missing` says for each level that is not known why; `partial` levels list only the
    largest entries, so that what is absent is not known to be zero."""

    label: str
    kind: str  # run, report or import
    pass_name: str
    wall_ns: int
    ttft_ns: int | None = None
    tokens: dict[str, int | None] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    levels: dict[str, Amounts] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()
    main: Node | None = None
    deep: Node | None = None
    deep_pass: str = ""
    drifts: list[float] = field(default_factory=list)
    again: list[dict[str, Amounts]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    given: tuple[str, str] | None = None  # what the user called it, and the pass if one was chosen
    looks_inside: bool = False  # the pass saw what runs inside the model, which takes time of its own
    source: str = ""  # the file it was read from
    program_ns: int = 0  # of a program of several calls, of which this is one: the whole of it
    processor: Processor | None = None
    pace: Pace = field(default_factory=lambda: Pace(why="it is no request"))
    lost: str = ""  # what is missing of it and why: what is gone may have been the difference

    @property
    def wall(self) -> dict[Slot, int]:
        """The wall time by step and the rest. Compiling stands apart: it happens once, a step with it is no scatter."""
        steps = self.steady
        compiling = sum(self._compiling().values())
        rest = self.wall_ns - sum(steps.values()) - compiling
        if rest < 0:
            return {ONCE: self.wall_ns}
        return {**steps, ONCE: rest} | ({("compiling", 0): compiling} if compiling else {})

    @property
    def scatter(self) -> Scatter | None:
        """How much its steps scatter."""
        return scatter(self.steady)[1]

    @property
    def steady(self) -> dict[Slot, int]:
        """The steps without what was compiled in them, which happens once."""
        compiling = self._compiling()
        return {step.slot: step.wall_ns - compiling.get(step.slot, 0) for step in self.steps}

    def _compiling(self) -> Slots:
        amount = self.levels.get("layers", {}).get(_COMPILING)
        return amount.slots if amount is not None else {}


def of_pass(trace: Trace, found: Analysis, name: str, label: str) -> Sample:
    """One pass of a run; of one that was folded what its trace carries: its spans do not tell where its time went."""
    one = found.passes[name]
    seeing = _seeing(found, one)
    trees = Trees(trace)
    exchange = one.view.exchange
    walls = _step_walls(one)
    main = trees.of(one)
    deep = None if seeing is None else main if seeing is one else trees.of(seeing)
    sample = Sample(
        label=label,
        kind="run",
        pass_name=name,
        wall_ns=one.wall_ns,
        ttft_ns=one.ttft_ns,
        tokens={"input": exchange.get("input_tokens"), "output": exchange.get("output_tokens")},
        facts=_facts(trace, exchange) | _computed(one),
        steps=[Step(slot, row.index, row.wall_ns, row.tokens) for slot, row in zip(walls, one.steps, strict=True)],
        main=main,
        deep=deep,
        deep_pass=seeing.name if seeing is not None and deep is not None else "",
        looks_inside=_inside(one),
        pace=pace_of(exchange),
        processor=of_rows(trace, one.view.rows),
        missing=dict.fromkeys(("modules", "operators", "kernels"), _no_depth(found)) if deep is None else {},
    )
    for other in found.passes.values():
        if other is one:
            continue
        if other.name != "deep" and name != "deep" and (share := drift(walls, _step_walls(other))) is not None:
            sample.drifts.append(share)
        if "cold" not in (other.name, name):
            tree = deep if deep is not None and other is seeing else trees.of(other)
            if tree is not None:
                sample.again.append(read(merge([tree]), 0, ("layers", "spans")))
    if main is None:
        from tokentrace.compare.folded import fill_in  # it makes samples itself

        fill_in(sample, trace, one)
    return sample


def pace_of(exchange: Mapping[str, Any]) -> Pace:
    """As it was kept, or of what an older run kept."""
    kept = exchange.get("pace")
    if isinstance(kept, Mapping):
        return Pace(**{name: kept[name] for name in ("window_ns", "tokens", "exact", "why") if name in kept})
    if exchange.get("ttft_ns") is None:
        return Pace(why="the reply was not streamed")
    times = [int(at) for at, text in exchange.get("chunks") or () if text]
    return pace(times, exchange.get("output_tokens"), end_mark=exchange.get("finish_reason") == "stop")


def _no_depth(found: Analysis) -> str:
    if found.folded:
        return FOLDED
    return "no pass of it looked inside the model"


def _seeing(found: Analysis, one: PassTimes) -> PassTimes | None:
    """The pass that looked inside the model: this one, or for the run's own pass the deep one."""
    if _inside(one):
        return one
    deep = found.passes.get("deep")
    return deep if one is found.main and deep is not None and _inside(deep) else None


def _inside(one: PassTimes) -> bool:
    return any(layer in OPERATORS for layer, _ in one.own)


def _step_walls(one: PassTimes) -> dict[Slot, int]:
    walls: dict[Slot, int] = {}
    met: dict[str, int] = {}
    for step in one.steps:
        phase = step.phase or STEP
        number = met.get(phase, 0)
        met[phase] = number + 1
        walls[phase, number] = step.wall_ns
    return walls


def _computed(one: PassTimes) -> dict[str, str]:
    """Prompt tokens that were computed, as opposed to taken from the prefix cache."""
    known = [step.tokens for step in one.steps if step.phase == "prefill" and step.tokens is not None]
    return {"prompt tokens computed": str(sum(known))} if known else {}


def _facts(trace: Trace, exchange: Mapping[str, Any]) -> dict[str, str]:
    """What should be alike on both sides of a comparison, as text."""
    told: dict[str, Any] = {
        "prompt": trace.meta.get("prompt") or trace.attributes(0).get("tokentrace.prompt"),
        "model": exchange.get("response_model") or exchange.get("model") or trace.meta.get("model"),
        "input tokens": exchange.get("input_tokens"),
        "output tokens": exchange.get("output_tokens"),
    }
    engine = trace.meta.get("engine")
    if isinstance(engine, Mapping):
        told |= {f"engine {key}": engine.get(key) for key in ("device", "dtype", "threads", "compile", "torch")}
    hosts = {str(p.attributes.get("host.id", "")) for p in trace.processes.values()} - {""}
    if len(hosts) == 1:
        told["host"] = hosts.pop()
    return {key: str(value) for key, value in told.items() if value not in (None, "")}


def read(merged: Merged, number: int, levels: Sequence[str]) -> dict[str, Amounts]:
    """The amounts of tree `number`, under the names that all trees agreed on."""
    found: dict[str, Amounts] = {level: {} for level in levels}
    stack: list[tuple[Merged, str, bool]] = [(merged, "", False)]  # its module, or the span in place of one
    while stack:
        place, module, inside = stack.pop()
        node = place.nodes[number]
        if node is None:
            continue
        if place.layer == 5 or (place.layer > 5 and place.children):
            module, inside = place.name, place.layer == 5
        for level, key, label in _keys(place, module, inside):
            if level in found:
                amounts = found[level]
                amount = amounts.setdefault(key, Amount(label, place.layer))
                for slot, spent in node.own.items():
                    amount.slots[slot] = amount.slots.get(slot, 0) + spent
        stack += [(child, module, inside) for child in place.children]
    return {level: {k: a for k, a in amounts.items() if a.slots} for level, amounts in found.items()}


def _keys(place: Merged, module: str, inside: bool) -> list[tuple[str, Hashable, str]]:
    layer, name = place.layer, place.name
    found: list[tuple[str, Hashable, str]] = [("layers", layer, "")] if layer else []
    if layer in _IN_MODEL:
        found.append(("modules", module, module if inside else f"{module} (no module)"))
    elif layer:
        found.append(("spans", (layer, name), name))
    if layer == 5:
        found.append(("spans", (layer, name), name))
    plain = name.removeprefix("leaf ")
    if layer == 4 or (layer == 3 and plain != name):
        found.append(("operators", plain, plain))
    elif layer == 3:
        found.append(("kernels", name, name))
    return found


def fill(samples: Sequence[Sample]) -> None:
    """Work out the levels of all samples that have trees, under common names."""
    with_main = [s for s in samples if s.main is not None]
    if with_main:
        merged = merge([s.main for s in with_main if s.main is not None])
        for number, sample in enumerate(with_main):
            sample.levels.update(read(merged, number, ("layers", "spans")))
            _add_nobody(sample)
            sample.levels["steps"] = step_amounts(sample.steps)
    with_deep = [s for s in samples if s.deep is not None]
    if with_deep:
        merged = merge([s.deep for s in with_deep if s.deep is not None])
        for number, sample in enumerate(with_deep):
            found = read(merged, number, ("modules", "operators", "kernels"))
            for level, amounts in found.items():
                if amounts:
                    sample.levels[level] = amounts
                else:
                    sample.missing[level] = f"there is none in the {sample.deep_pass} pass"


def step_amounts(steps: Sequence[Step]) -> Amounts:
    """One amount a step, by its phase and its number in that phase."""
    found: Amounts = {}
    for step in steps:
        phase, number = step.slot
        label = step.name or (f"{phase} step {number}" if phase != STEP else f"step {number}")
        found[step.slot] = Amount(label, 6, {step.slot: step.wall_ns})
    return found


def _add_nobody(sample: Sample) -> None:
    layers = sample.levels["layers"]
    walls = {step.slot: step.wall_ns for step in sample.steps}
    left = sample.wall_ns - sum(walls.values())
    layers[NOBODY] = Amount("", NOBODY, _rest({**walls, ONCE: left}, layers, sample.wall_ns))


def _rest(wall: Slots, layers: Amounts, wall_ns: int) -> dict[Slot, int]:
    """What no layer owns. By step where that comes out, else as one amount."""
    left = dict(wall)
    for amount in layers.values():
        for slot, spent in amount.slots.items():
            at = slot if slot in left else ONCE
            left[at] = left.get(at, 0) - spent
    if all(value >= 0 for value in left.values()):
        return {slot: value for slot, value in left.items() if value}
    return {ONCE: wall_ns - sum(amount.total for amount in layers.values())}


def again_values(sample: Sample, level: str, key: Hashable, layer: int) -> list[int]:
    """The same sum in other passes of the run, where these should have taken as long."""
    if layer not in _UNSTRETCHED or level not in ("layers", "spans"):
        return []
    return [other[level][key].total if key in other[level] else 0 for other in sample.again]
