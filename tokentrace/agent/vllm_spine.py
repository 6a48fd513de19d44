"""vLLM: the hooks that all groups share, and which requests they are about.

A request is chosen where it comes in (the process that speaks HTTP, or that calls `LLM.generate`), and carries a mark
from there: `trace_headers` of the engine's request, a field that vLLM hands on to the scheduler, and an attribute of
the SchedulerOutput of every step that serves a marked request, which is pickled to the workers with it. A process
without our hooks ignores both. So the scheduler and the workers write down marked steps only, and do next to nothing
for the others.

The hooks are installed together while any group (or a selection) needs them: a group by itself only says who wants
its records. What is not loaded in this process is left alone, see `vllm_names`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from tokentrace.agent import vllm_names
from tokentrace.agent.core import Emit, GroupUnavailable, nowhere
from tokentrace.agent.wrap import Hook

#: The key in `trace_headers`, and the attribute of a SchedulerOutput: (pid of the scheduler's process, step index).
MARK = "tokentrace"
Make = Callable[[str], Hook]
LOOK_S = 0.5


class Selection:
    """Which requests are traced. Options, all optional:

    trace_ids   those whose traceparent has one of these trace ids (32 hex digits)
    all         every one
    sampled     those that come with a sampled traceparent
    share       of the others this share (0 to 1)

    Without any of them: every one.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        given = options or {}
        self.trace_ids = frozenset(str(one) for one in given.get("trace_ids") or ())
        self.sampled = bool(given.get("sampled"))
        self.share = float(given.get("share") or 0.0)
        self.all = bool(given.get("all")) or not (self.trace_ids or self.sampled or self.share)

    def wants(self, traceparent: str) -> bool:
        if self.all:
            return True
        if traceparent:
            parts = traceparent.split("-")
            if len(parts) >= 4:
                if parts[1] in self.trace_ids:
                    return True
                try:
                    if self.sampled and int(parts[3], 16) & 1:
                        return True
                except ValueError:
                    pass
        return self.share > 0 and random.random() < self.share


class Spine:
    """The one set of hooks of this process."""

    def __init__(self) -> None:
        self.selection = Selection({"trace_ids": ("none yet",)})
        self.emits: dict[str, Emit] = {}
        self.text = False
        #: purpose -> "on", "not loaded", "missing: …"
        self.status: dict[str, str] = {}
        self._hooks: list[Hook] = []
        self._users = 0
        self._look_at = 0.0
        self._chosen: Selection | None = None

    def acquire(self) -> None:
        """Raises GroupUnavailable when nothing of vLLM can be watched here."""
        if self._users == 0:
            self._install()
        self._users += 1

    def release(self) -> None:
        if self._users == 0:
            return
        self._users -= 1
        if self._users == 0:
            for hook in reversed(self._hooks):
                hook.restore()
            self._hooks.clear()
            for part in _parts():
                part.forget()

    def choose(self, selection: Selection | None) -> None:
        """Say which requests are traced; None takes it back."""
        self._chosen = selection
        self.selection = selection or Selection({"trace_ids": ("none yet",)})

    def want(self, group: str, emit: Emit) -> None:
        """Send the records of a group there. Without a selection every request is chosen."""
        self.emits = {**self.emits, group: emit}
        if self._chosen is None:
            self.selection = Selection()

    def unwant(self, group: str) -> None:
        self.emits = {name: emit for name, emit in self.emits.items() if name != group}
        if not self.emits and self._chosen is None:
            self.choose(None)

    def writer(self, group: str) -> Emit:
        """Where the records of a group go now."""
        return self.emits.get(group, nowhere)

    def refresh(self) -> None:
        """Watch what has been loaded meanwhile: an engine that is starting loads its parts one after the other. Called
        often by the agent's thread; looks once in `LOOK_S`."""
        now = monotonic()
        if self._users and now >= self._look_at and "not loaded" in self.status.values():
            self._install_missing()

    def _install(self) -> None:
        self.status = dict.fromkeys(vllm_names.purposes(), "not loaded")
        self._install_missing()
        if not {"on", "not loaded"} & set(self.status.values()):
            for hook in reversed(self._hooks):
                hook.restore()
            self._hooks.clear()
            raise GroupUnavailable(
                f"vLLM {vllm_names.version() or '(version unknown)'} has nothing here that tokentrace knows",
                "use a version that tokentrace knows",
            )

    def _install_missing(self) -> None:
        self._look_at = monotonic() + LOOK_S
        running = vllm_names.version()
        makers: dict[str, Make] = {}
        for part in _parts():
            makers.update(part.makers())
        for purpose in [one for one, state in self.status.items() if state == "not loaded"]:
            target, why = vllm_names.find(purpose, running)
            if not target:
                self.status[purpose] = why
                continue
            hook = makers[purpose](target)
            try:
                hook.install()
            except (LookupError, TypeError, AttributeError) as error:
                self.status[purpose] = f"missing: {error}"
                continue
            self._hooks.append(hook)
            self.status[purpose] = "on"


spine = Spine()


def _parts() -> tuple[Any, ...]:
    from tokentrace.agent.vllm_api import api
    from tokentrace.agent.vllm_core import core
    from tokentrace.agent.vllm_worker import works

    return api, core, works


class SpineGroup:
    """A group of vLLM: while it is on, its records go to the one who asked."""

    name = ""

    def __init__(self) -> None:
        self.on = False

    def enable(self, recorder: Emit, options: Mapping[str, Any] | None = None) -> None:
        if self.on:
            return
        spine.acquire()
        self.on = True
        spine.want(self.name, recorder)

    def disable(self) -> None:
        if not self.on:
            return
        self.on = False
        spine.unwant(self.name)
        spine.release()

    def facts(self) -> dict[str, Any]:
        return {"hooks": dict(spine.status), "version": vllm_names.version()}


class SelectGroup:
    """Not a layer: which requests the other groups are about. Options: see `Selection`."""

    def __init__(self) -> None:
        self.on = False

    def enable(self, recorder: Emit, options: Mapping[str, Any] | None = None) -> None:
        if not self.on:
            spine.acquire()
            self.on = True
        spine.choose(Selection(options))

    def disable(self) -> None:
        if self.on:
            self.on = False
            spine.choose(None)
            spine.release()


def loaded() -> bool:
    return "vllm" in sys.modules
