"""What the agent writes down, and the register of what it can write down.

A record is one place in six columns of the process that were made before the first one (see `stock`): group, name,
start_ns, end_ns, thread, data, times in unix ns from `time.time_ns`, `thread` the system's thread id. Where there is no
place left, records are counted instead of kept.

A group is something that can be switched on and off by name ("http", "engine", …). Its class is found only when the
group is asked for, so that an agent that nobody talks to has imported nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from tokentrace.agent.stock import Stock

#: (name, start_ns, end_ns, system thread id, data) -> None: writes one record of one group. Never raises.
Emit = Callable[[str, int, int, int, dict[str, Any]], None]
#: (header, {name: (type code of `array.array`, bytes)}), all arrays of one length.
Bulk = tuple[dict[str, Any], dict[str, tuple[str, bytes]]]

#: 6 MB, made when somebody connects. A busy server writes 25,000 a second, and a reader that takes none for two seconds
#: is given up.
LIMIT = 65_536


class Records(NamedTuple):
    """Columns of one length."""

    groups: list[str]
    names: list[str]
    start_ns: list[int]
    end_ns: list[int]
    threads: list[int]
    data: list[dict[str, Any]]


class AgentError(Exception):
    """The agent cannot start. The message says why, `.fix` what would help."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class GroupUnavailable(Exception):
    """A group cannot be switched on in this process. The message says why, `.fix` what would help."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


class _Here(threading.local):
    """What belongs to the thread that looks. `thread`, its system id, is kept: asking for it is a system call."""

    def __init__(self) -> None:
        self.thread = threading.get_native_id()


here = _Here()


class Recorder:
    """The records of this process that have not been handed over yet. For one reader, from its coming to its going."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.dropped = 0  # records that found no room
        self._stock = Stock(6, limit)

    def emitter(self, group: str) -> Emit:
        """The function with which one group writes its records."""
        groups, names, starts, ends, threads, kept = self._stock.columns
        place, ready = self._stock.free.pop, self._stock.ready.append

        def emit(name: str, start_ns: int, end_ns: int, thread: int, data: dict[str, Any]) -> None:
            try:
                at = place()
                groups[at] = group
                names[at] = name
                starts[at] = start_ns
                ends[at] = end_ns
                threads[at] = thread
                kept[at] = data
                ready(at)
            except IndexError:  # all places are taken, or nobody reads any more
                self.dropped += 1

        return emit

    def take(self, most: int) -> Records:
        """The oldest records, at most `most`, which are forgotten here. Writers go on meanwhile."""
        return Records(*self._stock.take(most))

    def clear(self) -> int:
        """Forget everything; gives how many records that were."""
        self.dropped = 0
        return self._stock.clear()

    def close(self) -> None:
        """Nobody will ever read: everything is forgotten, and a call that is still under way leaves nothing here."""
        self._stock.close()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._stock)


def nowhere(name: str, start_ns: int, end_ns: int, thread: int, data: dict[str, Any]) -> None:
    """An Emit for records that nobody wants."""


class Group(Protocol):
    """A set of hooks. It may further have, all optional:

    bulk() -> list[Bulk]      columns gathered since the last call, also after `disable`
    open() -> list[str]       names of what has begun and will write a record when it ends
    facts() -> dict           what this group says of itself, plain JSON values
    """

    def enable(self, recorder: Emit, options: Mapping[str, Any] | None = None) -> None:
        """Switch on; nothing happens when it is on. Raises GroupUnavailable (or any error with a `fix`)."""

    def disable(self) -> None:
        """Switch off and put everything back. Never raises."""


_factories: dict[str, Callable[[], Group]] = {}

