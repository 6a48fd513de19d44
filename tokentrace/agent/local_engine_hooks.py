"""Groups "engine" and "model" of the local engine: transformers' continuous batching, step by step.

One step is prepare_next_batch (with work in it), compute_batch, update_batch on the generation thread. Its index counts
the steps seen since the group was switched on.
"""

from __future__ import annotations

import sys
from typing import Any

from tokentrace.agent.local_hooks import Group

_CB = "transformers.generation.continuous_batching"
_HERE = "tokentrace.engines.local"


class EngineGroup(Group):
    """submit [rid, tokens], wait [rid], step [index, phase, reqs, batch, tokens, running, waiting, kv_used, kv_total,
    cached_tokens, ids, preempted], schedule, prepare, update [index], finish [rid, tokens]."""

    what = "scheduler of transformers' continuous batching"

    def install(self) -> list[bool]:
        self._submitted: dict[str, int] = {}
        self._waits: dict[str, int] = {}
        self._index = -1
        self._step: dict[str, Any] | None = None
        self._pending: dict[str, Any] = {}
        self._cached: dict[str, int] = {}
        self._processor: Any = None
        around = self.patches.around
        return [
            around(f"{_HERE}.engine", "Engine", "submit", self._submit, self._before_submit),
            around(f"{_CB}.scheduler", "FIFOScheduler", "schedule_batch", self._schedule),
            around(f"{_CB}.cache", "PagedAttentionCache", "search_prefix_match", self._prefix),
            around(f"{_CB}.continuous_api", "ContinuousBatchProcessor", "prepare_next_batch", self._prepare),
            around(f"{_CB}.continuous_api", "ContinuousBatchProcessor", "update_batch", self._update),
            around(f"{_CB}.scheduler", "Scheduler", "finish_request", self._finish),
        ]

    def _before_submit(self, args: tuple[Any, ...]) -> None:
        from time import time_ns

        self._submitted[args[1]] = time_ns()

    def _submit(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        rid = args[1]
        self.write("submit", start, end, {"rid": rid, "tokens": len(args[2])})
        # The scheduler may take the request before `submit` returns: then nothing was waited.
        if rid in self._submitted:
            self._submitted[rid] = end
        elif rid in self._waits:
            del self._waits[rid]

    def _prefix(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        self._cached[args[1]] = int(result)

    def _schedule(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        batch = result[0] or []
        if not batch:
            return
        scheduler = args[0]
        reqs, prefill = {}, 0
        for future in batch:
            state = future.state
            reqs[state.request_id] = int(future.query_length)
            prefill += not state.generated_tokens
            submitted = self._submitted.pop(state.request_id, None)
            if submitted is not None and submitted <= start:
                self._waits[state.request_id] = submitted
                self.write("wait", submitted, start, {"rid": state.request_id})
        self._pending = {
            "schedule": (start, end),
            "states": [future.state for future in batch],
            "phase": "prefill" if prefill == len(batch) else "mixed" if prefill else "decode",
            "reqs": reqs,
            "running": len(scheduler.active_requests),
            "waiting": len(scheduler.waiting_requests),
        }

    def _prepare(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        if not result or not self._pending:
            return
        self._index += 1
        self._processor = args[0]
        pending, self._pending = self._pending, {}
        first, last = pending.pop("schedule")
        self._step = {"index": self._index, "start": start, **pending}
        self.write("schedule", first, last, {"index": self._index})
        self.write("prepare", start, end, {"index": self._index})

    def _update(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        states = step.pop("states")
        used, total = self._kv()
        reqs: dict[str, int] = step["reqs"]
        data = {
            "index": step["index"],
            "phase": step["phase"],
            "reqs": reqs,
            "batch": len(reqs),
            "tokens": sum(reqs.values()),
            "running": step["running"],
            "waiting": step["waiting"],
            "kv_used": used,
            "kv_total": total,
            "cached_tokens": {rid: self._cached.pop(rid) for rid in reqs if rid in self._cached},
            "ids": {s.request_id: int(s.generated_tokens[-1]) for s in states if s.generated_tokens},
            "preempted": [],
        }
        self.write("update", start, end, {"index": step["index"]})
        self.write("step", step["start"], end, data)

    def _kv(self) -> tuple[int, int]:
        module = sys.modules.get(f"{_HERE}.engine")
        engine = module.current() if module is not None else None
        return engine.kv_blocks if engine is not None else (0, 0)

    def _finish(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        self.write("finish", start, end, {"rid": args[1]})


class ModelGroup(Group):
    """forward [in_shape, in_dtype, out_shape, out_dtype, device], sample [shape, dtype]. On a GPU these are the times
    in which the host issued the work, not those in which the device did it (no GPU has run this)."""

    what = "model runner of transformers' continuous batching"

    def install(self) -> list[bool]:
        self._start = 0
        self._inputs: tuple[Any, Any] | None = None
        return [
            self.patches.around(f"{_CB}.model_runner", "ModelRunner", "compute_batch", self._end, self._begin),
            self.patches.around(f"{_CB}.model_runner", "ModelRunner", "_sample", self._sample),
        ]

    def _begin(self, args: tuple[Any, ...]) -> None:
        from time import time_ns

        ids = args[2].get("input_ids") if len(args) > 2 else None
        self._inputs = (ids.shape, ids.dtype) if ids is not None else None
        self._start = time_ns()

    def _sample(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        scores = args[1]
        shape, dtype = list(scores.shape), str(scores.dtype).removeprefix("torch.")
        data: dict[str, Any] = {"out_shape": shape, "out_dtype": dtype, "device": str(scores.device)}
        if self._inputs is not None:
            data["in_shape"], data["in_dtype"] = list(self._inputs[0]), str(self._inputs[1]).removeprefix("torch.")
        if self._start:
            self.write("forward", self._start, start, data)
        self._start = 0
        self.write("sample", start, end, {"shape": shape, "dtype": dtype})

    def _end(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        self._start = 0
