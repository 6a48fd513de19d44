"""The engine itself: a causal language model behind transformers' continuous batching.

A real request queue, FIFO scheduler, paged KV cache and prefix cache, kept by transformers. Its interface is private
and moves, so the range is pinned here and checked at start. What this module adds: a cache sized for the model within
a memory bound (the default would ask for gigabytes), one sampling rule for each request, and asyncio on top.

Attention is scaled-dot-product: on a CPU it is as quick as the eager form for short prompts and twice as quick for
long ones, with the same greedy tokens. Weights are float32 on a CPU (bfloat16 is slower there, and its text depends on
the batch), and as stored on a CUDA device. The CUDA path is the same code with another device; it was not run on one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from tokentrace.engines.local import loading
from tokentrace.engines.local.folder import ModelFolder
from tokentrace.engines.local.metrics import Metrics
from tokentrace.engines.local.sampling import Sampling, make_processor
from tokentrace.errors import EngineError

PAGE_TOKENS = 16
#: Context that is served unless asked otherwise; a CPU needs half a minute to read this much.
DEFAULT_CONTEXT = {"cpu": 4096, "cuda": 32768}
_MIN_CONTEXT = 64
_MAX_BATCH_TOKENS = {"cpu": 512, "cuda": 4096}
_MAX_REQUESTS = 64

_current: Engine | None = None


def current() -> Engine | None:
    """The engine of this process, once it is loaded."""
    return _current


class EngineDied(Exception):
    """The generation loop has ended; no request can be served any more."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a model. `threads` 0 and `max_model_len` 0 mean: choose; `dtype` and `device` may be "auto"."""

    compile: bool = False
    #: Replay captured graphs, which transformers does on a CUDA GPU. No GPU has run this.
    cuda_graphs: bool = False
    threads: int = 0
    max_model_len: int = 0
    dtype: str = "auto"
    device: str = "auto"


@dataclass(slots=True)
class Generation:
    """One submitted request. `async for ids in generation.tokens()` gives the new token ids as they come."""

    rid: str
    prompt_tokens: int
    events: asyncio.Queue[tuple[list[int], str, str]] = field(default_factory=asyncio.Queue)
    seen: int = 0
    finish_reason: str = ""
    generated: int = 0

    async def tokens(self) -> AsyncIterator[list[int]]:
        """Raises EngineDied when the request failed inside the engine. `finish_reason` is set with the last tokens."""
        while True:
            ids, reason, error = await self.events.get()
            self.generated += len(ids)
            if error:
                raise EngineDied(error)
            self.finish_reason = reason
            if ids:
                yield ids
            if reason:
                return


