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
    """Of each pass what it did; of the server's start what the first pass found, for later ones count that pass in."""
    for number, one in enumerate(found.passes.values()):
        facts = one.view.states.get(2, {}).get("facts") or {}
        told = [*(facts.get("cache_start_findings") or ())] if number == 0 else []
        for finding in [*told, *(facts.get("cache_findings") or ())]:
            sentence, evidence, fix, status = (str(finding.get(name) or "") for name in _TOLD)
            yield Finding(2, sentence, evidence, fix, status or "ok")
