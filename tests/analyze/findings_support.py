"""Passes analysed, and findings looked up in what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.records import cold_warm_deep

from tokentrace.analyze import Analysis, analyze
from tokentrace.model import IdSource
from tokentrace.probe import Finding
from tokentrace.stitch import PassRecords, stitch


def run(passes: Sequence[PassRecords]) -> Analysis:
    return analyze(stitch(passes, ids=IdSource(9)))


def sentences(found: Analysis) -> str:
    return "\n".join(f"{f.status}: {f.sentence} ({f.evidence})" for f in found.findings)


def one(found: Analysis, word: str) -> Finding:
    fitting = [f for f in found.findings if word in f.sentence]
    assert len(fitting) == 1, sentences(found)
    return fitting[0]


def three(**deep: Any) -> list[PassRecords]:
    """A default run, whose deep pass is changed."""
    return cold_warm_deep(IdSource(4), deep=deep)