_CB = "transformers.generation.continuous_batching.continuous_api"
_VLLM = "vllm.v1.engine"
_VLLM_MODEL = ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")
_ELSEWHERE = ""
#: group -> (module that must be loaded for it to make sense, "module:class" in this package, "" where the group has
#: nothing to do in such a process). The first that fits is taken; what `register_group` was given goes before all.
_KNOWN: dict[str, tuple[tuple[str, str], ...]] = {
    "select": ((_VLLM, "vllm_spine:SelectGroup"),),
    "http": ((_VLLM, "vllm_groups:HttpGroup"), ("tokentrace.engines.local.api", "local_hooks:HttpGroup")),
    "tokenizer": (
        (_VLLM, "vllm_groups:TokenizerGroup"),
        ("tokentrace.engines.local.tokenizer", "local_hooks:TokenizerGroup"),
    ),
    "engine": ((_VLLM, "vllm_groups:EngineGroup"), (_CB, "batching_hooks:EngineGroup")),
    "model": ((_VLLM, "vllm_groups:ModelGroup"), (_CB, "model_hooks:ModelGroup")),
    "modules": (
        *((module, "vllm_modules:ModulesGroup") for module in _VLLM_MODEL),
        (_VLLM, _ELSEWHERE),
        (_CB, "module_hooks:ModulesGroup"),
    ),
    "ops": (
        *((module, "vllm_ops:OpsGroup") for module in _VLLM_MODEL),
        (_VLLM, _ELSEWHERE),
        ("torch", "profile:OpsGroup"),
    ),
    "jit": (("", "compile_events:JitGroup"),),
}


def running_engine() -> Any:
    """The local engine that runs in this process, if one does."""
    module = sys.modules.get("tokentrace.engines.local.engine")
    current = getattr(module, "current", None)  # not there yet while the module is being imported
    return current() if current is not None else None


def engine_facts() -> dict[str, Any]:
    """What the engine in this process says of itself; empty where there is none that we know."""
    engine = running_engine()
    if engine is not None:
        found: dict[str, Any] = engine.facts()
        return found
    if _VLLM in sys.modules:
        found = import_module(f"{__package__}.vllm_facts").facts()
        return found
    return {}


def tick() -> None:
    """Called by the agent's thread a few times a second while a group is on."""
    module = sys.modules.get(f"{__package__}.vllm_spine")
    if module is not None:
        module.spine.refresh()


def engine_functions() -> dict[str, int]:
    """Which object each function of the engine is right now; empty where nobody can say."""
    if _VLLM in sys.modules:
        found: dict[str, int] = import_module(f"{__package__}.vllm_facts").functions()
        return found
    return {}


def register_group(name: str, factory: Callable[[], Group]) -> None:
    """Make a group known, or put another in the place of a built-in one."""
    _factories[name] = factory


def replace_groups(factories: Mapping[str, Callable[[], Group] | None]) -> dict[str, Callable[[], Group] | None]:
    """Make these groups stand for their names (None: the built-in ones again); gives what stood there before."""
    before = {name: _factories.get(name) for name in factories}
    for name, factory in factories.items():
        if factory is None:
            _factories.pop(name, None)
        else:
            _factories[name] = factory
    return before


def group_names() -> list[str]:
    return sorted({*_factories, *_KNOWN})


def make_group(name: str) -> Group:
    """A new group. Raises GroupUnavailable when there is none of that name for what this process runs."""
    factory = _factories.get(name)
    if factory is not None:
        return factory()
    if name not in _KNOWN:
        raise GroupUnavailable(f"the agent knows no group {name!r}", f"known: {', '.join(group_names())}")
    for needed, target in _KNOWN[name]:
        if not needed or needed in sys.modules:
            if target == _ELSEWHERE:
                raise GroupUnavailable(f"no model runs in this process, so {name!r} has nothing to watch here", "")
            module, _, cls = target.partition(":")
            group: Group = getattr(import_module(f"{__package__}.{module}"), cls)()
            return group
    needs = " or ".join(needed for needed, _ in _KNOWN[name])
    raise GroupUnavailable(
        f"this process has not loaded {needs}, so there is nothing of the group {name!r} to watch",
        "attach to the process that runs the engine",
    )
