"""Two kinds of engine in one process: groups that watch both under one name.

For a program that calls transformers' `generate` and vLLM's `LLM` itself. vLLM's part waits until vLLM is loaded; what
a process of its own runs for it is that process's agent's.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tokentrace.agent.core import Bulk, Emit, Group, GroupUnavailable
from tokentrace.agent.vllm_names import MODEL_MODULES

_VLLM = {
    "http": "vllm_groups:HttpGroup",
    "tokenizer": "vllm_groups:TokenizerGroup",
    "engine": "vllm_groups:EngineGroup",
    "model": "vllm_groups:ModelGroup",
    "modules": "vllm_modules:ModulesGroup",
}


class Both:
    """One group out of two. It is there when either of them is."""

    def __init__(self, first: Group, second: Group) -> None:
        self._parts = (first, second)
        self._on: list[Group] = []

    def enable(self, recorder: Emit, options: Mapping[str, Any] | None = None) -> None:
        if self._on:
            return
        refused: Exception | None = None
        for part in self._parts:
            try:
                part.enable(recorder, options)
                self._on.append(part)
            except GroupUnavailable as error:
                refused = refused or error
        if not self._on and refused is not None:
            raise refused

    def disable(self) -> None:
        on, self._on = self._on, []
        for part in reversed(on):
            with contextlib.suppress(Exception):  # the other one must be put back all the same
                part.disable()

    def bulk(self) -> list[Bulk]:
        return [one for part in self._parts for one in getattr(part, "bulk", list)()]

    def open(self) -> list[str]:
        return [one for part in self._parts for one in getattr(part, "open", list)()]

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part in self._parts:
            found.update(getattr(part, "facts", dict)())
        return found


def with_vllm(factories: Mapping[str, Callable[[], Group]]) -> dict[str, Callable[[], Group]]:
    """The same groups, which also watch vLLM in this process, whenever it is loaded."""
    return {name: _both(make, _VLLM[name]) if name in _VLLM else make for name, make in factories.items()}


def operators(otherwise: Callable[[], Group]) -> Group:
    """The group "ops" of a process that may load vLLM later: around vLLM's steps where its model runs here, `otherwise`
    where vLLM is not loaded. Raises GroupUnavailable while its model runs elsewhere."""
    if "vllm" not in sys.modules:
        return otherwise()
    if not any(name in sys.modules for name in MODEL_MODULES):
        raise GroupUnavailable("no model of vLLM runs in this process", "")
    from tokentrace.agent.vllm_ops import OpsGroup

    return OpsGroup()


def _both(make: Callable[[], Group], target: str) -> Callable[[], Group]:
    def both() -> Group:
        module, _, name = target.partition(":")
        return Both(make(), getattr(import_module(f"{__package__}.{module}"), name)())

    return both
