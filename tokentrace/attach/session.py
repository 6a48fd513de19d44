"""One prompt of our own through a server that was attached to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tokentrace import session, workflow
from tokentrace.agent_client import AgentClient, AgentGroup
from tokentrace.attach import progress
from tokentrace.attach.obstacles import halted
from tokentrace.attach.why import Why, in_one
from tokentrace.wording import plural

if TYPE_CHECKING:
    from tokentrace.attach.found import Depth, Found
    from tokentrace.attach.why import LeftAlone

#: The times of the first request are true; the second one is looked into more deeply, which slows it down.
PASSES = (("warm", False), ("deep", True))
#: Profiled steps of a request, the prefill and two decode steps.
STEPS = 3


class Attached(Protocol):
    """What `attach.open` gives."""

    @property
    def found(self) -> Found: ...
    @property
    def depth(self) -> Depth: ...
    @property
    def left_alone(self) -> Sequence[LeftAlone]: ...
    @property
    def reason(self) -> str: ...
    @property
    def fix(self) -> str: ...
    @property
    def agents(self) -> Sequence[AgentClient]: ...


def ask(
    attached: Attached,
    prompt: session.Ask,
    settings: workflow.Settings,
    ui: session.Ui,
    *,
    steps: int = STEPS,
) -> workflow.Run:
    """Send the prompt to `settings.endpoint` and trace it as deeply as was attached: twice, with `settings.once` or
    from outside once. `steps` of the deep request's are profiled.

    Raises UsageError for a prompt that cannot be sent, AttachError when a process of the server is stopped; a request
    that fails is `error` of the result.
    """
    workflow.check_prompt(prompt)
    stopped = halted(attached.found.processes)
    if stopped is not None:
        raise stopped  # the prompt would wait for an answer until its timeout
    assert settings.endpoint is not None, "an attached server has an endpoint"
    agent = AgentGroup(attached.agents) if attached.agents else None
    prompt.options = {
        "with_text": True,
        "ops": {"steps": steps},
        "without_agent": without_agent(attached),
        **prompt.options,
    }
    if agent is None and attached.reason:
        prompt.options["outside"] = (attached.reason, attached.fix)
    once = settings.once or agent is None
    outcome = session.run_passes(
        prompt,
        settings.endpoint,
        mode="attach",
        passes=session.ONE_PASS if once else PASSES,
        ui=ui,
        agent=agent,
        engine_facts=engine_facts(attached, agent),
        failure=None,
        receiver=settings.receiver,
    )
    note(outcome.trace.meta, attached, agent)
    if outcome.error is None:
        return workflow.conclude(outcome, settings)
    stopped = halted(attached.found.processes)
    if stopped is not None:  # meanwhile: that is why there was no answer
        outcome.error = stopped
        return workflow.conclude(outcome, settings)
    # A server that answers and an engine that stands still look alike to a client; the engine's counters tell.
    stands = progress.look(settings.endpoint)
    run = workflow.conclude(outcome, settings)
    if stands.state == "stalled":
        run.warnings.append(f"{stands.sentence} {stands.fix}")
    return run


def without_agent(attached: Attached) -> dict[str, tuple[str, str]]:
    """The parts of a server that have no agent while others have one: role -> (why, fix), for the probes. Empty from
    outside, where there is none anywhere."""
    found: dict[str, list[Why]] = {}
    for one in attached.left_alone if attached.agents else ():
        why = one.why.reason.removeprefix(f"process {one.process.pid}: ")
        told = f"there is no agent in process {one.process.pid} ({one.process.part}): {why}"
        found.setdefault(one.process.role, []).append(Why(told, one.why.fix))
    return {role: in_one(whys) for role, whys in found.items()}


def engine_facts(attached: Attached, agent: AgentGroup | None) -> dict[str, Any]:
    """What is known of the server, from inside if we are."""
    found = attached.found
    outside = {"engine": found.engine, "version": found.version, "depth": attached.depth}
    if agent is None:
        return outside
    told = {key: value for key, value in agent.facts().items() if key not in ("groups", "on", "faults", "time_ns")}
    return {**outside, **told}


def note(meta: dict[str, Any], attached: Attached, agent: AgentGroup | None) -> None:
    """What a reader of the trace must know of how it was made; facts that only a request brought to light."""
    told = engine_facts(attached, agent)
    told["notes"] = notes(agent)
    meta["engine"] = told


def notes(agent: AgentGroup | None, dropped: int | None = None) -> list[str]:
    """Sentences about what was not seen, and why. `dropped`: the records without room, where not all were in the time
    of this request."""
    if agent is None:
        return []
    found = []
    if agent.lost:
        found.append(f"the trace has gaps: {agent.lost}")
    if dropped is None and agent.dropped:
        found.append(f"the trace has gaps: {plural(agent.dropped, 'record')} found no room in the agent's buffer")
    elif dropped:
        found.append(
            f"the trace may have gaps: {plural(dropped, 'record')} found no room in the agent's buffer while the "
            "request was under way, or up to a second before or after"
        )
    found += [
        f"a hook failed{' and was taken out' if fault.get('off') else ''}: {fault.get('hook')}: {fault.get('error')}"
        for fault in agent.faults
    ]
    missing = agent.facts().get("missing_hooks")
    if missing:
        found.append(f"not in this version, so not watched: {', '.join(missing)}")
    return found
