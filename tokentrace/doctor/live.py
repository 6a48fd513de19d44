"""The live call: one token first, then a short reply that shows how it streams, with readings before, during and after.

The prompt is "Hi". Nothing is sent twice; the second call follows only when the first was answered whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from tokentrace.client import lookaround
from tokentrace.client.causes import one_line
from tokentrace.client.chat import chat
from tokentrace.client.settings import Endpoint
from tokentrace.client.wire import Timeouts
from tokentrace.doctor.check import Live, Reader, Sample, Sampler, Situation
from tokentrace.exchange import Exchange
from tokentrace.model import IdSource

#: Of the second call: enough to see whether the pieces come one by one.
STREAM_TOKENS = 16
#: Reasoning models of some services refuse a limit of one token, or answer nothing within it.
_MORE_TOKENS = 64
NOTE_ONE_TOKEN = f"the server refused a limit of one token; asked for {_MORE_TOKENS} instead"
#: A second call is not begun with less than this left.
_SECOND_NEEDS_S = 2.0
_IDLE_S = 0.5
_IDLE_MOST_S = 1.0
#: A call ends by the deadline: this much later so that the limit that it ran into has its own name, and looking around
#: after a failure may take a little longer.
_BEYOND_S = 0.3
_LOOK_BEYOND_S = 0.6
_AFTER_S = 1.5
#: The samplers' last reading leaves this much for the checks.
_CHECKS_S = 0.8

Phase = Literal["idle", "load", "after"]


class Sampling:
    """Reads every sampler on a thread of its own, so that a slow one holds nobody up."""

    def __init__(self, situation: Situation, samplers: Sequence[Sampler]) -> None:
        self.live = Live()
        self.phase: Phase = "idle"
        self._end = threading.Event()
        self._samplers = samplers
        self._ready: list[threading.Event] = []
        self._threads: list[threading.Thread] = []
        for sampler in samplers:
            ready = threading.Event()
            self._ready.append(ready)
            self._threads.append(
                threading.Thread(
                    target=self._read, args=(situation, sampler, ready), name=f"tokentrace-{sampler.name}", daemon=True
                )
            )

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        began = time.monotonic()
        for ready in self._ready:
            ready.wait(max(0.0, _IDLE_MOST_S - (time.monotonic() - began)))
        if self._reads_on():
            time.sleep(max(0.0, _IDLE_S - (time.monotonic() - began)))
        self.phase = "load"

    def _reads_on(self) -> bool:
        """Does a sampler read again and again? Without one there is no idle phase that anybody would see."""
        live = self.live
        return any(s.period_s is not None and live.of(s.name) and s.name not in live.errors for s in self._samplers)

    def stop(self, wait_s: float) -> Live:
        self.phase = "after"
        self._end.set()
        end = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return self.live

    def _read(self, situation: Situation, sampler: Sampler, ready: threading.Event) -> None:
        kept: list[Sample] = []
        self.live.samples[sampler.name] = kept
        reader: Reader | None = None
        try:
            reader = sampler.open(situation)
            if reader is None:
                return
            while True:
                last = self._end.is_set()
                phase = self.phase
                values = reader.read()
                kept.append(Sample(time.time_ns(), "after" if last else phase, values))
                ready.set()
                if last:
                    return
                self._end.wait(sampler.period_s)
        except Exception as error:  # noqa: BLE001 - a sampler that fails is told of, and ends nothing else
            self.live.errors[sampler.name] = one_line(str(error) or type(error).__name__)
        finally:
            ready.set()
            if reader is not None:
                reader.close()


def call(situation: Situation, endpoint: Endpoint, sampling: Sampling, progress: Callable[[str], None]) -> None:
    """Make the calls and put them into `sampling.live`. Returns by the situation's deadline, nearly."""
    live = sampling.live
    sampling.start()
    live.start_ns = time.time_ns()
    progress("asking for one token")
    ask_models = bool(endpoint.model)
    if not ask_models:
        named = lookaround.model_ids(
            endpoint, timeout_s=max(0.2, min(2.0, situation.left_s)), environ=situation.environ
        )
        ask_models = named is not None
        if named is not None and len(named) == 1:
            endpoint = replace(endpoint, model=named[0])
    live.first = _ask(situation, endpoint, 1, ask_models)
    if _wants_more(live.first) and situation.left_s > _SECOND_NEEDS_S:
        live.first = _ask(situation, endpoint, _MORE_TOKENS)
        live.first.notes.append(NOTE_ONE_TOKEN)
    if live.first.complete and situation.left_s > _SECOND_NEEDS_S:
        progress(f"asking for {STREAM_TOKENS} tokens, to see them stream")
        model = live.first.model or endpoint.model
        live.second = _ask(situation, replace(endpoint, model=model), STREAM_TOKENS)
    live.end_ns = time.time_ns()


def _ask(situation: Situation, endpoint: Endpoint, tokens: int, ask_models: bool = True) -> Exchange:
    ids = IdSource()
    left = max(0.2, min(situation.timeout_s, situation.left_s))
    return chat(
        # A server that wants to be asked again later is told of, not waited for.
        replace(endpoint, max_retries=0),
        [{"role": "user", "content": "Hi"}],
        trace_id=ids.trace_id(),
        span_id=ids.span_id(),
        max_tokens=tokens,
        timeouts=Timeouts(min(10.0, left), left, left, left + _BEYOND_S),
        environ=situation.environ,
        ask_models=ask_models,
        look_until=max(situation.deadline, time.monotonic()) + _LOOK_BEYOND_S,
    )


def _wants_more(x: Exchange) -> bool:
    said = f"{x.error} {x.error.detail}" if x.error is not None else ""
    words = ("max_tokens or model output limit", "max_completion_tokens", "max_tokens", "max_output_tokens")
    return x.status_code in (400, 422) and any(word in said for word in words) and not x.text


def finish(sampling: Sampling, situation: Situation) -> Live:
    left = situation.last - _CHECKS_S - time.monotonic()
    return sampling.stop(max(0.1, min(_AFTER_S, left)))
