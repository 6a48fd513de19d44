"""What a serving engine tells on /metrics, whatever it calls it: vLLM old and new, SGLang, the local engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: our name -> names in use. Gauges are read as they stand; of a histogram the sum and the count.
GAUGES = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "tokentrace:num_requests_running"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "tokentrace:num_requests_waiting"),
    "kv_usage": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "tokentrace:kv_cache_usage_perc",
    ),
}
HISTOGRAMS = {
    "queue_s": (
        "vllm:request_queue_time_seconds",
        "sglang:queue_time_seconds",
        "tokentrace:request_queue_time_seconds",
    ),
    "prefill_s": ("vllm:request_prefill_time_seconds", "tokentrace:request_prefill_time_seconds"),
    "decode_s": ("vllm:request_decode_time_seconds", "tokentrace:request_decode_time_seconds"),
    "ttft_s": (
        "vllm:time_to_first_token_seconds",
        "sglang:time_to_first_token_seconds",
        "tokentrace:time_to_first_token_seconds",
    ),
    "inter_token_s": (
        "vllm:inter_token_latency_seconds",
        "vllm:request_time_per_output_token_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "tokentrace:inter_token_latency_seconds",
    ),
    "e2e_s": (
        "vllm:e2e_request_latency_seconds",
        "sglang:e2e_request_latency_seconds",
        "tokentrace:e2e_request_latency_seconds",
    ),
}


@dataclass(slots=True)
class Scrape:
    """One reading: gauges as one value an engine, histograms as (sum, count) over all."""

    gauges: dict[str, list[float]] = field(default_factory=dict)
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Scrape:
        """From Prometheus text; what cannot be parsed counts as not there."""
        from prometheus_client.parser import text_string_to_metric_families

        values: dict[str, list[float]] = {}
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    values.setdefault(sample.name, []).append(sample.value)
        except ValueError:
            return cls()
        scrape = cls()
        for name, known in GAUGES.items():
            for one in known:
                if one in values:
                    scrape.gauges[name] = values[one]
                    break
        for name, known in HISTOGRAMS.items():
            for one in known:
                if f"{one}_sum" in values and f"{one}_count" in values:
                    scrape.sums[name] = (sum(values[f"{one}_sum"]), sum(values[f"{one}_count"]))
                    break
        return scrape


def difference(before: Scrape, after: Scrape) -> dict[str, Any]:
    """Means over the requests counted between two scrapes, and the gauges as they stood at the second one.

    A share of several engines is averaged, never summed; counts of requests are summed.
    """
    facts: dict[str, Any] = {}
    for name, values in after.gauges.items():
        facts[name] = sum(values) / len(values) if name == "kv_usage" else sum(values)
        if len(values) > 1:
            facts[f"{name}_by_engine"] = list(values)
    for name, (total, count) in after.sums.items():
        earlier = before.sums.get(name, (0.0, 0.0))
        if count > earlier[1]:
            facts[f"{name}_mean"] = (total - earlier[0]) / (count - earlier[1])
            facts[f"{name}_count"] = int(count - earlier[1])
    return facts
