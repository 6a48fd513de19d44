"""The outcome as data: what the terminal prints, the page shows and `--json` gives.

    schema, sent (the announcement), loop {kind, concurrency, rate, requests, warmup, max_tokens, seed}, interrupted,
    targets [{name, url, model, requests, ok, success {share, low, high}, wall_ns, requests_per_s, output_tokens,
              output_tokens_per_s, figures {ttft, wait, inter_token, mean_inter_token, total, tokens_per_s, delay:
              {unit, count, requests, mean, min, max, bound ("", "at least" or "at most"),
               p50, p90, p99: {value, low, high, why}}},
              errors [{check, title, count, share, message, fix, layer}], server {…} or null, chunks_a_token, notes,
              warmup {requests, ok, first_total_ns}, slowest}],
    comparison [{metric, …}], verdict, client {…}, requests [one entry a request], notes

Times are in ns, rates in tokens or requests a second; null means not known, never zero. Keys may be added within a
version.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokentrace.bench.measured import Measured
from tokentrace.bench.own_cost import OwnCost
from tokentrace.bench.plan import Plan, Target
from tokentrace.bench.server_figures import ServerFigures
from tokentrace.bench.stats import Figure, figure, success_interval
from tokentrace.bench.versus import Versus
from tokentrace.client.causes import CAUSES
from tokentrace.errors import UsageError

SCHEMA = "tokentrace.bench/1"
COLUMNS = (
    "target", "number", "round", "start_ns", "delay_ns", "ttft_ns", "wait_ns", "mean_between_ns", "total_ns",
    "input_tokens", "output_tokens", "chunks", "tokens_per_s", "exact", "pace_why", "ok", "check", "error",
    "status", "finish_reason", "cpu_ns",
)  # fmt: skip


@dataclass(slots=True)
class ErrorGroup:
    """Failures of one cause; `message` and `fix` are those of the first."""

    check: str
    title: str
    count: int
    share: float
    message: str
    fix: str
    layer: int

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class TargetResult:
    """One endpoint's requests and figures."""

    name: str
    url: str
    model: str
    measured: list[Measured]
    warm: list[Measured]
    wall_ns: int
    figures: dict[str, Figure]
    errors: list[ErrorGroup]
    server: ServerFigures | None = None
    slowest: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> list[Measured]:
        return [m for m in self.measured if m.ok]

    @property
    def output_tokens(self) -> int | None:
        """As the server counted them; None when it did not for one of the replies."""
        counts = [m.output_tokens for m in self.good if m.output_tokens is not None]
        return sum(counts) if counts and len(counts) == len(self.good) else None

    @property
    def chunks_a_token(self) -> float | None:
        """Chunks with text for each token that was counted; below 1, a chunk carries several."""
        tokens, chunks = self.output_tokens, sum(m.chunks for m in self.good)
        return chunks / tokens if tokens else None

    def to_json(self) -> dict[str, Any]:
        good, tokens, seconds = len(self.good), self.output_tokens, self.wall_ns / 1e9
        low, high = success_interval(good, len(self.measured))
        known = bool(self.measured)
        return {
            "name": self.name,
            "url": self.url,
            "model": self.model,
            "requests": len(self.measured),
            "ok": good,
            "success": {"share": good / len(self.measured), "low": low, "high": high} if known else None,
            "wall_ns": self.wall_ns,
            "requests_per_s": good / seconds if seconds > 0 else None,
            "output_tokens": tokens,
            "output_tokens_per_s": tokens / seconds if tokens is not None and seconds > 0 else None,
            "figures": {name: one.as_dict() for name, one in self.figures.items()},
            "errors": [group.as_dict() for group in self.errors],
            "server": self.server.as_dict() if self.server is not None else None,
            "chunks_a_token": self.chunks_a_token,
            "warmup": {
                "requests": len(self.warm),
                "ok": sum(m.ok for m in self.warm),
                "first_total_ns": self.warm[0].total_ns if self.warm else None,
            },
            "slowest": self.slowest or None,
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class Result:
    """See the module's docstring."""

    plan: Plan
    sent: str
    targets: list[TargetResult]
    comparison: list[Versus] = field(default_factory=list)
    verdict: str = ""
    client: OwnCost | None = None
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Did a request fail, or an endpoint answer none?"""
        return any(not target.good or len(target.good) < len(target.measured) for target in self.targets)

    def to_json(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "schema": SCHEMA,
            "prompt": plan.prompt,
            "sent": self.sent,
            "loop": {
                "kind": "closed" if plan.rate is None else "open",
                "concurrency": plan.concurrency or None,
                "rate": plan.rate,
                "arrivals": None if plan.rate is None else "even" if plan.even else "poisson",
                "requests": plan.count,
                "warmup": plan.warmup,
                "max_tokens": plan.max_tokens,
                "seed": plan.seed,
            },
            "interrupted": self.interrupted,
            "targets": [target.to_json() for target in self.targets],
            "comparison": [one.as_dict() for one in self.comparison],
            "verdict": self.verdict,
            "client": self.client.as_dict() if self.client is not None else None,
            "requests": self.rows(),
            "notes": list(self.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One entry a request, in the order they were sent."""
        found = sorted((m for t in self.targets for m in t.measured), key=lambda m: (m.start_ns, m.target))
        return [{**{n: getattr(m, n) for n in COLUMNS}, "target": self.targets[m.target].name} for m in found]

    def write_csv(self, path: Path) -> None:
        """One line a request. Raises UsageError when the file cannot be written."""
        try:
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows({k: _cell(v) for k, v in row.items()} for row in self.rows())
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}", fix="give another path") from error


