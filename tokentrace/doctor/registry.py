"""Finds the checks: every module's tuple `CHECKS` (and `SAMPLERS`), imported when they are first needed."""

from __future__ import annotations

import importlib
from functools import lru_cache

from tokentrace.doctor import machine
from tokentrace.doctor.check import Check, Sampler
from tokentrace.errors import UsageError

#: Modules of checks, from the outside in. Those of layers 5 to 1 are named by `machine.MODULES`.
MODULES = (
    "tokentrace.doctor.settings",
    "tokentrace.doctor.way",
    "tokentrace.doctor.request",
    "tokentrace.doctor.stream",
    "tokentrace.doctor.tokenizer",
    "tokentrace.doctor.engine",
    "tokentrace.doctor.server_process",
    "tokentrace.doctor.local_model",
    *machine.MODULES,
    "tokentrace.doctor.otlp",
)


@lru_cache(maxsize=1)
def checks() -> tuple[Check, ...]:
    """All checks, layer 8 first and the plumbing last, by id within a layer."""
    found = [check for name in MODULES for check in importlib.import_module(name).CHECKS]
    return tuple(sorted(found, key=lambda c: (c.layer == 0, -c.layer, c.id)))


@lru_cache(maxsize=1)
def samplers() -> tuple[Sampler, ...]:
    found = [getattr(importlib.import_module(name), "SAMPLERS", ()) for name in MODULES]
    return tuple(sampler for group in found for sampler in group)


def by_id(check_id: str) -> Check:
    """Raises UsageError for an id that no check has."""
    wanted = check_id.strip().upper()
    for check in checks():
        if check.id == wanted:
            return check
    near = [c.id for c in checks() if wanted[:4] and c.id.startswith(wanted[:3])]
    raise UsageError(
        f"there is no check {check_id[:40]!r}",
        fix=f"ids look like TT801; of that layer: {', '.join(near[:12])}" if near else "ids look like TT801",
    )
