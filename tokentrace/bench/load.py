"""Sends the requests, each on a thread of its own, and stops at once when told to.

A thread that waits for bytes costs nothing, and the time of a chunk is taken when its bytes leave the socket. What the
client itself costs is measured while it runs (`own_cost`), not assumed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokentrace.bench.measured import Measured, measure
from tokentrace.bench.plan import Batch, Job, Plan, Target
from tokentrace.client.chat import chat
from tokentrace.exchange import Exchange
from tokentrace.model import IdSource

#: So many failures before the first success end the run: the rest would only fail as well.
GIVE_UP = 10
_TURN_S = 0.1

Tell = Callable[[Measured], None]


@dataclass(slots=True)
class Sent:
    """What came back. `slowest` holds, by target, the exchange that took longest of those that worked."""

    measured: list[Measured] = field(default_factory=list)
    slowest: dict[int, tuple[int, Job, Exchange]] = field(default_factory=dict)
    models: dict[int, str] = field(default_factory=dict)
    notes: dict[int, list[str]] = field(default_factory=dict)
    first_ns: int = 0
    last_ns: int = 0
    interrupted: bool = False
    gave_up: bool = False


class Sender:
    """Sends batches of one plan, one after the other. `run` may be called several times (warm-up, then the rest)."""

    def __init__(self, plan: Plan, targets: Sequence[Target], tell: Tell | None = None) -> None:
        self._plan, self._targets, self._tell = plan, list(targets), tell
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._ids = IdSource()
        self._failed: list[BaseException] = []

    def run(self, batches: Sequence[Batch]) -> Sent:
        """Send all jobs. Ctrl-C ends the requests under way and gives what there is, with `interrupted` True."""
        sent = Sent(first_ns=time.time_ns())
        try:
            for batch in batches:
                self._batch(batch, sent)
                if self._stop.is_set():
                    break
        except KeyboardInterrupt:
            self._stop.set()
            sent.interrupted = True
        sent.last_ns = time.time_ns()
        if self._failed:
            raise self._failed[0]
        with self._lock:
            sent.measured.sort(key=lambda m: (m.start_ns, m.target))
        return sent

    def _batch(self, batch: Batch, sent: Sent) -> None:
        waiting: queue.SimpleQueue[tuple[Job, int | None] | None] = queue.SimpleQueue()
        workers: list[threading.Thread] = []
        idle = threading.Semaphore(0)

        def work() -> None:
            while True:
                idle.release()
                item = waiting.get()
                if item is None or self._stop.is_set():
                    return
                try:
                    self._one(*item, sent)
                except BaseException as error:  # noqa: BLE001 - raised again where the caller sees it
                    self._failed.append(error)
                    self._stop.set()
                    return

        def put(job: Job, due_ns: int | None) -> None:
            # A thread more only when none is free: an open loop may need two or two hundred.
            if not idle.acquire(blocking=False) and len(workers) < batch.workers:
                thread = threading.Thread(target=work, daemon=True, name=f"bench-{len(workers)}")
                workers.append(thread)
                thread.start()
                idle.acquire()
            waiting.put((job, due_ns))

        try:
            start_ns, start = time.time_ns(), time.monotonic()
            for job in batch.jobs:
                due_ns = None
                if job.due_s is not None:
                    self._sleep_until(start + job.due_s)
                    due_ns = start_ns + int(job.due_s * 1e9)
                if self._stop.is_set():
                    break
                put(job, due_ns)
            for _ in workers:
                waiting.put(None)
            self._join(workers)
        except KeyboardInterrupt:
            self._stop.set()
            for _ in workers:
                waiting.put(None)
            self._join(workers)
            raise

    def _sleep_until(self, at: float) -> None:
        while (left := at - time.monotonic()) > 0:
            if self._stop.wait(min(left, _TURN_S)):
                return

    def _join(self, workers: Sequence[threading.Thread]) -> None:
        for thread in workers:
            while thread.is_alive():
                thread.join(_TURN_S)  # in turns, so that Ctrl-C is noticed

    def _one(self, job: Job, due_ns: int | None, sent: Sent) -> None:
        plan, target = self._plan, self._targets[job.target]
        more: dict[str, Any] = {} if plan.temperature is None else {"temperature": plan.temperature}
        with self._lock:
            trace_id, span_id = self._ids.trace_id(), self._ids.span_id()
        cpu = time.thread_time_ns()
        exchange = chat(
            target.endpoint,
            plan.messages(job.number),
            trace_id=trace_id,
            span_id=span_id,
            max_tokens=plan.max_tokens,
            should_stop=self._stop.is_set,
            **more,
        )
        if exchange.interrupted:
            return
        found = measure(job, exchange, due_ns, time.thread_time_ns() - cpu)
        with self._lock:
            self._keep(job, found, exchange, sent)
        if self._tell is not None:
            self._tell(found)

    def _keep(self, job: Job, found: Measured, exchange: Exchange, sent: Sent) -> None:
        sent.measured.append(found)
        if found.ok:
            best = sent.slowest.get(job.target)
            if best is None or found.total_ns > best[0]:
                sent.slowest[job.target] = found.total_ns, job, exchange
            sent.models.setdefault(job.target, exchange.response_model or exchange.model)
        notes = sent.notes.setdefault(job.target, [])
        notes += [note for note in exchange.notes if note not in notes and len(notes) < 20]
        if len(sent.measured) >= GIVE_UP and not any(m.ok for m in sent.measured):
            sent.gave_up = True
            self._stop.set()
