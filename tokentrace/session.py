"""Arm, prompt, disarm, collect, stitch: one prompt through the layers, in as many passes as were asked for."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tokentrace.agent_client import AgentClient, AgentGroup
from tokentrace.client.settings import Endpoint
from tokentrace.errors import EngineError, ProbeUnavailable, TokentraceError
from tokentrace.exchange import Exchange
from tokentrace.host import this_host
from tokentrace.interrupts import held, mark
from tokentrace.layers import by_number
from tokentrace.model import IdSource, Process, Record, Trace
from tokentrace.probe import LEFT_OUT, LayerState, Probe, ProbeContext
from tokentrace.registry import create, layers_in_order
from tokentrace.stitch import PassRecords, stitch

if TYPE_CHECKING:
    from tokentrace.receive import Receiver

#: Passes on the local engine, each a whole request: (name, every probe).
THREE_PASSES = (("cold", False), ("warm", False), ("deep", True))
ONE_PASS = (("once", True),)
#: The agent of one serving process, or of all processes of a server.
AnyAgent: TypeAlias = AgentClient | AgentGroup


class Ui(Protocol):
    """What a session tells while it runs."""

    def progress(self, sentence: str, fraction: float | None = None) -> None: ...

    def text(self, piece: str) -> None: ...


@dataclass(slots=True)
class Ask:
    """One prompt and how to send it. `layers` None means all."""

    prompt: str
    system: str = ""
    max_tokens: int | None = 64
    temperature: float | None = None
    layers: frozenset[int] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> list[dict[str, str]]:
        start = [{"role": "system", "content": self.system}] if self.system else []
        return [*start, {"role": "user", "content": self.prompt}]


@dataclass(slots=True)
class Outcome:
    """The trace, the exchanges by pass, and the error that ended the run, if one did."""

    trace: Trace
    exchanges: dict[str, Exchange]
    error: TokentraceError | None = None
    interrupted: bool = False


def run_passes(
    ask: Ask,
    endpoint: Endpoint,
    *,
    mode: str,
    passes: Sequence[tuple[str, bool]],
    ui: Ui,
    agent: AnyAgent | None = None,
    engine_facts: dict[str, Any] | None = None,
    failure: Callable[[], TokentraceError | None] | None = None,
    ids: IdSource | None = None,
    receiver: Receiver | None = None,
    no_agent: str = "",
) -> Outcome:
    """Send the prompt once a pass and stitch what the probes saw into one trace.

    A failed or interrupted pass ends the run; what it and the passes before it saw is in the trace. `failure` tells
    why the engine ended, when it did; `no_agent` why an agent that should be there is not. With a `receiver` the
    server's own spans are waited for and added. Raises nothing that the server or a probe does.
    """
    ids = ids or IdSource()
    trace_id, root = ids.trace_id(), ids.span_id()
    if receiver is not None:
        receiver.expect(trace_id)
    done: list[PassRecords] = []
    exchanges: dict[str, Exchange] = {}
    outcome_error: TokentraceError | None = None
    interrupted = False
    for name, deep in passes:
        try:
            ui.progress(f"{name} pass" if len(passes) > 1 else "sending the request")
            shown = ui if not exchanges else _WithoutText(ui)
            agent, no_agent = _begin(agent, no_agent, failure)
            context = _context(ask, endpoint, mode, name, deep, agent, no_agent)
            one, interrupted = _one_pass(ask, endpoint, context, agent, trace_id, ids.span_id(), shown)
        except KeyboardInterrupt:
            if not done:
                raise  # nothing was seen yet
            interrupted = True
            break
        except EngineError as error:  # the engine went away between two passes
            outcome_error = (failure() if failure is not None else None) or error
            if not done:
                raise outcome_error from error
            break
        done.append(one)
        assert one.exchange is not None
        exchanges[name] = one.exchange
        if one.exchange.error is not None:
            outcome_error = (failure() if failure is not None else None) or one.exchange.error
            break
        if interrupted:
            break
    processes = processes_of(agent)
    if receiver is not None and not interrupted and (ask.layers is None or 6 in ask.layers):
        from tokentrace.receive import add_account

        try:
            processes.update(add_account(done, receiver, processes, ui.progress))
        except KeyboardInterrupt:
            interrupted = True
    with held() as late:
        trace = stitch(
            done,
            ids=ids,
            trace_id=trace_id,
            root_span_id=root,
            processes=processes,
            attributes={"tokentrace.mode": mode, **_clock(agent)},
            meta={
                "prompt": ask.prompt,
                "mode": mode,
                "engine": dict(engine_facts or {}),
                "endpoint": endpoint.base_url,
                "model": endpoint.model,
                "created_ns": time.time_ns(),
            },
        )
    if interrupted and (sentence := _cut_short(passes, done)):
        mark(trace, sentence)
    return Outcome(trace, exchanges, outcome_error, interrupted or late.came)


def _cut_short(passes: Sequence[tuple[str, bool]], done: Sequence[PassRecords]) -> str:
    """Where Ctrl-C fell and what is missing; "" where it fell behind the last pass, when all had been seen."""
    last, exchange = done[-1].name, done[-1].exchange
    cut = exchange is not None and exchange.interrupted
    missing = [name for name, _ in passes[len(done) :]]
    if not cut and not missing:
        return ""
    where = f" {'in' if cut else 'after'} the {last} pass" if len(passes) > 1 else ""
    were = f"{' and '.join(missing)} {'pass was' if len(missing) == 1 else 'passes were'} not run"
    return f"interrupted{where}" + (f"; the {were}" if missing else "")


def _begin(
    agent: AnyAgent | None, no_agent: str, failure: Callable[[], TokentraceError | None] | None
) -> tuple[AnyAgent | None, str]:
    """The agent, ready for a pass, or None and why. Raises EngineError when the engine itself has gone.

    An engine whose end would be known (`failure`) and that lives has lost its agent only: it still answers.
    """
    if agent is None:
        return None, no_agent
    try:
        agent.begin_pass()
    except EngineError as error:
        if failure is None or failure() is not None:
            raise
        return None, f"tokentrace's agent in the engine is gone: {error}"
    return agent, ""


def _context(
    ask: Ask, endpoint: Endpoint, mode: str, name: str, deep: bool, agent: AnyAgent | None, no_agent: str
) -> ProbeContext:
    # The local engine is looked at from inside; where that cannot be, from outside like any server.
    server = _server(endpoint) if mode != "local" or no_agent else None
    context = ProbeContext(
        mode, name, deep, endpoint.model, agent, server, options=dict(ask.options), no_agent=no_agent
    )
    members = agent.members if agent is not None else []
    context.options.setdefault("pids", [int(one.process) for one in members if one.process])
    return context


class _WithoutText:
    """The reply is shown once; later passes give the same one."""

    def __init__(self, ui: Ui) -> None:
        self._ui = ui

    def progress(self, sentence: str, fraction: float | None = None) -> None:
        self._ui.progress(sentence, fraction)

    def text(self, piece: str) -> None:
        return


def _server(endpoint: Endpoint) -> Any:
    from tokentrace.client.server import HttpServer

    return HttpServer(endpoint)


def _one_pass(
    ask: Ask,
    endpoint: Endpoint,
    context: ProbeContext,
    agent: AnyAgent | None,
    trace_id: int,
    span_id: int,
    ui: Ui,
) -> tuple[PassRecords, bool]:
    """What the pass left behind, and whether the user wants no further one."""
    from tokentrace.client.chat import chat

    start = time.time_ns()
    armed: list[Probe] = []
    states: dict[int, LayerState] = {}
    selected = False
    try:
        if agent is not None:
            # A server with other requests under way must know which one this is about; the local engine has only ours.
            with contextlib.suppress(ProbeUnavailable):
                agent.enable("select", {"trace_ids": [f"{trace_id:032x}"]})
                selected = True
        if ask.layers is not None:
            for layer in layers_in_order(None):
                if layer.number not in ask.layers:
                    fix = f"add {layer.number} to --layers"
                    states[layer.number] = LayerState(layer.number, "unseen", LEFT_OUT, fix)
        for layer in layers_in_order(ask.layers):
            if layer.cost == "deep" and not context.deep and not context.no_agent:
                states[layer.number] = LayerState(
                    layer.number, "unseen", f"not probed in the {context.pass_name} pass, so that its times are true"
                )
                continue
            _arm(layer.number, context, armed, states)
        context.exchange = chat(
            endpoint,
            ask.messages,
            trace_id=trace_id,
            span_id=span_id,
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            on_text=ui.text,
        )
        if context.mode == "local" and context.deep:  # a profile of thousands of operators: seconds
            ui.progress("reading what was recorded")
    except BaseException:
        _disarm(armed, agent, selected)
        raise
    with held() as interrupt:
        _disarm(armed, agent, selected)
        if agent is not None:
            agent.end_pass(context.exchange.response_id)
            context.request_id = _request_id(context)
        records: list[Record] = []
        for probe in armed:
            _collect(probe, context, records, states)
    left = PassRecords(
        context.pass_name,
        start,
        max(context.exchange.end_ns, start),
        records,
        [states[number] for number in sorted(states, reverse=True)],
        span_id,
        context.request_id,
        {},
        context.exchange,
    )
    return left, context.exchange.interrupted or interrupt.came


def _disarm(armed: Sequence[Probe], agent: AnyAgent | None, selected: bool) -> None:
    for probe in armed:
        probe.disarm()
    if agent is not None and selected:
        agent.disable("select")


def _arm(number: int, context: ProbeContext, armed: list[Probe], states: dict[int, LayerState]) -> None:
    try:
        probe = create(by_number(number))
    except TokentraceError as error:
        states[number] = LayerState(number, "unseen", str(error), error.fix)
        return
    try:
        probe.arm(context)
        armed.append(probe)
    except ProbeUnavailable as error:
        probe.disarm()
        states[number] = LayerState(number, "unseen", str(error), error.fix)
    except Exception as error:  # noqa: BLE001 - a layer that fails never fails the run
        probe.disarm()
        states[number] = LayerState(number, "unseen", f"its probe failed: {type(error).__name__}: {error}")


def _collect(probe: Probe, context: ProbeContext, records: list[Record], states: dict[int, LayerState]) -> None:
    try:
        records.extend(probe.collect(context))
        states[probe.layer] = probe.state
    except ProbeUnavailable as error:
        states[probe.layer] = LayerState(probe.layer, "unseen", str(error), error.fix, probe.state.facts)
    except Exception as error:  # noqa: BLE001 - a layer that fails never fails the run
        states[probe.layer] = LayerState(probe.layer, "unseen", f"its probe failed: {type(error).__name__}: {error}")


def _request_id(context: ProbeContext) -> str:
    """The server's id of our request: the one that came with our traceparent, else the reply's own id."""
    exchange = context.exchange
    if context.agent is None or exchange is None:
        return ""
    for raw in context.agent.records("http"):
        if raw.name == "request" and raw.data.get("traceparent") == exchange.traceparent:
            return str(raw.data.get("rid", ""))
    return exchange.response_id


def processes_of(agent: AnyAgent | None) -> dict[str, Process]:
    host = this_host()
    own = str(os.getpid())
    found = {
        own: Process(
            own,
            {
                **host,
                "process.pid": os.getpid(),
                "process.runtime.name": platform.python_implementation().lower(),
                "process.runtime.version": platform.python_version(),
            },
        )
    }
    for one in agent.members if agent is not None else ():
        if not one.process:
            continue
        facts = one.facts()
        version = str((facts.get("versions") or {}).get("python") or facts.get("python") or "")
        attributes = {"process.pid": int(one.process), "process.runtime.name": "cpython"}
        for name, key in (("tokentrace.process.name", "name"), ("tokentrace.rank", "rank")):
            if facts.get(key):
                attributes[name] = facts[key]
        if one.clock.offset_ns:
            attributes["tokentrace.clock.offset_ns"] = one.clock.offset_ns
        found[one.process] = Process(one.process, {**host, **attributes, "process.runtime.version": version})
    return found


def _clock(agent: AnyAgent | None) -> dict[str, Any]:
    if agent is None:
        return {}
    return {"tokentrace.clock.offset_ns": agent.clock.offset_ns, "tokentrace.clock.bound_ns": agent.clock.bound_ns}
