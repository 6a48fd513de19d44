"""Which step of transformers' continuous batching each generation thread is in, for the groups "engine" and "model".

One step is one turn of the generation loop in which there was work. Its index counts the steps seen in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from threading import get_ident
from typing import Any

from tokentrace.agent.core import Emit
from tokentrace.agent.wrap import Hook, HookGroup, install_all

CB = "transformers.generation.continuous_batching"
API = f"{CB}.continuous_api"
_BODY = f"{API}:ContinuousBatchingManager._generation_loop_body"
_PREPARE = f"{API}:ContinuousBatchProcessor.prepare_next_batch"


class Step:
    """One turn of the loop; `index` is -1 until it is known that there is work in it."""

    __slots__ = ("asynchronous", "batch", "cached", "ids", "index", "info", "preempted", "prepare", "schedule")

    def __init__(self) -> None:
        self.index = -1
        self.info: dict[str, Any] = {}
        self.schedule: tuple[int, int] | None = None
        self.prepare: tuple[int, int] | None = None
        self.batch: Any = ()  # the scheduler's own objects
        self.ids: dict[str, int] = {}
        self.cached: dict[str, int] = {}
        self.preempted: list[str] = []
        self.asynchronous = False


class Steps:
    """Knows which step each generation thread is in. Shared by the groups: its hooks are there while one needs them."""

    def __init__(self) -> None:
        self.now: dict[int, Step] = {}  # by thread
        self.on_prepared: tuple[Callable[[Step, Any], None], ...] = ()  # (step, batch processor)
        self.on_done: tuple[Callable[[Step, int, int], None], ...] = ()  # (step, start_ns, end_ns)
        self._users = 0
        self._next = count()
        self._hooks: list[Hook] = []

    def acquire(self) -> None:
        """Raises GroupUnavailable."""
        if self._users == 0:
            hooks = [Hook(_BODY, self._turned, before=self._turns), Hook(_PREPARE, self._prepared)]
            install_all(hooks, needed=(_BODY, _PREPARE))
            self._hooks = hooks
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            for hook in self._hooks:
                hook.restore()

    def under_way(self) -> list[Step]:
        """The steps that have work in them and have not ended, of all threads."""
        return [step for step in list(self.now.values()) if step.index >= 0]

    def current(self) -> Step | None:
        """The step this thread is in."""
        return self.now.get(get_ident())

    def _turns(self, args: Any, kwargs: Any) -> Step:
        step = self.now[get_ident()] = Step()
        return step

    def _turned(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        self.now.pop(get_ident(), None)
        if context is not None and context.index >= 0:
            for told in self.on_done:
                told(context, start, end)

    def _prepared(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        step = self.current()
        if step is not None and result:
            step.index = next(self._next)
            step.prepare = (start, end)
            step.asynchronous = bool(getattr(args[0], "use_async_batching", False))
            for told in self.on_prepared:
                told(step, args[0])


steps = Steps()


class StepsGroup(HookGroup):
    """A group whose hooks need to know the step they are in. `step_ended` is told of every one."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False

    def enable(self, recorder: Emit, options: Mapping[str, Any] | None = None) -> None:
        if self.on:
            return
        steps.acquire()
        try:
            super().enable(recorder, options)
        except BaseException:
            steps.release()
            raise
        self.on = True
        if self._ended not in steps.on_done:
            steps.on_done += (self._ended,)

    def disable(self) -> None:
        if not self.on:
            return
        self.on = False
        super().disable()
        steps.release()
        if not steps.under_way():  # else that step still gets its record
            self._deaf()

    def step_ended(self, step: Step, start: int, end: int) -> None:
        raise NotImplementedError

    def _ended(self, step: Step, start: int, end: int) -> None:
        self.step_ended(step, start, end)
        if not self.on:
            self._deaf()

    def _deaf(self) -> None:
        steps.on_done = tuple(told for told in steps.on_done if told != self._ended)
