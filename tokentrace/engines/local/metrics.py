"""What the engine counts, and its Prometheus text. Names follow vLLM's with the prefix `tokentrace:`.

Counting costs a few additions a token; prometheus_client is imported when /metrics is first asked.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)


@dataclass(slots=True)
class Histogram:
    """Counts by upper bound, in seconds."""

    bounds: tuple[float, ...] = _SECONDS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        rows, running = [], 0
        for bound, count in zip([*self.bounds, float("inf")], self.counts, strict=True):
            running += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), running))
        return rows


@dataclass(slots=True)
class Metrics:
    """Counted on the event loop only, so no lock is needed."""

    model_name: str
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)  # by finish reason: stop, length, abort, error
    time_to_first_token: Histogram = field(default_factory=Histogram)
    inter_token_latency: Histogram = field(default_factory=Histogram)
    e2e_latency: Histogram = field(default_factory=Histogram)


class Collector:
    """Turns the counters and the engine's state of this moment into Prometheus metric families."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def text(self) -> bytes:
        """The exposition text (format 0.0.4)."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        engine, metrics = self._engine, self._engine.metrics
        labels, values = ("model_name", "engine"), (metrics.model_name, "0")
        running, waiting = engine.queue
        used, total = engine.kv_blocks
        for name, text, value in (
            ("num_requests_running", "Number of requests in model execution batches.", running),
            ("num_requests_waiting", "Number of requests waiting to be processed.", waiting),
            ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", used / total if total else 0.0),
            ("kv_cache_blocks_used", "KV-cache blocks that requests hold.", used),
            ("kv_cache_blocks_total", "KV-cache blocks in all.", total),
        ):
            gauge = GaugeMetricFamily(f"tokentrace:{name}", text, labels=labels)
            gauge.add_metric(values, value)
            yield gauge
        for name, text, value in (
            ("prompt_tokens", "Number of prompt tokens processed.", metrics.prompt_tokens),
            ("generation_tokens", "Number of generation tokens processed.", metrics.generation_tokens),
        ):
            counter = CounterMetricFamily(f"tokentrace:{name}", text, labels=labels)
            counter.add_metric(values, value)
            yield counter
        success = CounterMetricFamily(
            "tokentrace:request_success", "Count of finished requests by reason.", labels=(*labels, "finished_reason")
        )
        for reason in sorted({"stop", "length", "abort", "error", *metrics.finished}):
            success.add_metric((*values, reason), metrics.finished[reason])
        yield success
        for name, text, histogram in (
            ("time_to_first_token_seconds", "Time to first token in seconds.", metrics.time_to_first_token),
            ("inter_token_latency_seconds", "Time between tokens in seconds.", metrics.inter_token_latency),
            ("e2e_request_latency_seconds", "Time of whole requests in seconds.", metrics.e2e_latency),
        ):
            family = HistogramMetricFamily(f"tokentrace:{name}", text, labels=labels)
            family.add_metric(values, histogram.cumulative(), histogram.total)
            yield family
        info = GaugeMetricFamily(
            "tokentrace:cache_config_info",
            "KV-cache configuration.",
            labels=("block_size", "num_gpu_blocks", "cache_dtype", "engine"),
        )
        info.add_metric((str(engine.block_tokens), str(total), engine.dtype, "0"), 1)
        yield info
