"""What the server told of the request by spans of its own, or that it did not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tokentrace.model import Trace
from tokentrace.probe import Finding
from tokentrace.wording import duration, listed

if TYPE_CHECKING:
    from tokentrace.analyze import Analysis

_FIGURES = (("queue_wait", "queue wait"), ("prefill", "prefill"), ("decode", "decode"))


def only_told(found: Analysis) -> bool:
    """Whether of the engine's work there are the server's own figures and nothing else: no step, no model."""
    facts = found.main.view.states.get(6, {}).get("facts") or {}
    return "server_decode_ns" in facts and not found.main.steps and not any(layer < 6 for layer, _ in found.main.own)


def own_account(trace: Trace, found: Analysis) -> Iterator[Finding]:
    """Of the headline pass; silent where nobody asked the server for its spans."""
    facts = found.main.view.states.get(6, {}).get("facts") or {}
    if facts.get("server_missing"):
        sentence = f"The server's own account is missing: {facts['server_missing']}."
        yield Finding(6, sentence, "", str(facts.get("server_fix") or ""), "unknown")
    told = [f"{words} {duration(facts[f'server_{key}_ns'])}" for key, words in _FIGURES if f"server_{key}_ns" in facts]
    if told:
        evidence = str(facts.get("server_told_by") or "")
        if facts.get("server_clock"):
            evidence += "; by another clock than ours, so its spans were moved into the middle of the request"
        yield Finding(6, f"By the server's own account: {listed(told)}.", evidence, "", "ok")
