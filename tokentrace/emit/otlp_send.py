"""Send a trace to an OTLP receiver and prove what arrived, by reading every answer."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokentrace.emit._otlp_outcome import ACCEPTED, REFUSED, RETRY, SPLIT, Outcome, Transport, Unusable
from tokentrace.emit._shown import shown
from tokentrace.emit.otlp_encode import Batch, batches
from tokentrace.emit.otlp_target import GRPC, OtlpTarget
from tokentrace.model import Trace

_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.25, 5.0

__all__ = ["Delivery", "OtlpTarget", "send"]


@dataclass(slots=True)
class Delivery:
    """What became of a trace's spans: produced = accepted + rejected + skipped.

    `rejected` counts every span without a receiver's word that it has it, whether refused or never answered;
    `skipped` those that the user's settings forbid to send. `message` is one sentence, empty when all arrived
    without a remark; `fix` says what to change.
    """

    produced: int
    accepted: int = 0
    rejected: int = 0
    skipped: int = 0
    message: str = ""
    fix: str = ""

    @property
    def ok(self) -> bool:
        """Did every span arrive?"""
        return self.accepted == self.produced


def send(
    trace: Trace,
    target: OtlpTarget,
    *,
    progress: Callable[[int, int], None] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Delivery:
    """Send all spans, as `_shown` has them; `progress(accepted, produced)` is called after every batch.

    Never raises because of a receiver: an absent, slow, refusing or partial one is told in the Delivery. Tries
    again with growing pauses where the OTLP specification allows it, for `target.patience_s` without a batch
    accepted and `target.total_s` in all.
    """
    produced = len(trace)
    if reason := target.disabled or _sampled_out(trace, target.ratio):
        message = f"nothing was sent, because {reason}"
        return Delivery(produced, skipped=produced, message=message, fix="unset that variable to send the trace")
    try:
        transport = _transport(target)
    except Unusable as error:
        return Delivery(produced, rejected=produced, message=f"nothing was sent, because {error}", fix=error.fix)
    try:
        delivery = _Sender(shown(trace), target, transport, progress).run(environ)
    finally:
        transport.close()
    for secret in filter(None, target.headers.values()):
        # A receiver may repeat what it was sent.
        for part in {secret, secret.rpartition(" ")[2]}:
            if len(part) >= 4:
                delivery.message = delivery.message.replace(part, "***")
                delivery.fix = delivery.fix.replace(part, "***")
    return delivery


def _transport(target: OtlpTarget) -> Transport:
    if target.protocol == GRPC:
        from tokentrace.emit._otlp_grpc import GrpcTransport

        return GrpcTransport(target)
    from tokentrace.emit._otlp_http import HttpTransport

    return HttpTransport(target)


def _sampled_out(trace: Trace, ratio: float) -> str:
    """The SDK's TraceIdRatioBased: the lower 64 bits of the trace id against the share."""
    if trace.trace_id & 0xFFFFFFFFFFFFFFFF < round(ratio * 2**64):
        return ""
    return f"OTEL_TRACES_SAMPLER takes only {ratio:g} of all traces, and this one is not among them"


class _Sender:
    def __init__(
        self, trace: Trace, target: OtlpTarget, transport: Transport, progress: Callable[[int, int], None] | None
    ) -> None:
        self._trace = trace
        self._target = target
        self._transport = transport
        self._progress = progress
        self._delivery = Delivery(len(trace))
        self._first_failure: Outcome | None = None
        self._remark = ""
        self._cut = 0
        self._end = 0.0
        self._last_success = 0.0

    def run(self, environ: Mapping[str, str] | None) -> Delivery:
        delivery = self._delivery
        self._last_success = time.monotonic()
        self._end = self._last_success + self._target.total_s
        for batch in batches(self._trace, environ=environ):
            self._cut += batch.cut
            if not self._deliver(batch):
                break
        # Whatever was not accepted counts as rejected, sent or not.
        delivery.rejected = delivery.produced - delivery.accepted
        self._explain()
        return delivery

    def _deliver(self, batch: Batch) -> bool:
        """False when no other batch has a chance."""
        waiting = deque([batch])
        while waiting:
            part = waiting.popleft()
            outcome = self._try(part)
            if outcome.kind == SPLIT and part.spans > 1:
                waiting.extendleft(reversed(part.halves()))
                continue
            if outcome.kind == ACCEPTED:
                self._accept(part, outcome)
                continue
            self._first_failure = self._first_failure or outcome
            if outcome.kind not in (REFUSED, SPLIT):
                return False
        return True

    def _accept(self, part: Batch, outcome: Outcome) -> None:
        rejected = min(outcome.rejected, part.spans)
        self._delivery.accepted += part.spans - rejected
        if rejected:
            self._first_failure = self._first_failure or outcome
        elif outcome.message:
            self._remark = self._remark or outcome.message
        if self._progress:
            self._progress(self._delivery.accepted, self._delivery.produced)

    def _try(self, part: Batch) -> Outcome:
        """Send one batch, again and again while that is allowed and of use."""
        body = part.body()
        pause = _FIRST_BACKOFF_S
        began = time.monotonic()
        while True:
            left = self._end - time.monotonic()
            outcome = self._transport.send(body, max(0.05, min(self._target.timeout_s, left)))
            now = time.monotonic()
            if outcome.kind != RETRY:
                if outcome.kind == ACCEPTED:
                    self._last_success = now
                return outcome
            # Half to whole of the pause, so that many senders do not come back at once.
            wait = outcome.retry_after_s
            if wait is None:
                wait = pause * random.uniform(0.5, 1.0)
            limit = min(self._end, self._last_success + self._target.patience_s)
            if outcome.patience_s is not None:
                limit = min(limit, began + outcome.patience_s)
            if now + wait > limit:
                return outcome
            time.sleep(wait)
            pause = min(pause * 2, _LONGEST_BACKOFF_S)

    def _explain(self) -> None:
        delivery, failure = self._delivery, self._first_failure
        notes = []
        if self._cut:
            notes.append(f"{self._cut} spans were too large for one request and were cut (attribute tokentrace.cut)")
        if failure:
            count = f"{delivery.accepted:,} of {delivery.produced:,} spans arrived"
            delivery.message = f"{count}: the receiver at {self._target.shown} {failure.message}"
            delivery.fix = failure.fix
        elif self._remark:
            delivery.message = f"all spans arrived; the receiver at {self._target.shown} {self._remark}"
        elif notes:
            delivery.message = "all spans arrived"
        if notes:
            delivery.message = "; ".join([delivery.message, *notes])
