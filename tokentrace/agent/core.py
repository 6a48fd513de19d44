"""What was seen, in one bounded list, and the groups of hooks that write to it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

#: name -> "module:Class"; imported when the group is first switched on.
GROUPS: dict[str, str] = {
    "http": "tokentrace.agent.local_hooks:HttpGroup",
    "tokenizer": "tokentrace.agent.local_hooks:TokenizerGroup",
    "engine": "tokentrace.agent.local_engine_hooks:EngineGroup",
    "model": "tokentrace.agent.local_engine_hooks:ModelGroup",
    "modules": "tokentrace.agent.modules:ModulesGroup",
    "ops": "tokentrace.agent.profile:OpsGroup",
    "jit": "tokentrace.agent.compile_events:JitGroup",
}
MAX_RECORDS = 1_000_000

#: (name, start_ns, end_ns, native thread id, data)
Emit = Callable[[str, int, int, int, dict[str, Any]], None]


class GroupUnavailable(Exception):
    """A group cannot run in this process. The message says why, `.fix` what would help."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class Recorder:
    """The buffer. `list.append` is atomic under the GIL, so that hooks on several threads need no lock."""

    def __init__(self) -> None:
        self._records: list[tuple[str, str, int, int, int, dict[str, Any]]] = []
        self.dropped = 0

    def emitter(self, group: str) -> Emit:
        """The function a group's hooks call."""

        def emit(name: str, start_ns: int, end_ns: int, thread: int, data: dict[str, Any]) -> None:
            records = self._records
            if len(records) >= MAX_RECORDS:
                self.dropped += 1
                return
            records.append((group, name, start_ns, end_ns, thread, data))

        return emit

    def take(self) -> list[tuple[str, str, int, int, int, dict[str, Any]]]:
        """Everything so far; the buffer starts anew."""
        # A hook that holds the old list while we swap may append once more after the copy: so copy, then cut.
        found = self._records[:]
        del self._records[: len(found)]
        return found

    def clear(self) -> None:
        self._records.clear()


class Groups:
    """The groups of this process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._made: dict[str, Any] = {}
        self._on: set[str] = set()
        self._mutex = threading.Lock()

    def enable(self, name: str, options: Mapping[str, Any] | None) -> None:
        """Raises GroupUnavailable, or the group's own exception with a `.fix`."""
        with self._mutex:
            if name in self._on:
                return
            if name not in GROUPS:
                raise GroupUnavailable(f"this agent has no group {name!r}", "use the same tokentrace on both sides")
            group = self._made.get(name)
            if group is None:
                module, _, cls = GROUPS[name].partition(":")
                group = self._made[name] = getattr(importlib.import_module(module), cls)()
            group.enable(self._recorder.emitter(name), options)
            self._on.add(name)

    def disable(self, name: str) -> None:
        with self._mutex:
            if name in self._on:
                self._on.discard(name)
                self._made[name].disable()

    def disable_all(self) -> None:
        for name in list(self._on):
            self.disable(name)

    def bulk(self) -> list[tuple[str, dict[str, Any], dict[str, tuple[str, bytes]]]]:
        """Column blobs of every group that keeps some: (group, header, {column: (type code, bytes)})."""
        found = []
        for name, group in self._made.items():
            take = getattr(group, "bulk", None)
            for header, columns in take() if take is not None else ():
                found.append((name, header, columns))
        return found

    def errors(self) -> dict[str, list[str]]:
        """Failures of hooks, by group."""
        return {
            n: list(g.patches.errors) for n, g in self._made.items() if getattr(g, "patches", None) and g.patches.errors
        }
