"""vLLM, the process with the scheduler: queue, steps, KV cache, preemption.

    receive [rid]                           taking the request in, up to the scheduler's queue
    wait [rid]                              from there to the first schedule that holds it, or to its end without one
    step [index, phase, reqs {rid: tokens}, batch, tokens, running, waiting, kv_used, kv_total,
          cached_tokens {rid: n}, ids {rid: new token}, tokens_out {rid: n}, preempted [rid]]
    schedule, dispatch, update [index]      finish [rid, reason, tokens, prompt, model]

Only steps that serve a marked request are written down; `reqs` names the marked ones, `batch` and `tokens` count all.
A step lasts from its schedule to the update with its result. With asynchronous scheduling (or pipeline parallelism)
the next one is scheduled before that, so steps overlap; this was read, not run.

What a version cannot tell is left out of the record, never written as 0.
"""

from __future__ import annotations

import os
from time import time_ns
from typing import Any

from tokentrace.agent.core import here
from tokentrace.agent.vllm_spine import MARK, Make, spine
from tokentrace.agent.wrap import Hook

_MAX_STEPS = 1024  # under way; more than a few are steps that never got a result


class _Step:
    __slots__ = ("info", "ours", "start")

    def __init__(self, start: int, ours: list[str], info: dict[str, Any]) -> None:
        self.start, self.ours, self.info = start, ours, info


