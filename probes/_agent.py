"""What the probes that look through the agent have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokentrace.probe import Agent, Finding, LayerState, ProbeContext, ProbeUnavailable

FIX = (
    "look inside it on its own machine: tokentrace attach URL; or see how it looks on the local engine: tokentrace run "
    "without --url"
)


class AgentProbe:
    """Remembers which groups it switched on, and lets go of those in `disarm`. A subclass says its `layer`."""

    layer: int

    def __init__(self) -> None:
        self.state = LayerState(self.layer)
        self._on: list[tuple[Agent, str]] = []

    def _enable(self, agent: Agent, group: str, options: Mapping[str, Any] | None = None) -> None:
        """Raises ProbeUnavailable; the group is not ours to switch off then."""
        agent.enable(group, options)
        self._on.append((agent, group))

    def disarm(self) -> None:
        while self._on:
            agent, group = self._on.pop()
            agent.disable(group)


def unseen_from_outside(layer: int) -> Finding:
    """What `check` says of a layer that lies inside the serving process, where there is no agent."""
    return Finding(layer, "cannot be seen from outside the serving process", fix=FIX, status="unknown")


def without_agent(context: ProbeContext, *parts: str) -> ProbeUnavailable | None:
    """That one of these parts of the server (engine, worker, …) has no agent, although others have: what it does is not
    seen, so that nothing seen means nothing. None when all of them have one.

    `options["without_agent"]` tells: part -> (sentence, fix).
    """
    for part in parts:
        if told := context.options.get("without_agent", {}).get(part):
            return ProbeUnavailable(told[0], fix=told[1])
    return None
