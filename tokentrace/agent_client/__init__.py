"""The tokentrace side of the agent: one serving process (`AgentClient`), or all of a server (`AgentGroup`)."""

from __future__ import annotations

from tokentrace.agent_client._group import AgentGroup
from tokentrace.agent_client._one import PROTOCOL, AgentClient

__all__ = ["PROTOCOL", "AgentClient", "AgentGroup"]
