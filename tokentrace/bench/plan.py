"""What will be sent, to whom, and when; and what that can cost, before anything is sent."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokentrace.client.settings import Endpoint
from tokentrace.errors import UsageError
from tokentrace.wording import plural

MAX_REQUESTS = 100_000
MAX_CONCURRENCY = 1_024


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint with the name under which it is reported."""

    name: str
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Plan:
    """`count` requests to each target, after `warmup` that are not counted.

    Closed loop: `concurrency` requests are under way, each followed by the next. Open loop (`rate`, requests a second
    to each target): requests are sent at times fixed beforehand, whether or not earlier ones have ended;
    `concurrency` 0 then means no limit of its own. `vary` puts a number before the prompt, so that no prefix cache
    knows it.
    """

    prompt: str
    count: int = 20
    concurrency: int = 1
    rate: float | None = None
    even: bool = False  # arrivals at even distances instead of random ones
    warmup: int = 1
    max_tokens: int = 64
    temperature: float | None = None
    system: str = ""
    vary: bool = False
    seed: int = 0

    def check(self) -> None:
        """Raises UsageError for what cannot be done."""
        if not self.prompt.strip():
            raise UsageError("the prompt is empty", fix='for example tokentrace bench "Hi"')
        if not 1 <= self.count <= MAX_REQUESTS:
            raise UsageError(f"{self.count} requests cannot be sent", fix=f"-n takes 1 to {MAX_REQUESTS:,}")
        if not (1 if self.rate is None else 0) <= self.concurrency <= MAX_CONCURRENCY:
            raise UsageError(
                f"{self.concurrency} requests at a time are not possible", fix=f"--concurrency 1 to {MAX_CONCURRENCY:,}"
            )
        if self.rate is not None and not 0 < self.rate <= 10_000:
            raise UsageError(f"a rate of {self.rate:g} requests a second is not possible", fix="for example --rate 2")

    def messages(self, number: int) -> list[dict[str, Any]]:
        """Of request `number`; warm-up requests have negative ones."""
        text = f"{number} {self.prompt}" if self.vary else self.prompt
        start = [{"role": "system", "content": self.system}] if self.system else []
        return [*start, {"role": "user", "content": text}]

    def arrivals_s(self, targets: int) -> list[list[float]]:
        """Open loop: when each request of each target is due, seconds after the start, in order.

        Random ones follow a Poisson process, the same one for all targets, which take turns within one distance.
        """
        assert self.rate is not None
        drawn = random.Random(self.seed)
        due, times = 0.0, []
        for _ in range(self.count):
            times.append(due)
            due += 1 / self.rate if self.even else drawn.expovariate(self.rate)
        return [[time + number / targets / self.rate for time in times] for number in range(targets)]

    def announcement(self, targets: Sequence[Target]) -> str:
        """What will be sent and the most that can come of it, in one sentence."""
        requests = (self.count + self.warmup) * len(targets)
        warm = f" ({self.warmup} of them to warm up, not counted)" if self.warmup else ""
        each = f"{plural(self.count + self.warmup, 'request')}{warm}"
        if len(targets) > 1:
            names = " and ".join(t.name for t in targets)
            each = f"{requests:,} requests, {self.count + self.warmup:,}{warm} to each of {names}"
        else:
            each = f"{each} to {targets[0].name}"
        prompt = f"a prompt of {plural(len(self.prompt) + len(self.system), 'character')}"
        return (
            f"sending {each}: {prompt}, at most {plural(self.max_tokens, 'token')} back each, "
            f"{requests * self.max_tokens:,} in all; {self.way(len(targets))}"
        )

    def way(self, targets: int) -> str:
        """How requests follow each other, and what that means for the figures."""
        if self.rate is not None:
            kind = "even distances" if self.even else "random distances (Poisson)"
            limit = f", at most {self.concurrency} at a time" if self.concurrency else ""
            turns = " to each, in turn" if targets > 1 else ""
            return (
                f"open loop: {self.rate:g} requests a second{turns} at {kind}{limit}; times count from when a request "
                "was due, so that a server that stalls cannot hide the wait (coordinated omission)"
            )
        if targets > 1:
            return f"closed loop: rounds of {self.concurrency} at a time, the endpoints in turn"
        return (
            f"closed loop: {self.concurrency} at a time; a slow server also slows the asking, so waits that users "
            "would have at a fixed rate are not in these figures (--rate shows them)"
        )


@dataclass(slots=True)
class Job:
    """One request to send. `round` counts the turns of a comparison; `due_s` only in an open loop."""

    target: int
    number: int
    round: int = 0
    due_s: float | None = None
    warmup: bool = False


@dataclass(slots=True)
class Batch:
    """Jobs that run together; the next batch begins when all of this one have ended."""

    jobs: list[Job] = field(default_factory=list)
    workers: int = 1


def warmups(plan: Plan, targets: int) -> list[Batch]:
    """One after the other: the first requests pay for connections, compilation and caches."""
    jobs = [Job(t, number - plan.warmup, warmup=True) for number in range(plan.warmup) for t in range(targets)]
    return [Batch(jobs, 1)] if jobs else []


def batches(plan: Plan, targets: int) -> list[Batch]:
    """All counted requests in order."""
    if plan.rate is not None:
        due = plan.arrivals_s(targets)
        jobs = [Job(t, n, n, due[t][n]) for t in range(targets) for n in range(plan.count)]
        jobs.sort(key=lambda job: (job.due_s or 0.0, job.target))
        limit = plan.concurrency or min(len(jobs), MAX_CONCURRENCY)
        return [Batch(jobs, limit)]
    if targets == 1:
        jobs = [Job(0, n, n // plan.concurrency) for n in range(plan.count)]
        return [Batch(jobs, plan.concurrency)]
    found = []
    for first in range(0, plan.count, plan.concurrency):
        numbers = range(first, min(plan.count, first + plan.concurrency))
        for target in range(targets):
            jobs = [Job(target, n, first // plan.concurrency) for n in numbers]
            found.append(Batch(jobs, plan.concurrency))
    return found
