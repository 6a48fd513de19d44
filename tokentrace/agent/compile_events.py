"""The group "jit": what the compilers in this process do, as they do it.

torch (dynamo, aot_autograd, inductor, C++): every phase of a compilation passes `ChromiumEventLogger` in
`torch._dynamo.utils` as begin and end, and every cache look-up as an instant, in unix ns. Its methods are wrapped by
name; a torch that lacks one is used without it, and the header says which is missing. `torch._dynamo` is not imported
here (it takes a second or more): where it is not loaded yet, an import hook waits for it and wraps it on arrival.

Triton: see `triton_events`. vLLM's JIT monitor, which also sees CuTeDSL and TileLang: see `jit_monitor`.

Records: "compile" (a stretch) and "cache" (an instant), see `_Torch` and `Triton` for their fields; those two modules
have more. A compilation that is still running when the group is switched off is recorded as unfinished up to that
moment.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tokentrace.agent.core import Bulk, Emit
from tokentrace.agent.jit_monitor import Monitor
from tokentrace.agent.texts import cut
from tokentrace.agent.triton_events import Triton, guarded

_CACHES = (  # name of the instant, what looked up
    ("fx_graph_cache_", "inductor", "fx graph"),
    ("autograd_cache_", "aot_autograd", "autograd"),
)
_COMPILERS = (  # beginning of a phase's name, compiler
    ("compile_file", "cpp"),
    ("CppCodeCache", "cpp"),
    ("CppPythonBindingsCodeCache", "cpp"),
    ("TritonBundler", "triton"),
    ("triton", "triton"),
    ("CachingAutotuner", "triton"),
    ("async_compile.precompile", "triton"),
    ("AOTAutogradCache", "aot_autograd"),
    ("aot_", "aot_autograd"),
    ("create_aot_dispatcher", "aot_autograd"),
    ("backend_compile", "aot_autograd"),
    ("inductor", "inductor"),
    ("fx_codegen", "inductor"),
    ("compile_fx", "inductor"),
    ("FxGraphCache", "inductor"),
    ("GraphLowering", "inductor"),
    ("Scheduler", "inductor"),
    ("PyCodeCache", "inductor"),
    ("PythonWrapperCodegen", "inductor"),
    ("CppWrapper", "inductor"),
    ("WrapperCodegen", "inductor"),
    ("code_gen", "inductor"),
    ("async_compile", "inductor"),
    ("pass.", "inductor"),
    ("_recursive_", "inductor"),
    ("additional_fake_tensor_prop", "inductor"),
    ("CacheBase", "inductor"),
)
_KEPT = ("compile_id", "fn_name", "key", "cache_state", "cache_bypass_reason", "co_name", "graph_op_count",
         "fail_reason", "recompile_reason", "is_backward")  # fmt: skip


def compiler_of(phase: str) -> str:
    """Which compiler a phase of torch's compilation belongs to; dynamo, which drives them all, where none is known."""
    return next((compiler for start, compiler in _COMPILERS if phase.startswith(start)), "dynamo")


class _Torch:
    """Wraps ChromiumEventLogger. compile: compiler, phase, compile_id, depth (0 outermost), and what torch adds.
    cache: compiler, cache, result (hit, miss, bypass, disabled), key, saved_ns (None unless torch says), compile_id.
    """

    module = "torch._dynamo.utils"

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._open: dict[int, list[tuple[str, int, str]]] = {}
        self._wrapped: list[tuple[Any, str, Any, Any]] = []
        self._on = True
        self.missing: list[str] = []
        self.errors: list[str] = []

    def install(self, module: ModuleType) -> None:
        logger = getattr(module, "ChromiumEventLogger", None)
        if logger is None:
            self.missing.append(f"{self.module}.ChromiumEventLogger")
            return
        for name, hook in (("log_event_start", self._begin), ("log_event_end", self._end),
                           ("log_instant_event", self._instant)):  # fmt: skip
            original = vars(logger).get(name)
            if not callable(original):
                self.missing.append(f"ChromiumEventLogger.{name}")
                continue
            wrapper = _before(hook, original, self.errors)
            setattr(logger, name, wrapper)
            self._wrapped.append((logger, name, original, wrapper))

    def remove(self) -> None:
        self._on = False
        for owner, name, original, wrapper in self._wrapped:
            if vars(owner).get(name) is wrapper:  # else somebody wrapped ours: it stays, and does nothing
                setattr(owner, name, original)
        self._wrapped.clear()
        now = time.time_ns()
        for thread, stack in list(self._open.items()):
            for depth, (phase, start, compile_id) in enumerate(stack):
                data = {"compiler": compiler_of(phase), "phase": phase, "compile_id": compile_id, "depth": depth,
                        "unfinished": True}  # fmt: skip
                self._emit("compile", start, now, thread, data)
        self._open.clear()

    def _begin(self, logger: Any, name: Any, time_ns: Any, metadata: Any = None, *rest: Any, **more: Any) -> None:
        if not self._on:
            return
        stack = self._open.setdefault(threading.get_native_id(), [])
        stack.append((str(name), int(time_ns), cut((metadata or {}).get("compile_id"))))

    def _end(self, logger: Any, name: Any, time_ns: Any, metadata: Any = None, *rest: Any, **more: Any) -> None:
        if not self._on:
            return
        thread = threading.get_native_id()
        stack = self._open.get(thread, [])
        at = next((i for i in range(len(stack) - 1, -1, -1) if stack[i][0] == name), -1)
        if at >= 0:
            start = stack[at][1]
            del stack[at:]  # what an exception left open above it has no end
        else:  # it began before we came
            given = rest[0] if rest else more.get("start_time_ns")
            if not isinstance(given, int):
                return
            start, at = given, len(stack)
        facts: dict[str, Any] = {}
        data_of = getattr(logger, "get_event_data", None)
        if callable(data_of):
            facts.update(data_of().get(name) or {})
        facts.update(metadata or {})
        data = {"compiler": compiler_of(str(name)), "phase": str(name), "depth": at, **_kept(facts)}
        self._emit("compile", int(start), int(time_ns), thread, data)

    def _instant(self, logger: Any, name: Any, time_ns: Any, metadata: Any = None, *rest: Any, **more: Any) -> None:
        if not self._on:
            return
        for start, compiler, cache in _CACHES:
            if str(name).startswith(start):
                facts = dict(metadata or {})
                data = {"compiler": compiler, "cache": cache, "result": str(name)[len(start) :],
                        "saved_ns": _saved_ns(facts), **_kept(facts)}  # fmt: skip
                self._emit("cache", int(time_ns), int(time_ns), threading.get_native_id(), data)