class Engine:
    """A loaded model and its scheduler. `start` before `submit`; `stop` when done."""

    def __init__(self, folder: ModelFolder, options: Options) -> None:
        """Load the weights; seconds of imports the first time. Raises EngineError when the model cannot be served."""
        loading.check_transformers()
        import torch

        self.folder = folder
        self.options = options
        self.threads = options.threads or loading.default_threads()
        torch.set_num_threads(self.threads)
        self.device = loading.choose_device(options.device)
        if options.cuda_graphs and self.device.type != "cuda":
            raise EngineError(
                f"--cuda-graphs needs a CUDA GPU, and the model runs on {self.device.type}",
                fix="run without --cuda-graphs",
                layer=3,
            )
        self.model = loading.load(folder, self.device, options.dtype)
        self.dtype = str(self.model.dtype).removeprefix("torch.")
        config = self.model.config.get_text_config()
        self.vocab_size = int(config.vocab_size)
        self.defaults = loading.default_sampling(self.model.generation_config)
        self.eos_ids = loading.eos_ids(self.model)
        self.token_bytes = loading.kv_bytes_per_token(config, self.model.dtype.itemsize)
        self.max_model_len = self._context(config)
        self.metrics = Metrics(folder.name)
        self._open: dict[str, Generation] = {}
        self.died = ""
        if options.compile:
            from tokentrace.engines.local.compiled import compile_mlps

            compile_mlps(self.model)
        self.manager: Any = self._make_manager()
        global _current
        _current = self

    def _context(self, config: Any) -> int:
        """Tokens of one request: what the model knows, within a bound of memory for the KV cache."""
        known = int(getattr(config, "max_position_embeddings", 0) or 2048)
        if self.options.max_model_len > known:
            raise EngineError(
                f"the model knows {known} tokens of context, not {self.options.max_model_len}",
                fix=f"ask for at most {known}",
            )
        wanted = self.options.max_model_len or min(known, DEFAULT_CONTEXT[self.device.type])
        fits = loading.memory_bound_bytes(self.device) // self.token_bytes
        if (self.options.max_model_len and wanted > fits) or fits < _MIN_CONTEXT:
            needed = max(wanted if self.options.max_model_len else 0, _MIN_CONTEXT) * self.token_bytes
            raise EngineError(
                f"the KV cache needs {needed // 1_000_000} MB, more than a quarter of the free memory",
                fix="free memory, ask for a shorter context, or use a smaller model",
            )
        return int(min(wanted, fits))

    def _make_manager(self) -> Any:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        pages = -(-(self.max_model_len + 1) // PAGE_TOKENS) + 1
        manager = self.model.init_continuous_batching(
            # do_sample=False: always argmax, see sampling.py
            generation_config=GenerationConfig(
                do_sample=False, max_new_tokens=self.max_model_len, eos_token_id=self.eos_ids or -1, pad_token_id=0
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=pages,
                page_size=PAGE_TOKENS,
                max_batch_tokens=min(_MAX_BATCH_TOKENS[self.device.type], self.max_model_len),
                max_requests_per_batch=_MAX_REQUESTS,
                scheduler_type="fifo",
                # one step after the other, each a plain call, so that every step can be seen
                use_cuda_graph=self.options.cuda_graphs,
                use_async_batching=False,
                auto_switch_to_flash=False,
            ),
        )
        processors = manager.logit_processor
        processors.logits_processor.append(make_processor())
        processors.tensors_required += 1
        processors.do_processing = True
        processors._retrieve_processors_kwargs()
        try:
            manager.warmup()  # allocates the cache here, so that too little memory is an error of the start
        except (MemoryError, RuntimeError, ValueError) as error:
            raise EngineError(
                f"the KV cache for {self.max_model_len} tokens cannot be allocated: {error}",
                fix="free memory, ask for a shorter context, or use a smaller model",
            ) from error
        return manager

    def start(self) -> None:
        """Start the generation thread."""
        import torch

        with torch.inference_mode():
            self.manager.start()

    def submit(self, rid: str, ids: Sequence[int], sampling: Sampling) -> Generation:
        """Hand a prompt to the scheduler. Must be called on the event loop. Raises EngineDied."""
        generation = Generation(rid, len(ids))
        self._open[rid] = generation
        self.manager.register_result_handler(rid, lambda output: self._deliver(generation, output))
        try:
            accepted = self.manager.add_request(
                list(ids),
                request_id=rid,
                max_new_tokens=sampling.max_tokens,
                streaming=True,
                eos_token_id=-1 if sampling.ignore_eos else (self.eos_ids or -1),
                sampling=sampling,
            )
        except BaseException:
            self._forget(rid)
            raise
        if accepted is None:
            self._forget(rid)
            raise EngineDied(self.death() or "the engine is stopping")
        return generation

    def cancel(self, rid: str) -> None:
        """Take a request out of queue and batch and free its blocks; no harm when it has finished."""
        if self._forget(rid) is not None:
            self.manager.cancel_request(rid)

    def _forget(self, rid: str) -> Generation | None:
        router = self.manager.output_router
        with router._lock:
            router.result_handlers.pop(rid, None)
        return self._open.pop(rid, None)

    def _deliver(self, generation: Generation, output: Any) -> None:
        """On the event loop, once a step: the output holds all tokens so far."""
        ids = output.generated_tokens[generation.seen :]
        generation.seen += len(ids)
        if output.error:
            self._open.pop(generation.rid, None)
            self.death()
            generation.events.put_nowait((ids, "", str(output.error)))
            return
        reason = ""
        if output.is_finished():
            self._open.pop(generation.rid, None)
            last = output.generated_tokens[-1] if output.generated_tokens else None
            reason = "stop" if last in self.eos_ids else "length"
        generation.events.put_nowait((ids, reason, ""))

    def death(self) -> str:
        """Why the generation loop ended by itself, "" while it lives."""
        error = self.manager.background_thread_status.fatal_error
        if error is not None and not self.died:
            self.died = f"the generation loop died: {type(error).__name__}: {error}"
        return self.died

    def end_requests(self) -> None:
        """Tell every open request that the engine is stopping. Must be called on the event loop."""
        for generation in list(self._open.values()):
            generation.events.put_nowait(([], "", "the engine is stopping"))

    def stop(self, timeout_s: float = 1.0) -> bool:
        """End the generation thread after the step it is in; False when that takes longer than `timeout_s`."""
        with contextlib.suppress(RuntimeError):
            self.manager.stop(block=True, timeout=timeout_s, hard_stop=True)
        return not self.manager.is_running()

    block_tokens = PAGE_TOKENS

    @property
    def kv_blocks(self) -> tuple[int, int]:
        """Blocks of the KV cache that requests hold, and all. Blocks kept only for the prefix cache are not held."""
        processor = self.manager.batch_processor
        if processor is None:
            return 0, 0
        cache = processor.cache
        held_bytes = 0
        for allocator in cache.cache_allocators.values():
            tables = list(allocator.block_table.values())  # a copy in one go: the generation thread changes it
            held_bytes += len({block for table in tables for block in list(table)}) * allocator.bytes_per_block
        total = int(cache.num_blocks)
        block_bytes = cache.num_sectors * cache.bytes_per_sector / total
        return min(total, round(held_bytes / block_bytes)), total

    @property
    def queue(self) -> tuple[int, int]:
        """Requests running and waiting."""
        processor = self.manager.batch_processor
        if processor is None:
            return 0, 0
        scheduler = processor.scheduler
        return len(scheduler.active_requests), len(scheduler.waiting_requests) + self.manager.input_queue.qsize()

    def facts(self) -> dict[str, Any]:
        """What this engine is, as plain JSON values."""
        import torch

        from tokentrace.engines.local.compiled import cache_folders

        names = ("tokentrace", "torch", "transformers", "tokenizers", "starlette", "uvicorn")
        return {
            "engine": "tokentrace local engine",
            "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in names}},
            "model": self.folder.name,
            "model_folder": str(self.folder.path),
            "model_class": type(self.model).__name__,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "device": str(self.device),
            "device_name": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "dtype": self.dtype,
            "threads": self.threads,
            "attention": self.model.config._attn_implementation,
            "max_model_len": self.max_model_len,
            "kv_blocks": self.kv_blocks[1],
            "kv_block_tokens": PAGE_TOKENS,
            "kv_bytes_per_token": self.token_bytes,
            "compile": self.options.compile,
            "cache_folders": cache_folders(),
            "pid": os.getpid(),
        }
