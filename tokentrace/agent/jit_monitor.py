"""The group "jit", continued: what vLLM's own JIT monitor reports.

vllm/utils/jit_monitor.py is switched on by a GPU worker when its warm-up is over (not with --enforce-eager). From then
on each compilation by Triton, CuTeDSL (`cute.compile`) or TileLang passes its `_handle_jit_event`, which warns, or with
--jit-monitor-mode error raises. That function is wrapped by name in any process where the module is loaded.

Of CuTeDSL and TileLang it is called before the compilation, of Triton behind it; it tells no length. Where the call
that compiles can be wrapped too (the monitor's own stand-in for `cute.compile`, TileLang's `JITImpl.compile` and
`JITKernel`), its stretch becomes the record and the report only marks it; else the report is an instant. Of Triton,
`compile_events` has the stretch already: it says so here (`recorded`), and the report of the same function is left out.

Records: "compile" (a stretch: compiler, phase, depth, after_warmup) and "report" (an instant: the same, and refused
where the monitor raised). Run with vLLM 0.32, Triton 3.9, CuTeDSL 4.8 and TileLang 0.1.15 compiling without a GPU; in a
worker on a GPU it was read and not run.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import ModuleType
from typing import Any

from tokentrace.agent.core import Emit
from tokentrace.agent.texts import cut
from tokentrace.agent.vllm_names import NAMES
from tokentrace.agent.wrap import Hook

_TARGETS = {name.purpose: name.target for name in NAMES if name.group == "jit"}
REPORT = _TARGETS["jit report"]
MODULE = REPORT.partition(":")[0]
#: What compiles -> whose compiler that is. Each of them runs for a compilation only, never for a kernel's call.
TIMED = {
    _TARGETS["jit CuTeDSL"]: "CuTeDSL",
    "tilelang.jit:JITImpl.compile": "TileLang",
    "tilelang.jit.kernel:JITKernel.__init__": "TileLang",
}
_COMPILER_MODULES = {"cutlass.cute": "CuTeDSL", "tilelang": "TileLang"}


def is_active() -> bool:
    """Whether vLLM's warm-up is over and its monitor watches in this process."""
    asked = getattr(sys.modules.get(MODULE), "is_active", None)
    return bool(asked()) if callable(asked) else False


def state() -> dict[str, Any]:
    """`state`: active, inactive or not loaded; `mode` (warn, error) while active; `unwatched`: the loaded compilers of
    which nothing is seen because it is not active."""
    if is_active():
        return {"state": "active", "mode": str(getattr(sys.modules[MODULE], "_mode", ""))}
    unwatched = [name for module, name in _COMPILER_MODULES.items() if module in sys.modules]
    return {"state": "inactive" if MODULE in sys.modules else "not loaded", "unwatched": unwatched}


class _Open(threading.local):
    """The timed calls that are under way on this thread, outermost first."""

    def __init__(self) -> None:
        self.calls: list[_Timed] = []


class _Timed:
    """One call that compiles. `told` is what the monitor said in it, None as long as it said nothing."""

    __slots__ = ("backend", "told")

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.told: dict[str, Any] | None = None


class Monitor:
    """Wraps the monitor's functions in a loaded module, and puts them back."""

    module = MODULE

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._open = _Open()
        self._hooks: list[Hook] = []
        self._known: Counter[str] = Counter()
        self._on = True
        self.missing: list[str] = []
        self.errors: list[str] = []

    def install(self, module: ModuleType) -> None:
        report = Hook(REPORT, self._reported)
        try:
            report.install()
        except (LookupError, TypeError, AttributeError):
            self.missing.append(REPORT.replace(":", "."))
            return
        self._hooks.append(report)
        # What the monitor wraps has to be wrapped by it first: ours goes on top, and comes off again.
        activate = Hook(_TARGETS["jit monitor"], lambda *_: self._time())
        self._put((activate,))
        self._time()

    def remove(self) -> None:
        self._on = False
        hooks, self._hooks = self._hooks, []
        for hook in reversed(hooks):
            hook.restore()

    def recorded(self, function: str) -> None:
        """Of this Triton function a compilation has just been recorded."""
        self._known[_last(function)] += 1

    def _time(self) -> None:
        if self._on and is_active():
            there = {hook.target for hook in self._hooks}
            self._put(tuple(self._timing(target, TIMED[target]) for target in TIMED if target not in there))

    def _put(self, hooks: tuple[Hook, ...]) -> None:
        for hook in hooks:
            try:
                hook.install()
            except (LookupError, TypeError, AttributeError):
                continue  # this compiler is not here, or an older monitor: its reports stay instants
            self._hooks.append(hook)

    def _timing(self, target: str, backend: str) -> Hook:
        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Timed:
            call = _Timed(backend)
            self._open.calls.append(call)
            return call

        def after(
            start: int, end: int, args: Any, kwargs: Any, result: Any, problem: BaseException | None, call: Any
        ) -> None:
            calls = self._open.calls
            if call not in calls:
                return
            del calls[calls.index(call) :]
            if call.told is not None:
                depth = sum(other.told is not None for other in calls)
                self._emit("compile", start, end, threading.get_native_id(), {**call.told, "depth": depth})

        return Hook(target, after, before=before)

    def _reported(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, problem: BaseException | None, context: Any
    ) -> None:
        backend, function = str(kwargs.get("backend") or ""), str(kwargs.get("fn_name") or "")
        told: dict[str, Any] = {"compiler": backend.lower(), "phase": cut(function), "after_warmup": True}
        if kwargs.get("detail"):
            told["detail"] = cut(kwargs["detail"])
        name = _last(function)
        known = backend == "Triton" and self._known[name] > 0
        if known:
            self._known[name] -= 1
        if problem is None:
            if known:
                return
            call = self._open.calls[-1] if self._open.calls else None
            if call is not None and call.backend == backend and call.told is None:
                call.told = told
                return
        else:
            told["refused"] = True
        depth = sum(other.told is not None for other in self._open.calls)
        self._emit("report", start, start, threading.get_native_id(), {**told, "depth": depth})


def _last(function: str) -> str:
    return function.rpartition(".")[2]
