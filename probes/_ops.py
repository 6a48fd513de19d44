"""What the operator and the kernel probe have in common: switching the profiler on, and one request's events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentrace.model import Attributes
from tokentrace.probe import Finding, LayerState, ProbeContext, ProbeUnavailable
from tokentrace.probes import _kineto
from tokentrace.probes._agent import FIX, AgentProbe, unseen_from_outside, without_agent
from tokentrace.probes._flops import flops
from tokentrace.probes._kineto import Events, Ints, Mask
from tokentrace.probes._recorded import which
from tokentrace.probes._request import our_id, step_key, step_of, window

GROUP = "ops"
NO_EVENTS = "the profiler ran and recorded no operator of this request"
NO_RECORDING = "no recording came from the profiler"


@dataclass(slots=True)
class Step:
    """One engine step, as the engine's own hooks saw it: its key in the trace, and whether it served our request."""

    key: str
    process: str
    start_ns: int
    end_ns: int
    ours: bool


@dataclass(slots=True)
class Host:
    """The host's rows of one process with their nesting; all arrays run along `rows`.

    `last` marks the last operators that can be seen on the way down, `own` is the time without anything nested, ns.
    """

    rows: Ints
    operator: Mask
    compiled: Mask
    last: Mask
    own: Ints


class OpsProbe(AgentProbe):
    """A probe of the profiler's events. `context.options["ops"]` goes to the agent's group (steps, max_seconds)."""

    def check(self, context: ProbeContext) -> Iterable[Finding]:
        if context.agent is None:
            return [unseen_from_outside(self.layer)]
        facts = context.agent.facts()
        versions = facts.get("versions")
        torch = facts.get("torch") or (versions.get("torch") if isinstance(versions, dict) else None)
        if not torch:
            return [Finding(self.layer, "the serving process has not loaded torch",
                            fix="use an engine that runs on torch", status="unknown")]  # fmt: skip
        return [Finding(self.layer, f"torch.profiler {torch} can record the serving process")]

    def arm(self, context: ProbeContext) -> None:
        self.state = LayerState(self.layer)
        agent = context.need_agent(FIX)
        if not context.deep:
            raise ProbeUnavailable(
                "the profiler slows the request down and runs in the deep pass only",
                fix="see the deep pass",
                layer=self.layer,
            )
        self._enable(agent, GROUP, context.options.get("ops"))


def steps(context: ProbeContext) -> list[Step]:
    """The engine's steps in time order; empty when its hooks did not run."""
    assert context.agent is not None
    raws = [raw for raw in context.agent.records("engine") if raw.name == "step"]
    request = our_id(context, (str(rid) for raw in raws for rid in raw.data.get("reqs") or ()))
    found = []
    for raw in raws:
        served = raw.data.get("reqs") or {}
        ours = not request or not served or request in served
        key = f"step:{raw.process}:{raw.data.get('index')}"
        found.append(Step(key, raw.process, raw.start_ns, raw.end_ns, ours))
    mine = {step.key for step in found if step.ours}
    for raw in context.agent.records("model"):
        if raw.name == "work" and raw.process != step_of(raw)[0]:  # the same step, as it ran in a worker
            found.append(Step(step_key(raw), raw.process, raw.start_ns, raw.end_ns, step_key(raw) in mine))
    return sorted(found, key=lambda step: step.start_ns)


def _foreign(known: Sequence[Step], process: str, workers: frozenset[str]) -> tuple[Ints, Ints]:
    """Begins and ends of what is not ours in a process. A worker knows the steps of chosen requests only, so that there
    everything between ours is someone else's."""
    own = [step for step in known if step.process == process]
    if process not in workers:
        others = [step for step in own if not step.ours]
        return np.array([s.start_ns for s in others], np.int64), np.array([s.end_ns for s in others], np.int64)
    ours = [step for step in own if step.ours]
    ends = [s.end_ns for s in ours]
    return np.array([0, *ends], np.int64), np.array([*(s.start_ns for s in ours), (1 << 63) - 1], np.int64)


def events(context: ProbeContext, known: Sequence[Step], state: LayerState) -> list[Events]:
    """The request's events, one Events a recording. Raises ProbeUnavailable with the reason when there is none; what
    the recording cost goes to `state.facts["profiler"]`.
    """
    agent = context.need_agent(FIX)
    found: list[Events] = []
    problems: list[str] = []
    recordings = agent.columns(GROUP)
    workers = frozenset(raw.process for raw in agent.records("model") if raw.name == "work" and "engine" in raw.data)
    for columns in recordings:
        problems += filter(
            None, (str(columns.header.get("problem") or ""), which(columns.header, columns.process, known))
        )
        others = _foreign(known, columns.process, workers)
        part = _kineto.from_columns(columns, window(context), others)
        state.facts.setdefault("profiler", []).append(_cost(part))
        if len(part):
            found.append(part)
    if not found:
        missing = without_agent(context, "engine", "worker")
        if missing is not None and not problems:
            raise missing
        nothing = NO_EVENTS if recordings else NO_RECORDING
        raise ProbeUnavailable(_said(problems) or nothing, fix="run the request again", layer=state.layer)
    if problems:
        state.reason = _said(problems)
    return found


def _said(problems: Sequence[str]) -> str:
    """Each once: several ranks have the same to say."""
    return "; ".join(dict.fromkeys(problems))


def _cost(part: Events) -> dict[str, Any]:
    kept = ("torch", "activities", "events", "steps", "recorded_steps", "prepare_cost_ns", "start_cost_ns",
            "stop_cost_ns", "read_cost_ns", "started_between_steps", "stopped_between_steps")  # fmt: skip
    return {**{name: part.header[name] for name in kept if name in part.header}, "outside_request": part.outside}


def shape_attributes(part: Events, name: int, shape: int) -> Attributes:
    """An operator's input shapes and flops, as far as they are known; `name` and `shape` are codes of the part."""
    if shape < 0:
        return {}
    attributes: Attributes = {"tokentrace.op.input_shapes": part.shapes[shape]}
    count = flops(part.names[name], part.shapes[shape])
    if count is not None:
        attributes["tokentrace.op.flops"] = count
    return attributes


def on_device(found: Sequence[Events]) -> bool:
    """Did any device report work? Then the kernels themselves can be seen."""
    return any(bool(np.isin(part.kind, _kineto.DEVICE_KINDS).any()) for part in found)


def host(part: Events) -> Host:
    rows = part.rows(_kineto.OPERATOR, _kineto.MARK, _kineto.COMPILED, _kineto.RUNTIME)
    kind, start, end, thread = part.kind[rows], part.start[rows], part.end[rows], part.thread[rows]
    operator, compiled = kind == _kineto.OPERATOR, kind == _kineto.COMPILED
    own = _kineto.self_times(start, end, _kineto.nest(start, end, thread))
    # Whether an operator is the last one depends on operators and kernels below it, however many marks lie between.
    works = np.flatnonzero(operator | compiled)
    parent = _kineto.nest(start[works], end[works], thread[works])
    last = np.zeros(len(rows), np.bool_)
    last[works] = _kineto.last_visible(part.names, part.name[rows][works], parent)
    return Host(rows, operator, compiled, last & operator, own)
