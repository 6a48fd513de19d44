"""The group "engine" for transformers' continuous batching, which the local engine runs on.

    submit [rid, tokens]                    wait [rid]: from the end of submit to the first schedule that holds it
    schedule, prepare, update [index]       finish [rid, reason, tokens]
    step [index, phase, reqs {rid: tokens}, batch, tokens, running, waiting, kv_used, kv_total,
          cached_tokens {rid: n}, ids {rid: new token}, preempted [rid]]

What a scheduler cannot tell in some version is left out of the record, never written as 0.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tokentrace.agent.batching_steps import API, CB, Step, StepsGroup, steps
from tokentrace.agent.core import Emit, here
from tokentrace.agent.wrap import Hook

_SCHEDULERS = tuple(f"{CB}.scheduler:{name}.schedule_batch" for name in ("FIFOScheduler", "PrefillFirstScheduler"))
_LOCAL = "tokentrace.engines.local.engine"


class EngineGroup(StepsGroup):
    """Layer 6. See the module's docstring for its records."""

    def __init__(self) -> None:
        super().__init__()
        # rid -> ("submit", its end) or ("taken", the schedule's start): whichever comes second writes the wait. The
        # scheduler may hold a request before `submit` has returned on the other thread.
        self._handover: dict[str, tuple[str, int]] = {}
        self._seen: set[str] = set()
        self._offloading = False

    def hooks(self) -> list[Hook]:
        submit = f"{_LOCAL}:Engine.submit" if _LOCAL in sys.modules else f"{API}:ContinuousBatchingManager.add_request"
        scheduler = f"{CB}.scheduler:Scheduler"
        return [
            Hook(submit, self._submitted),
            *(Hook(target, self._scheduled) for target in _SCHEDULERS),
            Hook(f"{CB}.cache:PagedAttentionCache.search_prefix_match", self._matched),
            Hook(f"{API}:ContinuousBatchProcessor.update_batch", self._updated),
            Hook(f"{scheduler}.finish_request", self._finished, before=self._finishes),
            Hook(f"{scheduler}.clear_cancelled_requests", self._cancelled),
            Hook(f"{CB}.offloading_manager:OffloadingManager.offload_requests", self._offloaded, before=self._offloads),
        ]

    def enable(self, recorder: Emit, options: Mapping[str, Any] | None = None) -> None:
        super().enable(recorder, options)
        if self._prepared not in steps.on_prepared:
            steps.on_prepared += (self._prepared,)

    def disable(self) -> None:
        steps.on_prepared = tuple(told for told in steps.on_prepared if told != self._prepared)
        super().disable()

    def open(self) -> list[str]:
        """The steps that are under way."""
        return [f"step {step.index}" for step in steps.under_way()]

    def _submitted(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        if error is not None:
            return
        if isinstance(result, str):  # add_request(ids, request_id, …) gives the id
            rid, ids = result, args[1] if len(args) > 1 else kwargs["input_ids"]
        else:
            rid, ids = args[1], args[2]
        thread = here.thread
        self.emit("submit", start, end, thread, {"rid": rid, "tokens": len(ids)})
        kind, taken = self._handover.setdefault(rid, ("submit", end))
        if kind == "taken":
            del self._handover[rid]
            self.emit("wait", taken, taken, thread, {"rid": rid})

    def _scheduled(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        step = steps.current()
        batch = result[0] if result is not None else None
        if step is None or not batch:
            return
        reqs: dict[str, int] = {}
        prefilling = 0
        for one in batch:
            state = one.state
            rid = state.request_id
            reqs[rid] = one.query_length
            prefilling += not state.generated_tokens
            if rid not in self._seen:
                self._seen.add(rid)
                kind, submitted = self._handover.setdefault(rid, ("taken", start))
                if kind == "submit":
                    del self._handover[rid]
                    self.emit("wait", submitted, max(submitted, start), here.thread, {"rid": rid})
        scheduler = args[0]
        step.schedule, step.batch = (start, end), batch
        step.info = {
            "phase": "decode" if not prefilling else "prefill" if prefilling == len(batch) else "mixed",
            "reqs": reqs,
            "batch": len(reqs),
            "tokens": sum(reqs.values()),
            "running": len(scheduler.active_requests),
            "waiting": len(scheduler.waiting_requests),
            **_kv_blocks(scheduler.cache),
        }

    def _matched(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        step = steps.current()
        if step is not None and result is not None:
            step.cached[args[1]] = int(result)

    def _prepared(self, step: Step, processor: Any) -> None:
        queue = getattr(processor, "input_queue", None)
        if queue is not None and "waiting" in step.info:
            step.info["waiting"] += queue.qsize()
        thread = here.thread
        if step.schedule is not None:
            self.emit("schedule", *step.schedule, thread, {"index": step.index})
        if step.prepare is not None:
            self.emit("prepare", *step.prepare, thread, {"index": step.index})

    def _updated(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        step = steps.current()
        if step is not None and step.index >= 0:
            if not step.asynchronous:
                for one in step.batch:
                    if one.has_new_token and one.state.generated_tokens:
                        step.ids[one.state.request_id] = one.state.generated_tokens[-1]
            self.emit("update", start, end, here.thread, {"index": step.index})

    def step_ended(self, step: Step, start: int, end: int) -> None:
        if step.info:  # else the group was switched on in the middle of this step
            told = {"index": step.index, **step.info, "cached_tokens": step.cached, "ids": step.ids}
            self.emit("step", start, end, here.thread, {**told, "preempted": step.preempted})

    def _finishes(self, args: Any, kwargs: Any) -> Any:
        return args[0].active_requests.get(args[1])

    def _finished(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        if self._offloading or context is None:  # preempted, not finished; or not running any more
            return
        self._forget(args[1])
        self.emit("finish", start, end, here.thread, _end_of(context))

    def _cancelled(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        for state in result or ():
            self._forget(state.request_id)
            self.emit("finish", start, end, here.thread, {**_end_of(state), "reason": "abort"})

    def _forget(self, rid: str) -> None:
        self._seen.discard(rid)
        self._handover.pop(rid, None)

    def _offloads(self, args: Any, kwargs: Any) -> set[str]:
        self._offloading = True
        return set(args[0].scheduler.active_requests)

    def _offloaded(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        self._offloading = False
        step = steps.current()
        if step is not None and context:
            step.preempted += sorted(context - set(args[0].scheduler.active_requests))


def _kv_blocks(cache: Any) -> dict[str, int]:
    """Blocks that requests hold, and all of them; blocks kept only for the prefix cache are not held. Empty when this
    version keeps its books elsewhere."""
    try:
        total = int(cache.num_blocks)
        held = sum(
            len(set().union(*allocator.block_table.values())) * allocator.bytes_per_block
            for allocator in cache.cache_allocators.values()
        )
        block_bytes = cache.num_sectors * cache.bytes_per_sector / total
    except (AttributeError, TypeError, ZeroDivisionError):
        return {}
    return {"kv_used": min(total, round(held / block_bytes)), "kv_total": total}


def _end_of(state: Any) -> dict[str, Any]:
    """What a finished request's state says. A request that was put back counts its earlier tokens among the prompt."""
    generated = list(state.generated_tokens)
    before = getattr(state, "_true_initial_tokens", 0)
    tokens = len(generated) + (len(state.initial_tokens) - before if before else 0)
    if state.error or state.status.name == "FAILED":
        reason = "error"
    elif generated and generated[-1] in state._eos_token_ids:
        reason = "stop"
    else:
        reason = "length"
    return {"rid": state.request_id, "reason": reason, "tokens": tokens}
