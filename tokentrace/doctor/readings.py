"""The engine's figures while the live call ran, and what they say: idle, busy, stalled.

Progress is what counts: a health route may be green over a frozen engine, and slow over a healthy one that is busy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokentrace.doctor.check import Reader, Sample, Sampler, Situation
from tokentrace.doctor.look import ask, urls
from tokentrace.errors import EndpointError
from tokentrace.probes import _metrics
from tokentrace.probes._metrics import Engine
from tokentrace.wording import plural

NAME = "metrics"
#: Lines of known engines; a /metrics of megabytes of other things is not parsed.
_LINE = re.compile(r"^(?:vllm:|sglang:|tgi_|llamacpp:|tokentrace:)[^\n]*", re.MULTILINE)
_MOST_LINES = 5_000
#: A running engine that makes no token for this long is not merely in a long prefill of a small prompt.
_FLAT_S = 4.0

Verdict = Literal["idle", "working", "busy", "stalled", "unclear"]


@dataclass(frozen=True, slots=True)
class Progress:
    """What the readings say. `sentence` completes "the engine …"."""

    verdict: Verdict
    sentence: str
    evidence: tuple[str, ...] = ()
    waiting: int = 0
    running: int = 0


def engines(text: str) -> list[Engine]:
    """Empty: none of the known figures is there. Raises ValueError when a line of theirs cannot be read."""
    lines = [m[0] for m in _LINE.finditer(text)][:_MOST_LINES]
    return _metrics.parse("\n".join(lines) + "\n") if lines else []


class _Metrics:
    def __init__(self, situation: Situation) -> None:
        endpoint = situation.endpoint
        assert endpoint is not None
        self._endpoint, self._environ = endpoint, situation.environ
        self._url = urls(endpoint)["metrics"]

    def read(self) -> Mapping[str, Any]:
        """Raises EndpointError, ValueError: why there are no figures."""
        reply = ask(self._endpoint, self._url, self._environ, 2.0)
        if reply.error is not None:
            raise reply.error
        if reply.status != 200:
            raise EndpointError(f"/metrics answered with status {reply.status}")
        found = engines(reply.body.decode("utf-8", "replace"))
        if not found:
            raise ValueError("none of the known figures is on /metrics")
        return {"engines": found, "reasons": _waiting_for(reply.body)}

    def close(self) -> None:
        return


def _open(situation: Situation) -> Reader | None:
    if situation.endpoint is None or situation.offline:
        return None
    return _Metrics(situation)


SAMPLER = Sampler(NAME, _open, period_s=1.0)


def progress(samples: Sequence[Sample], call_failed: bool = False, own_tokens: int | None = 0) -> Progress:
    """Judge readings in order of time. `call_failed`: our own request got no token while they were taken. `own_tokens`:
    how many it got; None when that is not known."""
    if len(samples) < 2:
        return Progress("unclear", "was seen only once, so its progress is not known")
    first, last = samples[0], samples[-1]
    seconds = (last.time_ns - first.time_ns) / 1e9
    changes = _metrics.change(first.values["engines"], last.values["engines"])
    if any(change.restarted for change in changes):
        return Progress("unclear", "was started anew in between")
    made = _sum(change.counters.get("generation_tokens") for change in changes)
    now = last.values["engines"]
    running, waiting = (_sum(engine.gauges.get(name) for engine in now) for name in ("running", "waiting"))
    if running is None or waiting is None:
        return Progress("unclear", "does not tell how many requests run and wait")
    counts = f"{waiting} waiting, {running} running"
    evidence = (
        f"/metrics {len(samples)} times in {seconds:.1f} s: {counts}, "
        + ("its tokens are not counted" if made is None else f"{made} tokens made"),
        *last.values.get("reasons", ()),
        *_usage(now),
    )

    def found(verdict: Verdict, sentence: str) -> Progress:
        return Progress(verdict, sentence, evidence, waiting or 0, running or 0)

    others = None if made is None or own_tokens is None else max(0, made - own_tokens)
    if made and others == 0 and not waiting and not running:
        return found("idle", f"is idle but for this request's own {plural(made, 'token')}")
    if made:
        rate = _rate(made, others, seconds)
        if waiting or (call_failed and running > 1):
            return found("busy", f"is busy: {counts}, {rate}")
        return found("working", f"is at work: {counts}, {rate}")
    if made == 0 and seconds >= 1.0 and waiting and not running and all(_waits(s) for s in samples):
        return found("stalled", f"is stalled, not busy: {counts}, and no token was made in {seconds:.1f} s")
    if made == 0 and call_failed and running and seconds >= _FLAT_S:
        return found("stalled", f"is stalled: {counts}, and no token was made in {seconds:.1f} s")
    if made == 0 and call_failed and (silent := _unmoved_s(samples)) >= _FLAT_S:
        # vLLM counts a request when the engine has said something of it; a stopped one never does.
        return found(
            "stalled", f"is stalled: it has not taken the request ({counts}) nor made a token in {silent:.1f} s"
        )
    if waiting or (call_failed and running):
        return found("unclear", f"has {counts}; whether it moves could not be told in {seconds:.1f} s")
    return found("idle", "is idle" if not running else f"has {counts}")


def _rate(made: int, others: int | None, seconds: float) -> str:
    """What it does for others, where our own part is known. For one request it is no rate: most of the time is idle."""
    if others is None:
        return f"{plural(made, 'token')} in {seconds:.1f} s, this request's own among them"
    whose = " for others" if others != made else ""
    rate = f"{others / seconds:.0f} tokens/s" if seconds >= 0.5 and others >= seconds else plural(others, "token")
    return rate + whose


def _unmoved_s(samples: Sequence[Sample]) -> float:
    """For how many seconds of the call no request was running or waiting; 0 when one was."""
    load = [s for s in samples if s.phase == "load"]
    figures = [_sum(e.gauges.get(name) for e in s.values["engines"]) for s in load for name in ("running", "waiting")]
    return (load[-1].time_ns - load[0].time_ns) / 1e9 if load and not any(figures) else 0.0


def _waits(sample: Sample) -> bool:
    found: list[Engine] = sample.values["engines"]
    return bool(_sum(e.gauges.get("waiting") for e in found)) and not _sum(e.gauges.get("running") for e in found)


def _sum(values: Any) -> int | None:
    """Of several engines behind one address; None when none of them tells."""
    known = [v for v in values if v is not None]
    return round(sum(known)) if known else None


def _waiting_for(body: bytes) -> list[str]:
    """vLLM may say what its waiting requests wait for."""
    pattern = rb'^vllm:num_requests_waiting_by_reason\{[^}\n]*reason="(\w{1,40})"[^}\n]*\} ([0-9.e+]+)$'
    found = re.findall(pattern, body, re.MULTILINE)[:8]
    return [f"{float(n):.0f} wait because of {reason.decode()}" for reason, n in found if float(n)]


def _usage(found: Sequence[Engine]) -> list[str]:
    return [told for engine in found if (told := _metrics.kv_told(engine))]
