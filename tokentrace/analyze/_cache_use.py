"""What caches that tell nothing themselves did, as their files told the probe of layer 2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tokentrace.model import Trace
from tokentrace.probe import Finding

if TYPE_CHECKING:
    from tokentrace.analyze import Analysis

_TOLD = ("sentence", "evidence", "fix", "status")


def cache_use(trace: Trace, found: Analysis) -> Iterator[Finding]:
    """Each sentence once: what the server's start paid is the same in every pass."""
    told: dict[str, Finding] = {}
    for one in found.passes.values():
        facts = one.view.states.get(2, {}).get("facts") or {}
        for finding in facts.get("cache_findings") or ():
            sentence, evidence, fix, status = (str(finding.get(name) or "") for name in _TOLD)
            told.setdefault(sentence, Finding(2, sentence, evidence, fix, status or "ok"))
    yield from told.values()