class Core:
    """Hooks and state of this process. See the module's docstring."""

    def __init__(self) -> None:
        self.marked: dict[str, int] = {}  # rid -> when the queue took it; 0 once it was scheduled
        self.steps: dict[int, _Step] = {}
        self.config: Any = None  # vLLM's, once it was seen
        self._next = 0
        self._preempted: list[str] = []

    def makers(self) -> dict[str, Make]:
        def hook(after: Any = None, before: Any = None) -> Make:
            return lambda target: Hook(target, after, before=before)

        return {
            "receive": hook(self._received),
            "queue": hook(before=self._queues),
            "schedule": hook(self._scheduled),
            "update": hook(self._updated),
            "preempt": hook(before=self._preempts),
            "finish": hook(self._finished),
            "dispatch": hook(self._dispatched),
            "dispatch in process": hook(self._dispatched),
        }

    def forget(self) -> None:
        self.marked.clear()
        self.steps.clear()
        self._preempted.clear()

    def under_way(self) -> list[int]:
        return list(self.steps)

    def _received(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        request = kwargs.get("request") or args[1]
        if is_marked(request):
            spine.writer("engine")("receive", start, end, here.thread, {"rid": request.request_id})

    def _queues(self, args: Any, kwargs: Any) -> None:
        request = kwargs.get("request") or args[1]
        if is_marked(request):
            self.marked[request.request_id] = time_ns()

    def _scheduled(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        marked = self.marked
        if not marked or result is None:
            return
        tokens: dict[str, int] = result.num_scheduled_tokens
        ours = [rid for rid in marked if rid in tokens]
        if not ours:
            return
        scheduler, thread, write = args[0], here.thread, spine.writer("engine")
        index = self._next
        self._next += 1
        setattr(result, MARK, (os.getpid(), index))
        self.config = getattr(scheduler, "vllm_config", None)
        for rid in ours:
            queued = marked[rid]
            if queued:
                marked[rid] = 0
                write("wait", queued, max(queued, start), thread, {"rid": rid})
        preempted, self._preempted = self._preempted, []
        if len(self.steps) >= _MAX_STEPS:
            self.steps.clear()
        self.steps[index] = _Step(start, ours, _told(scheduler, result, ours, preempted))
        write("schedule", start, end, thread, {"index": index})

    def _dispatched(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        mark = getattr(kwargs.get("scheduler_output") or args[1], MARK, None)
        if mark is not None:
            spine.writer("engine")("dispatch", start, end, here.thread, {"index": mark[1]})

    def _updated(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        if not self.steps:
            return
        mark = getattr(kwargs.get("scheduler_output") or args[1], MARK, None)
        step = self.steps.pop(mark[1], None) if mark is not None else None
        if mark is None or step is None:
            return
        output = kwargs.get("model_runner_output") or args[2]
        ids, counts = _sampled(output, step.ours)
        thread, write = here.thread, spine.writer("engine")
        write("update", start, end, thread, {"index": mark[1]})
        told = {"index": mark[1], **step.info, "ids": ids, "tokens_out": counts}
        if error is not None:
            told["error"] = type(error).__name__
        write("step", step.start, end, thread, told)

    def _preempts(self, args: Any, kwargs: Any) -> None:
        request = kwargs.get("request") or args[1]
        if request.request_id in self.marked:
            self._preempted.append(request.request_id)

    def _finished(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        request = kwargs.get("request") or args[1]
        queued = self.marked.pop(request.request_id, None)
        if queued is None:
            return
        write, thread = spine.writer("engine"), here.thread
        if queued:  # it was never scheduled: its client left, or the queue gave it up
            write("wait", queued, max(queued, start), thread, {"rid": request.request_id})
        data: dict[str, Any] = {"rid": request.request_id, "tokens": request.num_output_tokens}
        prompt, config = getattr(request, "num_prompt_tokens", None), getattr(args[0], "vllm_config", None)
        if prompt is not None:
            data["prompt"] = prompt
        name = getattr(getattr(config, "model_config", None), "model", None)
        if name:
            data["model"] = str(name)
        reason = request.get_finished_reason()
        if reason is not None:
            data["reason"] = str(reason)
        write("finish", start, end, thread, data)


def is_marked(request: Any) -> bool:
    headers: Any = getattr(request, "trace_headers", None)
    return bool(headers) and MARK in headers


def _told(scheduler: Any, output: Any, ours: list[str], preempted: list[str]) -> dict[str, Any]:
    """What a schedule says of its step."""
    tokens = output.num_scheduled_tokens
    new = {one.req_id: one.num_computed_tokens for one in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    told: dict[str, Any] = {
        "reqs": {rid: tokens[rid] for rid in ours},
        "batch": len(tokens),
        "tokens": output.total_num_scheduled_tokens,
        "cached_tokens": {rid: new[rid] for rid in ours if rid in new},
        "preempted": preempted,
    }
    if others := getattr(output, "preempted_req_ids", None):
        told["preempted"] = sorted({*preempted, *(set(ours) & set(others))})
    prefilling = _prefilling(tokens, new, cached)
    if prefilling is not None:
        told["phase"] = "decode" if not prefilling else "prefill" if prefilling == len(tokens) else "mixed"
    counts = getattr(scheduler, "get_request_counts", None)
    if callable(counts):
        told["running"], told["waiting"] = counts()
    pool = getattr(getattr(scheduler, "kv_cache_manager", None), "block_pool", None)
    if pool is not None and hasattr(pool, "num_gpu_blocks"):
        total = pool.num_gpu_blocks - 1  # one is the null block, which nobody gets
        told["kv_used"], told["kv_total"] = total - pool.get_num_free_blocks(), total
    return told


def _prefilling(tokens: Any, new: Any, cached: Any) -> int | None:
    """How many requests of a step have given no token yet; None when this version does not say."""
    given = getattr(cached, "num_output_tokens", None)
    if isinstance(given, list) and len(new) + len(given) == len(tokens):  # one look, however large the batch is
        return len(new) + given.count(0)
    context_phase = getattr(cached, "is_context_phase", None)
    return sum(rid in new or bool(context_phase(rid)) for rid in tokens) if callable(context_phase) else None


def _sampled(output: Any, ours: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """(last new token, number of new tokens) of each of our requests that got any."""
    rows, places = getattr(output, "sampled_token_ids", None), getattr(output, "req_id_to_index", None)
    ids: dict[str, int] = {}
    counts: dict[str, int] = {}
    if rows is None or places is None:
        return ids, counts
    for rid in ours:
        place = places.get(rid)
        if place is None or place >= len(rows):
            continue
        row = rows[place]
        if len(row):
            ids[rid], counts[rid] = int(row[-1]), len(row)
    return ids, counts


core = Core()
