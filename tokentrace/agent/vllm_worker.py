"""vLLM, the processes with the model: the forward pass, the head, sampling, of marked steps only.

    work [index, engine, rank]              a step in this process, from `execute_model` to the end of `sample_tokens`
    prepare [index, engine]                 (group "engine") the batch's tensors
    forward [index, engine, in_shape, in_dtype, out_shape, out_dtype, device, out]
    logits [index, engine, in_shape, out_shape, out_dtype]        sample [index, engine, shape, dtype]

`index` and `engine` (the scheduler's pid) are the step's mark. With asynchronous scheduling, `execute_model`
returns before the device is done: times are the host's. On GPUs a step may be the replay of one CUDA graph, then no
Python of the model runs in it: the V1 runner's forward is still seen as a whole, with the V2 runner only the step and
the sampling. V1 on CPU was run, also with three tensor-parallel ranks and with two
data-parallel engines; V2, GPUs and pipeline ranks were read.
"""

from __future__ import annotations

import multiprocessing
import sys
import weakref
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from time import time_ns
from typing import Any

from tokentrace.agent.core import here
from tokentrace.agent.model_hooks import describe, device_name
from tokentrace.agent.vllm_spine import MARK, Make, spine
from tokentrace.agent.wrap import Hook


class Work:
    """A marked step that runs in this process."""

    __slots__ = ("engine", "index", "runner", "start")

    def __init__(self, mark: tuple[int, int], runner: Any) -> None:
        self.engine, self.index = mark
        self.runner = runner
        self.start = time_ns()

    @property
    def key(self) -> dict[str, Any]:
        return {"index": self.index, "engine": self.engine}


