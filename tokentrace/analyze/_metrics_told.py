"""What the server's /metrics told before and after the request: the whole of what is seen of its queue from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from tokentrace.analyze._passes import name_of
from tokentrace.model import DOWN, Trace
from tokentrace.probe import Finding
from tokentrace.wording import duration, listed, plural, share

if TYPE_CHECKING:
    from tokentrace.analyze import Analysis

SPAN = "engine metrics"
_OF = "tokentrace.metrics."
_TIMES = (
    ("queue", "queue wait"), ("prefill", "prefill"), ("decode", "decode"), ("time_to_first_token", "first token"),
    ("inter_token_latency", "between tokens"), ("time_per_output_token", "time per token"),
    ("inference_per_token", "inference per token"), ("e2e", "whole request"),
)  # fmt: skip


def form(trace: Trace, rows: list[int], way: str) -> tuple[str, str]:
    """The queue's row from the first engine's figures; "" where there are none."""
    row = next((r for r in rows if name_of(trace, r) == SPAN), None)
    if row is None:
        return "", ""
    told = {str(name).removeprefix(_OF): value for name, value in trace.attributes(row).items()}
    whose = "" if told.get("alone") else "server's: "
    if way == DOWN:
        times = [f"queue {duration(1e9 * told['queue_s'])}"] if "queue_s" in told else []
        state = [f"{told[key]} {key}" for key in ("running", "waiting") if key in told]
        usage = [f"KV cache {share(told['kv_usage'], 1)}"] if _is_share(told.get("kv_usage")) else []
        hits = [f"{told['cached_tokens']} from prefix cache"] if told.get("cached_tokens") else []
        taken = f"{whose}{plural(told['prompt_tokens'], 'prompt token')}" if told.get("prompt_tokens") else ""
        out = ", ".join([*times, *usage, *state, *hits])
        return taken, f"{whose}{out}" if out else ""
    made = f"{whose}{plural(told['generation_tokens'], 'token')} generated" if told.get("generation_tokens") else ""
    names = {"time_to_first_token": "first", "time_per_output_token": "each"}
    if "time_per_output_token_s" not in told:
        names["inter_token_latency"] = "between"
    took = [f"{word} {duration(1e9 * told[f'{key}_s'])}" for key, word in names.items() if told.get(f"{key}_s")]
    return made, whose + ", ".join(took) if took else ""


def told_by_metrics(trace: Trace, found: Analysis) -> Iterator[Finding]:
    """One sentence for each engine, with whose figures they are. Silent where the engine was seen from inside."""
    facts = found.main.view.states.get(6, {}).get("facts") or {}
    for engine in facts.get("engines") or ():
        of = f" of {engine['engine']}" if engine.get("engine") else ""
        evidence = str(facts.get("metrics_note") or "") if not of else str(engine.get("note") or "")
        if parts := _parts(engine):
            yield Finding(6, f"The server's /metrics{of}: {listed(parts, 20)}.", evidence, "", "ok")


def _parts(engine: Mapping[str, Any]) -> list[str]:
    parts = [f"{words} {duration(1e9 * engine[f'{key}_s'])}" for key, words in _TIMES if f"{key}_s" in engine]
    for key in ("running", "waiting"):
        if key in engine:
            before = engine.get(f"{key}_before")
            parts.append(f"{engine[key]} {key}" + (f" ({before} before)" if before is not None else ""))
    if _is_share(engine.get("kv_usage")):
        before = engine.get("kv_usage_before")
        text = f"KV cache {share(engine['kv_usage'], 1)} full"
        parts.append(text + (f" ({share(before, 1)} before)" if _is_share(before) else ""))
    for key, words in (("prompt_tokens", "prompt token"), ("generation_tokens", "generated token")):
        if key in engine:
            parts.append(plural(engine[key], words))
    if "cached_tokens" in engine:
        parts.append(f"{plural(engine['cached_tokens'], 'prompt token')} from the prefix cache")
    if engine.get("preemptions"):
        parts.append(plural(engine["preemptions"], "preemption"))
    return parts


def _is_share(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and 0 <= value <= 1
