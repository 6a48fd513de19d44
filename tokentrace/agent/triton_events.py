"""The group "jit", continued: what Triton compiles and tunes.

`triton.knobs.compilation.listener` (3.4 and later) is called once for each kernel that Triton prepares, with the time
of every lowering stage and whether the file cache had it; `knobs.runtime.jit_cache_hook` is called before, which gives
the begin; `knobs.autotuning.listener` (3.8 and later) is called when `@triton.autotune` has chosen a configuration.
Hooks that are there already are called as before. All three have been run with Triton 3.9 compiling for a GPU that was
not there; on a GPU they were read and not run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from tokentrace.agent.core import Emit
from tokentrace.agent.jit_monitor import Monitor, is_active
from tokentrace.agent.texts import cut


class Triton:
    """Chains to Triton's hooks. `monitor` is told of each kernel, so that its own report is not a second one.

    compile: compiler "triton", phase (the kernel's name), stages_ns (stage -> ns), key.
    cache: compiler "triton", cache "kernel", result, key, phase (the kernel's name), saved_ns None; cache "autotune",
    phase (the function's name), for a choice between configurations.
    tune: compiler "triton", phase (the function's name), config (what was chosen), candidates (how many were tried);
    their compilations lie in it.
    All have `after_warmup` where vLLM's monitor says that its warm-up is over.
    """

    module = "triton.knobs"

    def __init__(self, emit: Emit, monitor: Monitor) -> None:
        self._emit = emit
        self._monitor = monitor
        self._began = threading.local()
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=256)  # thread, start, end of compilations
        self._set: list[tuple[Any, str, Any, Any]] = []
        self._on = True
        self.missing: list[str] = []
        self.errors: list[str] = []

    def install(self, module: ModuleType) -> None:
        for group, name, make in (
            ("compilation", "listener", self._listener),
            ("runtime", "jit_cache_hook", self._before_compile),
            ("autotuning", "listener", self._tuning),
        ):
            owner = getattr(module, group, None)
            if owner is None or not hasattr(owner, name):
                self.missing.append(f"{self.module}.{group}.{name}")
                continue
            earlier = getattr(owner, name)
            hook = make(earlier)
            setattr(owner, name, hook)
            self._set.append((owner, name, earlier, hook))

    def remove(self) -> None:
        self._on = False
        for owner, name, earlier, hook in self._set:
            if getattr(owner, name, None) is hook:
                setattr(owner, name, earlier)
        self._set.clear()

    def _before_compile(self, earlier: Any) -> Callable[..., Any]:
        def hook(*args: Any, **kwargs: Any) -> Any:
            if self._on:
                self._began.ns = time.time_ns()
            # A true answer makes Triton skip the compilation; that is for the earlier hook to say.
            return earlier(*args, **kwargs) if earlier is not None else False

        return hook

    def _listener(self, earlier: Any) -> Callable[..., None]:
        def listener(**facts: Any) -> None:
            if self._on:
                guarded(self.errors, self._compiled, facts)
            if earlier is not None:
                earlier(**facts)

        return listener

    def _compiled(self, facts: Mapping[str, Any]) -> None:
        now, thread = time.time_ns(), threading.get_native_id()
        metadata, times = facts.get("metadata") or {}, facts.get("times")
        kernel, key = cut(metadata.get("name")), cut(metadata.get("hash"))
        hit = bool(facts.get("cache_hit"))
        total = getattr(times, "total", None)
        began = getattr(self._began, "ns", None)
        self._began.ns = None
        start = now - int(total) * 1000 if isinstance(total, (int, float)) else now
        if isinstance(began, int):
            start = min(start, began)
        data = {"compiler": "triton", "cache": "kernel", "result": "hit" if hit else "miss", "key": key,
                "phase": kernel, "saved_ns": None}  # fmt: skip
        warm: dict[str, Any] = {}
        if is_active():
            warm["after_warmup"] = True
            self._monitor.recorded(_function_of(getattr(facts.get("src"), "fn", None)))
        self._emit("cache", start, start, thread, {**data, **warm})
        if not hit:
            stages = {str(name): int(us) * 1000 for name, us in getattr(times, "lowering_stages", None) or ()}
            made: dict[str, Any] = {"compiler": "triton", "phase": kernel, "key": key, "depth": 0, "stages_ns": stages}
            self._recent.append((thread, start, now))
            self._emit("compile", start, now, thread, {**made, **warm})

    def _tuning(self, earlier: Any) -> Callable[..., None]:
        def listener(**facts: Any) -> None:
            if self._on:
                guarded(self.errors, self._tuned, facts)
            if earlier is not None:
                earlier(**facts)

        return listener

    def _tuned(self, facts: Mapping[str, Any]) -> None:
        now, thread = time.time_ns(), threading.get_native_id()
        function = _function_of(facts.get("fn"))
        hit, took = bool(facts.get("cache_hit")), facts.get("duration")
        start = now - int(took * 1e9) if isinstance(took, (int, float)) else now
        # It is told of a moment after the end, so the length reaches back a moment too short for the first candidate.
        start = min([start, *(began for where, began, end in list(self._recent) if where == thread and end > start)])
        warm: dict[str, Any] = {"after_warmup": True} if is_active() else {}
        data = {"compiler": "triton", "cache": "autotune", "result": "hit" if hit else "miss", "phase": function,
                "saved_ns": None}  # fmt: skip
        self._emit("cache", start, start, thread, {**data, **warm})
        if not hit:
            tuned = {"compiler": "triton", "phase": function, "config": cut(facts.get("best_config")),
                     "candidates": len(facts.get("configs_timings") or ())}  # fmt: skip
            self._emit("tune", start, now, thread, {**tuned, **warm})


def _function_of(kernel: Any) -> str:
    """The name of the Python function that a JITFunction was made of."""
    return cut(getattr(getattr(kernel, "fn", None), "__qualname__", ""))


def guarded(errors: list[str], hook: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Call the hook; what goes wrong in it is written down and stays here."""
    try:
        hook(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - nothing of ours may stop a compilation
        if len(errors) < 20:
            errors.append(f"{type(error).__name__}: {cut(error)}")