class Works:
    """Hooks and state of this process; tells others when a marked step begins and ends. Listeners must not raise."""

    def __init__(self) -> None:
        self.now: dict[int, Work] = {}  # by thread
        self.on_begin: tuple[Callable[[Work], None], ...] = ()
        self.on_end: tuple[Callable[[Work], None], ...] = ()
        self.config: Any = None  # vLLM's, once it was seen
        self.model: Any = None
        self._on_model: list[tuple[Any, list[Hook]]] = []
        self._seen: Any = None

    def own_attributes(self) -> int:
        """How many functions stand on the model's own objects instead of its classes: what hooks leave there while
        they are in place. -1: no model was seen yet."""
        model = self._seen() if self._seen is not None else None
        if model is None:
            return -1
        names = ("forward", "compute_logits")
        return sum(name in vars(module) for module in model.modules() for name in names)

    def makers(self) -> dict[str, Make]:
        def hook(after: Any = None, before: Any = None, make: Any = None) -> Make:
            return lambda target: Hook(target, after, before=before, make=make)

        return {
            "execute": hook(make=self._watch_execute),
            "sample step": hook(self._sample_step_ended),
            "prepare": hook(self._prepared),
            "prepare (runner V2)": hook(self._prepared),
            "forward": hook(self._forwarded),
            "sample": hook(self._sampled),
            "sample (runner V2)": hook(self._sampled),
        }

    def forget(self) -> None:
        on_model, self._on_model = self._on_model, []
        for _, hooks in on_model:
            for hook in hooks:
                hook.restore()
        self.now.clear()
        self.model = None

    def current(self) -> Work | None:
        return self.now.get(get_ident())

    def _watch_execute(self, hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def execute(worker: Any, *args: Any, **kwargs: Any) -> Any:
            if not hook.active:
                return function(worker, *args, **kwargs)
            mark = getattr(args[0] if args else kwargs.get("scheduler_output"), MARK, None)
            if mark is None:
                if self.now:
                    self.now.pop(get_ident(), None)
                return function(worker, *args, **kwargs)
            work = None
            try:
                work = self._begins(worker, mark)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the engine
                hook.fail(error)
            result, failed = None, True
            try:
                result = function(worker, *args, **kwargs)
                failed = False
            finally:
                # Without a result the tokens are still to be sampled, by another call.
                if work is not None and (failed or result is not None or spine.status.get("sample step") != "on"):
                    try:
                        self._ends(work)
                    except Exception as error:  # noqa: BLE001 - as above
                        hook.fail(error)
            return result

        return execute

    def _begins(self, wrapper: Any, mark: tuple[int, int]) -> Work:
        worker = getattr(wrapper, "worker", wrapper)
        runner = getattr(worker, "model_runner", None)
        self.config = getattr(worker, "vllm_config", None)
        work = self.now[get_ident()] = Work(mark, runner)
        self._watch_model(runner)
        for told in self.on_begin:
            told(work)
        return work

    def _ends(self, work: Work) -> None:
        self.now.pop(get_ident(), None)
        spine.writer("model")("work", work.start, time_ns(), here.thread, {**work.key, "rank": rank()})
        for told in self.on_end:
            told(work)

    def _sample_step_ended(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        work = self.current()
        if work is not None:
            self._ends(work)

    def _prepared(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        work = self.current()
        if work is not None:
            spine.writer("engine")("prepare", start, end, here.thread, work.key)

    def _watch_model(self, runner: Any) -> None:
        """The model is known only now: watch the calls of this one object, once."""
        model = model_of(runner)
        if model is None or any(known is model for known, _ in self._on_model):
            return
        self.model, self._seen = model, weakref.ref(model)
        hooks = []
        if callable(getattr(model, "compute_logits", None)):
            hooks.append(Hook("model:compute_logits", self._headed, owner=model))
        if spine.status.get("forward") != "on" or not hasattr(runner, "_model_forward"):
            hooks.append(Hook("model:forward", self._forwarded, owner=model))
        self._on_model.append((model, hooks))
        for hook in hooks:
            hook.install()

    def _forwarded(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        work = self.current()
        if work is None:
            return
        data = work.key
        ids = kwargs.get("input_ids")
        if ids is None:
            ids = next((one for one in args if hasattr(one, "shape")), kwargs.get("inputs_embeds"))
        if ids is not None:
            describe(data, ids, "in_")
        given = result[0] if isinstance(result, tuple) else result
        if hasattr(given, "shape"):
            describe(data, given, "out_")
            data["device"], data["out"] = device_name(given.device), "hidden states"
        if error is not None:
            data["error"] = type(error).__name__
        spine.writer("model")("forward", start, end, here.thread, data)

    def _headed(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        work = self.current()
        if work is None:
            return
        data = work.key
        taken = next((one for one in (*args, *kwargs.values()) if hasattr(one, "shape")), None)
        if taken is not None:
            describe(data, taken, "in_")
        if hasattr(result, "shape"):
            describe(data, result, "out_")
            data["device"] = device_name(result.device)
        spine.writer("model")("logits", start, end, here.thread, data)

    def _sampled(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        work = self.current()
        if work is None:
            return
        data = work.key
        scores = kwargs.get("logits")
        if scores is None:
            scores = args[1] if len(args) > 1 else None
        if scores is not None:
            describe(data, scores)
        spine.writer("model")("sample", start, end, here.thread, data)


def model_of(runner: Any) -> Any:
    """The torch module that a runner runs, without wrappers around it; None when it has none yet."""
    for name in ("get_model", "model"):
        try:
            found = getattr(runner, name)
            model = found() if name == "get_model" else found
        except Exception:  # noqa: BLE001 - another version's runner
            continue
        if hasattr(model, "named_modules"):
            return model
    return None


def rank() -> str:
    """This process's place among several, such as "tp1" or "dp1 tp0"; "" when it is alone."""
    state = sys.modules.get("vllm.distributed.parallel_state")
    found = []
    for name, attribute in (("dp", "_DP"), ("pp", "_PP"), ("tp", "_TP")):
        group: Any = getattr(state, attribute, None)
        if getattr(group, "world_size", 1) > 1:
            found.append(f"{name}{group.rank_in_group}")
    if not any(one.startswith("dp") for one in found) and (engine := _independent_engine()):
        found.insert(0, engine)
    return " ".join(found)


def _independent_engine() -> str:
    """Data-parallel engines of a dense model know nothing of each other and form no group (vLLM 0.32,
    `reconfigure_for_independent_dp_rank`); only the engine's process is named by its number, EngineCore_DP1."""
    parent = multiprocessing.parent_process()
    for name in (multiprocessing.current_process().name, parent.name if parent is not None else ""):
        _, mark, number = name.rpartition("_DP")
        if mark and number.isdigit():
            return f"dp{number}"
    return ""


works = Works()