def _cell(value: Any) -> Any:
    """A spreadsheet runs what begins like a formula; an error's text is the server's."""
    return "'" + value if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def of_target(
    target: Target,
    number: int,
    model: str,
    measured: Sequence[Measured],
    warm: Sequence[Measured],
    seed: int,
    rounds: bool = False,
) -> TargetResult:
    """Work out the figures of one target's requests. `rounds`: they were sent in rounds, in turn with another's."""
    mine = [m for m in measured if m.target == number]
    good = [m for m in mine if m.ok]

    def single(read: Callable[[Measured], float | None], unit: str = "ns") -> Figure:
        return figure([[value] if (value := read(m)) is not None else [] for m in good], unit, seed)

    figures = {
        "ttft": single(lambda m: m.ttft_ns),
        "wait": single(lambda m: m.wait_ns),
        "inter_token": figure([m.between_ns for m in good], "ns", seed),
        "mean_inter_token": single(lambda m: m.mean_between_ns),
        "total": single(lambda m: m.total_ns),
        "tokens_per_s": single(lambda m: m.tokens_per_s, "tokens/s"),
    }
    if any(m.mean_between_ns is not None and not m.exact for m in good):
        figures["mean_inter_token"].bound, figures["tokens_per_s"].bound = "at least", "at most"
    if any(m.delay_ns for m in mine):
        figures["delay"] = single(lambda m: m.delay_ns)
    return TargetResult(
        name=target.name,
        url=target.endpoint.base_url,
        model=model,
        measured=mine,
        warm=[m for m in warm if m.target == number],
        wall_ns=_wall(mine, rounds),
        figures=figures,
        errors=_errors(mine),
    )


def _wall(measured: Sequence[Measured], in_rounds: bool) -> int:
    """From the first request to the end of the last; of rounds only the rounds of this target count."""
    if not in_rounds:
        return max((m.end_ns for m in measured), default=0) - min((m.start_ns for m in measured), default=0)
    rounds: dict[int, tuple[int, int]] = {}
    for m in measured:
        start, end = rounds.get(m.round, (m.start_ns, m.end_ns))
        rounds[m.round] = min(start, m.start_ns), max(end, m.end_ns)
    total, reached = 0, 0
    for start, end in sorted(rounds.values()):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _errors(measured: Sequence[Measured]) -> list[ErrorGroup]:
    groups: dict[str, ErrorGroup] = {}
    for m in measured:
        if m.ok:
            continue
        cause = CAUSES.get(m.check)
        group = groups.get(m.check)
        if group is None:
            title = cause.title if cause else "the reply was not whole"
            group = ErrorGroup(m.check, title, 0, 0.0, m.error, m.fix, cause.layer if cause else 0)
            groups[m.check] = group
        group.count += 1
        group.share = group.count / len(measured)
    return sorted(groups.values(), key=lambda g: (-g.count, g.check))
