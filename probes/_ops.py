"""What the operator and the kernel probe have in common: switching the profiler on, and one request's events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentrace.probe import Agent, Finding, LayerState, ProbeContext, ProbeUnavailable
from tokentrace.probes import _kineto
from tokentrace.probes._kineto import Events, Ints, Mask

GROUP = "ops"
FIX_AGENT = "trace a server of this machine with the agent in it: tokentrace run without --url, or tokentrace attach"
_NO_EVENTS = "the profiler ran and recorded no operator of this request"
_NO_RECORDING = "no recording came from the profiler"


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


def arm(context: ProbeContext, layer: int) -> Agent:
    """Start the profiler in the serving process. Raises ProbeUnavailable."""
    agent = context.need_agent(FIX_AGENT)
    if not context.deep:
        raise ProbeUnavailable(
            "the profiler slows the request down and runs in the deep pass only", fix="see the deep pass", layer=layer
        )
    agent.enable(GROUP, context.options.get("ops"))
    return agent


def check(context: ProbeContext, layer: int) -> list[Finding]:
    if context.agent is None:
        return [Finding(layer, "cannot be seen from outside the serving process", fix=FIX_AGENT, status="unknown")]
    facts = context.agent.facts()
    versions = facts.get("versions")
    torch = facts.get("torch") or (versions.get("torch") if isinstance(versions, dict) else None)
    if not torch:
        return [Finding(layer, "the serving process has not loaded torch", fix="use an engine that runs on torch",
                        status="unknown")]  # fmt: skip
    return [Finding(layer, f"torch.profiler {torch} can record the serving process")]


def steps(context: ProbeContext) -> list[Step]:
    """The engine's steps in time order; empty when its hooks did not run."""
    assert context.agent is not None
    request = context.request_id or (context.exchange.response_id if context.exchange is not None else "")
    found = []
    for raw in context.agent.records("engine"):
        if raw.name == "step":
            served = raw.data.get("reqs") or {}
            ours = not request or not served or request in served
            key = f"step:{raw.process}:{raw.data.get('index')}"
            found.append(Step(key, raw.process, raw.start_ns, raw.end_ns, ours))
    return sorted(found, key=lambda step: step.start_ns)


def events(context: ProbeContext, known: Sequence[Step], state: LayerState) -> list[Events]:
    """The request's events, one Events a recording. Raises ProbeUnavailable with the reason when there is none; what
    the recording cost goes to `state.facts["profiler"]`.
    """
    agent = context.need_agent(FIX_AGENT)
    exchange = context.exchange
    window = (exchange.start_ns, exchange.end_ns) if exchange is not None and exchange.end_ns else None
    found, problems = [], []
    recordings = agent.columns(GROUP)
    for columns in recordings:
        problems += [str(columns.header[name]) for name in ("problem", "limited") if columns.header.get(name)]
        foreign = [s for s in known if s.process == columns.process and not s.ours]
        others = (np.array([s.start_ns for s in foreign], np.int64), np.array([s.end_ns for s in foreign], np.int64))
        part = _kineto.from_columns(columns, window, others)
        state.facts.setdefault("profiler", []).append(_cost(part))
        if len(part):
            found.append(part)
    if not found:
        nothing = _NO_EVENTS if recordings else _NO_RECORDING
        raise ProbeUnavailable("; ".join(problems) or nothing, fix="run the request again", layer=state.layer)
    if problems:
        state.reason = "; ".join(problems)
    return found


def _cost(part: Events) -> dict[str, Any]:
    kept = ("torch", "activities", "events", "steps", "recorded_steps", "prepare_cost_ns", "start_cost_ns",
            "stop_cost_ns", "read_cost_ns", "started_between_steps", "stopped_between_steps")  # fmt: skip
    return {**{name: part.header[name] for name in kept if name in part.header}, "outside_request": part.outside}


def on_device(found: Sequence[Events]) -> bool:
    """Did any device report work? Then the kernels themselves can be seen."""
    return any(bool(np.isin(part.kind, _kineto.DEVICE_KINDS).any()) for part in found)


def host(part: Events) -> Host:
    rows = part.rows(_kineto.OPERATOR, _kineto.MARK, _kineto.COMPILED, _kineto.RUNTIME, _kineto.DRIVER)
    kind, start, end, thread = part.kind[rows], part.start[rows], part.end[rows], part.thread[rows]
    operator, compiled = kind == _kineto.OPERATOR, kind == _kineto.COMPILED
    own = _kineto.self_times(start, end, _kineto.nest(start, end, thread))
    # Whether an operator is the last one depends on operators and kernels below it, however many marks lie between.
    works = np.flatnonzero(operator | compiled)
    parent = _kineto.nest(start[works], end[works], thread[works])
    last = np.zeros(len(rows), np.bool_)
    last[works] = _kineto.last_visible(part.names, part.name[rows][works], parent, np.ones(len(works), np.bool_))
    return Host(rows, operator, compiled, last & operator, own)
