"""Which call of `generate` each thread is in, and its forward passes, for the groups of `generate_hooks`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import count
from threading import get_ident
from typing import Any

from tokentrace.agent.core import Emit, here
from tokentrace.agent.model_hooks import call_attribute, forward_facts
from tokentrace.agent.wrap import Hook, HookGroup, install_all

_GENERATE = "transformers.generation.utils:GenerationMixin.generate"
_Forward = tuple[int, int, int, dict[str, Any]]  # start_ns, end_ns, thread, data


class Run:
    """One call of `generate`."""

    __slots__ = ("batch", "error", "first_index", "forwards", "model", "prompt", "result", "rid")

    def __init__(self, rid: str, model: Any) -> None:
        self.rid, self.model = rid, model
        self.forwards: list[_Forward] = []
        self.batch = 1
        self.prompt = 0  # tokens of each sequence, 0 unknown
        self.first_index = 0
        self.result: Any = None
        self.error = ""


class Generation:
    """Knows which call of `generate` each thread is in. Shared by the groups; its hooks are there while one needs
    them."""

    def __init__(self) -> None:
        self.on_model: tuple[Callable[[Any], None], ...] = ()
        self.on_forward: tuple[Callable[[], None], ...] = ()
        self.on_done: tuple[Callable[[Run, int, int], None], ...] = ()
        self._now: dict[int, Run] = {}  # by thread
        self._rid = threading.local()
        self._ids = count(1)
        self._indexes = count()
        self._users = 0
        self._hooks: list[Hook] = []
        self._models: list[tuple[Any, Hook]] = []

    def acquire(self) -> None:
        """Raises GroupUnavailable."""
        if self._users == 0:
            hooks = [Hook(_GENERATE, self._ended, before=self._begins)]
            install_all(hooks, needed=(_GENERATE,))
            self._hooks = hooks
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            models, self._models = self._models, []
            for hook in [*(hook for _, hook in models), *self._hooks]:
                hook.restore()

    def coming(self) -> str:
        """The id of what this thread prepares: of its call under way, else of its next one."""
        run = self._now.get(get_ident())
        if run is not None:
            return run.rid
        rid: str = getattr(self._rid, "next", "") or f"generate-{next(self._ids)}"
        self._rid.next = rid
        return rid

    def latest(self) -> str:
        """The id of this thread's call under way, else of its last one, "" when there was none."""
        run = self._now.get(get_ident())
        return run.rid if run is not None else getattr(self._rid, "last", "")

    def _begins(self, args: Any, kwargs: Any) -> Run | None:
        if get_ident() in self._now:  # assisted generation calls itself
            return None
        model = args[0]
        run = Run(self.coming(), model)
        self._now[get_ident()] = run
        self._rid.next, self._rid.last = "", run.rid
        given = kwargs.get("input_ids", kwargs.get("inputs", args[1] if len(args) > 1 else None))
        shape = getattr(given, "shape", None)
        if shape is not None and len(shape) == 2:
            run.batch, run.prompt = int(shape[0]), int(shape[1])
        self._watch(model)
        return run

    def _watch(self, model: Any) -> None:
        if not any(known is model for known, _ in self._models):
            hook = Hook(f"model:{call_attribute(model)}", self._forwarded, owner=model)
            self._models.append((model, hook))
            hook.install()
        for told in self.on_model:
            told(model)

    def _forwarded(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        run = self._now.get(get_ident())
        if run is None:
            return
        data = {"index": next(self._indexes), **forward_facts(args, kwargs, result, error)}
        run.forwards.append((start, end, here.thread, data))
        for told in self.on_forward:
            told()

    def _ended(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        if context is None:
            return
        self._now.pop(get_ident(), None)
        context.result = result
        context.error = type(error).__name__ if error is not None else ""
        for told in self.on_done:
            told(context, start, end)


generation = Generation()


class GenerateGroup(HookGroup):
    """A group that is told of every call of `generate`."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False

    def hooks(self) -> list[Hook]:
        return []

    def enable(self, recorder: Emit, options: Mapping[str, Any] | None = None) -> None:
        if self.on:
            return
        generation.acquire()
        try:
            super().enable(recorder, options)
        except BaseException:
            generation.release()
            raise
        self.on = True
        generation.on_done += (self.ended,)

    def disable(self) -> None:
        if not self.on:
            return
        self.on = False
        generation.on_done = tuple(told for told in generation.on_done if told != self.ended)
        super().disable()
        generation.release()

    def ended(self, run: Run, start: int, end: int) -> None:
        return