class _OnImport(MetaPathFinder):
    """Calls back once a module has been imported, and finds nothing itself."""

    def __init__(self, watched: dict[str, Callable[[ModuleType], None]]) -> None:
        self.watched = watched

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        callback = self.watched.get(fullname)
        if callback is None:
            return None
        for finder in list(sys.meta_path):
            look = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = look(fullname, path, target) if look is not None and finder is not self else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _After(spec.loader, callback)  # type: ignore[assignment]
                return spec
        return None


class _After:
    """A loader that calls back when the module has run; everything else is the real loader's."""

    def __init__(self, loader: Loader, callback: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        spec = module.__spec__
        if spec is not None and spec.loader is self:  # type: ignore[comparison-overlap]
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._callback(module)


class CompileWatch:
    """All hooks together: `start` wraps what is loaded and waits for the rest, `stop` puts everything back."""

    def __init__(self, emit: Emit) -> None:
        monitor = Monitor(emit)
        self._hooks = (_Torch(emit), Triton(emit, monitor), monitor)
        self._installed: list[str] = []
        self._finder: _OnImport | None = None

    def start(self) -> None:
        waiting: dict[str, Callable[[ModuleType], None]] = {}
        for hook in self._hooks:
            module = sys.modules.get(hook.module)
            # A module that another thread is importing right now is there, but not complete.
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                self._arrived(hook, module)
            else:
                waiting[hook.module] = lambda found, hook=hook: self._arrived(hook, found)  # type: ignore[misc]
        if waiting:
            self._finder = _OnImport(waiting)
            sys.meta_path.insert(0, self._finder)

    def stop(self) -> None:
        if self._finder is not None:
            self._finder.watched.clear()
            if self._finder in sys.meta_path:
                sys.meta_path.remove(self._finder)
            self._finder = None
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, hook: _Torch | Triton | Monitor, module: ModuleType) -> None:
        self._installed.append(hook.module)
        guarded(hook.errors, hook.install, module)

    def facts(self, variables: Sequence[str] = ()) -> dict[str, Any]:
        """What is watched (loaded modules), what this version lacks, and the cache variables that are set."""
        return {
            "watched": list(self._installed),
            "missing": [name for hook in self._hooks for name in hook.missing],
            "errors": [error for hook in self._hooks for error in hook.errors],
            "environment": {name: os.environ[name] for name in variables if name in os.environ},
        }


def _before(hook: Callable[..., None], original: Callable[..., Any], errors: list[str]) -> Callable[..., Any]:
    """`original` with `hook` called first."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        guarded(errors, hook, *args, **{_ARGUMENTS.get(name, name): value for name, value in kwargs.items()})
        return original(*args, **kwargs)

    wrapper.__wrapped__ = original  # type: ignore[attr-defined]
    return wrapper


_ARGUMENTS = {"event_name": "name"}  # torch's name of the hook's first argument


def _saved_ns(facts: Mapping[str, Any]) -> int | None:
    for name, factor in (("time_saved_ns", 1), ("time_saved_ms", 1_000_000)):
        value = facts.get(name)
        if isinstance(value, (int, float)):
            return int(value * factor)
    return None


def _kept(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The few fields that are told on, short and plain; a None is left out."""
    return {
        name: value if isinstance(value, (bool, int)) else cut(value)
        for name, value in ((name, facts.get(name)) for name in _KEPT)
        if value is not None
    }


class JitGroup:
    """The group as the agent switches it on and off. Option `variables`: names of environment variables to tell."""

    def __init__(self) -> None:
        self._watch: CompileWatch | None = None
        self._variables: tuple[str, ...] = ()
        self._facts: dict[str, Any] | None = None

    def enable(self, emit: Emit, options: Mapping[str, Any] | None = None) -> None:
        """Start watching; nothing happens when it watches already."""
        if self._watch is not None:
            return
        self._variables = tuple((options or {}).get("variables") or ())
        self._watch = CompileWatch(emit)
        self._watch.start()

    def disable(self) -> None:
        """Stop watching and put everything back. Never raises."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
            self._facts = watch.facts(self._variables)

    def bulk(self) -> list[Bulk]:
        """No columns, only the header with `CompileWatch.facts`."""
        facts, self._facts = self._facts, None
        return [(facts, {})] if facts is not None else []
