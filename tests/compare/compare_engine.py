"""Runs of the real local engine for comparisons, without the command line around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokentrace import session
from tokentrace.agent_client import AgentClient
from tokentrace.analyze import analyze
from tokentrace.client.settings import Endpoint
from tokentrace.compare import sample as samples
from tokentrace.engines.local.engine import Options
from tokentrace.engines.local.process import LocalEngine
from tokentrace.model import Trace
from tokentrace.workflow import Quiet

LIGHT = (("once", False),)
LIGHT_AND_DEEP = (("warm", False), ("deep", True))


class Running:
    """An engine that answers prompts, each one traced."""

    def __init__(self, env: Mapping[str, str] | None = None, compiled: bool = False) -> None:
        self._engine = LocalEngine.start(env=env, options=Options(compile=compiled))
        assert self._engine.agent_socket is not None
        self._agent = AgentClient.connect(self._engine.agent_socket)
        self._endpoint = Endpoint(self._engine.base_url, model=self._engine.model_name)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._agent.close()
        self._engine.stop()

    def trace(self, prompt: str = "Hi", passes: Sequence[tuple[str, bool]] = LIGHT, max_tokens: int = 12) -> Trace:
        done = session.run_passes(
            session.Ask(prompt, max_tokens=max_tokens, temperature=0.0), self._endpoint,
            mode="local", passes=passes, ui=Quiet(), agent=self._agent,
        )  # fmt: skip
        assert done.error is None
        return done.trace

    def sample(self, *given: Any, **named: Any) -> samples.Sample:
        return sample_of(self.trace(*given, **named))


def sample_of(trace: Trace) -> samples.Sample:
    found = analyze(trace)
    return samples.of_pass(trace, found, found.main.name, trace.trace_id_hex[:8])
