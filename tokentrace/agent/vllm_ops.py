"""vLLM: the group "ops", torch's profiler around the marked steps. What is recorded and what it costs: see `profile`.

It is made ready when the group is switched on, starts in the worker at the first marked step, pauses after `steps` of
them, and is stopped and read when the group goes off, which is after the request. Steps of other requests that lie
between are recorded too and left out by the reader, who knows the marked ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tokentrace.agent import profile
from tokentrace.agent.core import Emit
from tokentrace.agent.vllm_spine import spine
from tokentrace.agent.vllm_worker import Work, works


class OpsGroup(profile.OpsGroup):
    """Options: steps (default 3: the prefill and two decode steps), max_seconds (default 30)."""

    STEPS = 3

    def __init__(self) -> None:
        super().__init__()
        self._on = False

    def enable(self, emit: Emit, options: Mapping[str, Any] | None = None) -> None:
        if self._on:
            return
        spine.acquire()
        self._gate = profile.Gate()  # a step that was under way when it was last switched off is not counted on
        try:
            self.arm({"steps": self.STEPS, **(options or {})})
        except BaseException:
            spine.release()
            raise
        self._on = True
        works.on_begin = (self._begins, *works.on_begin)  # ahead of what wraps the model's parts
        works.on_end += (self._ends,)

    def disable(self) -> None:
        if not self._on:
            return
        self._on = False
        super().disable()  # between two steps, of which the listeners tell
        works.on_begin = tuple(told for told in works.on_begin if told != self._begins)
        works.on_end = tuple(told for told in works.on_end if told != self._ends)
        spine.release()

    def _begins(self, work: Work) -> None:
        self.start_armed()
        self._gate.enter()

    def _ends(self, work: Work) -> None:
        self._gate.leave()

    def _install(self, paths: Iterable[str]) -> None:
        """The steps are told by the worker's hooks."""
