"""What serving engines tell on /metrics, whatever they call it, by engine.

Three figures of the time of a token are kept apart, as none says what another does. `inter_token_latency`: from one
token to the next, counted for each (vLLM's older `time_per_output_token_seconds` is the same; the local engine counts
once a chunk, with the chunk's time over its tokens). `time_per_output_token`: of each request, its decoding over its
tokens without the first; vLLM records 0 for a request of one token, and these are taken out again.
`inference_per_token`: of each request, its prefill too, over all its tokens. SGLang's `time_per_output_token_seconds`
was each of two such things in turn and is not read.

Names: the local engine, vLLM (old and new ones; of two that mean the same the newer is taken), SGLang, Text Generation
Inference, llama.cpp; those of the others are from their documentation and source. A figure that is not there stays
unknown; it is never 0. Several engines behind one address (labels tell them apart) are kept apart: an average or a
share of several is not formed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

GAUGES: Mapping[str, tuple[str, ...]] = {
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "tokentrace:num_requests_running",
        "tgi_batch_current_size",
        "llamacpp:requests_processing",
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "tokentrace:num_requests_waiting",
        "tgi_queue_size",
        "llamacpp:requests_deferred",
    ),
    # a share, 1 is full
    "kv_usage": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "tokentrace:kv_cache_usage_perc",
        "llamacpp:kv_cache_usage_ratio",
    ),
}
#: Seconds; `_sum` and `_count` are read.
HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "queue": (
        "vllm:request_queue_time_seconds",
        "sglang:queue_time_seconds",
        "tokentrace:request_queue_time_seconds",
        "tgi_request_queue_duration",
    ),
    "prefill": ("vllm:request_prefill_time_seconds", "tokentrace:request_prefill_time_seconds"),
    "decode": ("vllm:request_decode_time_seconds", "tokentrace:request_decode_time_seconds"),
    "inference": (
        "vllm:request_inference_time_seconds",
        "tokentrace:request_inference_time_seconds",
        "tgi_request_inference_duration",
    ),
    "time_to_first_token": (
        "vllm:time_to_first_token_seconds",
        "sglang:time_to_first_token_seconds",
        "tokentrace:time_to_first_token_seconds",
    ),
    "inter_token_latency": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "tokentrace:inter_token_latency_seconds",
    ),
    "time_per_output_token": ("vllm:request_time_per_output_token_seconds",),
    "inference_per_token": ("tgi_request_mean_time_per_token_duration",),
    "e2e": (
        "vllm:e2e_request_latency_seconds",
        "sglang:e2e_request_latency_seconds",
        "tokentrace:e2e_request_latency_seconds",
        "tgi_request_duration",
    ),
}
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": (
        "vllm:prompt_tokens_total",
        "sglang:prompt_tokens_total",
        "tokentrace:prompt_tokens_total",
        "llamacpp:prompt_tokens_total",
    ),
    "generation_tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "tokentrace:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
    ),
    "cached_tokens": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "preemptions": ("vllm:num_preemptions_total",),
}
#: Tokens of the requests that ended; `_sum` is read.
SIZES: Mapping[str, tuple[str, ...]] = {
    "prompt": ("vllm:request_prompt_tokens", "tgi_request_input_length"),
    "generation": ("vllm:request_generation_tokens", "tgi_request_generated_tokens"),
}
#: Its bucket up to 1 counts the requests that had no decoding.
_ONE_TOKEN = "vllm:request_generation_tokens_bucket"
_OF_DECODING = ("decode", "time_per_output_token")
#: Labels that split the figures of one engine; all others tell engines apart.
_WITHIN = frozenset(("le", "quantile", "finished_reason", "cache_source", "method"))
#: A cache this full makes requests wait or be preempted.
KV_WARN = 0.95


@dataclass(slots=True)
class Engine:
    """One engine's figures at one time. `sums` holds (sum of seconds, number of observations) of each histogram,
    `sizes` the tokens of the requests that ended, `one_token` how many of these had one at most (None: not told)."""

    name: str = ""  # empty when there is only one
    gauges: dict[str, float] = field(default_factory=dict)
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)
    one_token: float | None = None


@dataclass(slots=True)
class Change:
    """What one engine did between two readings. `means` are seconds over `counts` requests (of `inter_token_latency`:
    over so many tokens or chunks); `sizes` the tokens of those that ended, `one_token` how many of them had no
    decoding."""

    engine: Engine  # as it stood at the second reading
    means: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)  # gauges at the first reading, where it was there then
    restarted: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    one_token: int | None = None

    @property
    def finished(self) -> int | None:
        """Requests that ended in between; None when this engine does not count them."""
        return self.counts.get("e2e") if "e2e" in self.engine.sums else None


def parse(text: str) -> list[Engine]:
    """Every engine in a Prometheus text, in the order of their labels. Empty: none of the known figures is in it.

    Raises ValueError when it is no Prometheus text.
    """
    from prometheus_client.parser import text_string_to_metric_families

    samples: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            wanted = _known(sample.name) or (sample.name == _ONE_TOKEN and _is_one(sample.labels.get("le", "")))
            if wanted and math.isfinite(sample.value):
                labels = tuple(sorted(item for item in sample.labels.items() if item[0] not in _WITHIN))
                values = samples.setdefault(labels, {})
                # One engine's parts, such as requests by finish reason, add up.
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
    _join(samples)
    names = _names(list(samples))
    return [_engine(names[labels], values) for labels, values in sorted(samples.items())]


def _known(sample: str) -> bool:
    return sample in _PLAIN or any(
        sample.endswith(end) and sample[: -len(end)] in _SUMMED for end in ("_sum", "_count")
    )


def _is_one(bound: str) -> bool:
    try:
        return float(bound) == 1
    except ValueError:
        return False


_PLAIN = frozenset(name for table in (GAUGES, COUNTERS) for names in table.values() for name in names)
_SUMMED = frozenset(name for table in (HISTOGRAMS, SIZES) for names in table.values() for name in names)


def _join(samples: dict[tuple[tuple[str, str], ...], dict[str, float]]) -> None:
    """Put figures with fewer labels to the engine whose labels include theirs, if there is just one such: SGLang's
    front end labels by model only, its schedulers by rank too. With several engines they stay figures of them all."""
    for key in sorted(samples, key=len):
        wider = [other for other in samples if len(other) > len(key) and set(other) > set(key)]
        if len(wider) == 1:
            values = samples.pop(key)
            samples[wider[0]] = {**values, **samples[wider[0]]}


def _engine(name: str, values: Mapping[str, float]) -> Engine:
    found = Engine(name)
    for table, target in ((GAUGES, found.gauges), (COUNTERS, found.counters)):
        for ours, theirs in table.items():
            for one in theirs:
                if one in values:
                    target[ours] = values[one]
                    break
    for ours, theirs in HISTOGRAMS.items():
        for one in theirs:
            if f"{one}_sum" in values and f"{one}_count" in values:
                found.sums[ours] = (values[f"{one}_sum"], values[f"{one}_count"])
                break
    for ours, theirs in SIZES.items():
        for one in theirs:
            if f"{one}_sum" in values:
                found.sizes[ours] = values[f"{one}_sum"]
    found.one_token = values.get(_ONE_TOKEN)
    return found


def _names(keys: list[tuple[tuple[str, str], ...]]) -> dict[tuple[tuple[str, str], ...], str]:
    """A short name for each engine: the labels in which they differ."""
    shared = set.intersection(*(set(key) for key in keys)) if keys else set()
    return {
        key: " ".join(f"{label} {value}" for label, value in key if (label, value) not in shared)
        or ("" if len(keys) == 1 else "all engines")
        for key in keys
    }


def change(before: list[Engine], after: list[Engine]) -> list[Change]:
    """What each engine did between the two readings. An engine that was not there before began at nothing."""
    earlier = {engine.name: engine for engine in before}
    if len(before) == len(after) == 1:
        earlier = {after[0].name: before[0]}
    return [_change(earlier.get(engine.name), engine) for engine in after]


def _change(before: Engine | None, after: Engine) -> Change:
    was = before or Engine()
    found = Change(after, before=dict(was.gauges))
    if after.one_token is not None and (before is None or was.one_token is not None):
        found.one_token = round(after.one_token - (was.one_token or 0.0))
    for name, (seconds, requests) in after.sums.items():
        seconds_before, requests_before = was.sums.get(name, (0.0, 0.0))
        if requests < requests_before:
            found.restarted = True
            continue
        found.counts[name] = round(requests - requests_before)
        _mean(found, name, seconds - seconds_before)
    for name, value in after.counters.items():
        if value < was.counters.get(name, 0.0):
            found.restarted = True
        else:
            found.counters[name] = round(value - was.counters.get(name, 0.0))
    found.sizes = {name: round(value - was.sizes.get(name, 0.0)) for name, value in after.sizes.items()}
    if found.restarted:
        found.means, found.counts, found.counters, found.sizes, found.one_token = {}, {}, {}, {}, None
    return found


def _mean(found: Change, name: str, seconds: float) -> None:
    """Note the mean, if there is one: of decoding over the requests that decoded. Where it is not told how many these
    were, the zeros of the others would be in the mean of several time-per-token figures, so it is left out; `decode` is
    then the mean of all requests, also of those of one token."""
    count = found.counts[name]
    if name in _OF_DECODING:
        if found.one_token is not None:
            count = found.counts[name] = max(0, count - found.one_token)
        elif not seconds or (name == "time_per_output_token" and count > 1):
            return
    if count:
        found.means[name] = seconds / count


def kv_usage(engine: Engine) -> float | None:
    """The share of the KV cache in use; None where it is not told, or told as a figure that is no share."""
    value = engine.gauges.get("kv_usage")
    return value if value is not None and 0 <= value <= 1 else None


def kv_told(engine: Engine) -> str:
    """KV cache 87% full; "" where it is not told. A figure outside of 0 to 1 is not guessed at: some other version may
    count in per cent, in blocks or in tokens."""
    of = f" of {engine.name}" if engine.name else ""
    value = engine.gauges.get("kv_usage")
    if value is None:
        return ""
    if kv_usage(engine) is None:
        return f"KV cache{of}: odd figure ({value:.4g}, where a share from 0 to 1 is expected)"
    return f"KV cache{of} {value:.0%} full"


def warnings(engines: list[Engine]) -> list[str]:
    """What a reader must know of these engines' state."""
    found = []
    for engine in engines:
        of = f" of {engine.name}" if engine.name else ""
        usage = kv_usage(engine)
        if usage is not None and usage >= KV_WARN:
            found.append(f"The KV cache{of} is {usage:.0%} full: new requests wait, and running ones may be preempted.")
    return found
