"""What servers of several kinds and versions tell on /metrics and /tokenize; unknown is never 0."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentrace.exchange import Exchange
from tokentrace.probe import ProbeContext, ProbeUnavailable
from tokentrace.probes import _metrics
from tokentrace.probes.queue import QueueProbe
from tokentrace.probes.tokenizer import TokenizerProbe

V = '{model_name="m",engine="0"}'


def text(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def exchange() -> Exchange:
    request = {"messages": [{"role": "user", "content": "Hi"}]}
    return Exchange("http://x", "m", 1, "", request, start_ns=100, end_ns=200, complete=True)


def looked_at(web: Any, before: str, after: str) -> tuple[QueueProbe, list[Any]]:
    readings = iter([before])
    server = web({"/metrics": lambda body: (200, next(readings, after))})
    context = ProbeContext("url", "once", False, server=server)
    probe = QueueProbe()
    probe.arm(context)
    context.exchange = exchange()
    return probe, list(probe.collect(context))


OLD = text(f"vllm:gpu_cache_usage_perc{V} 0.97", f"vllm:time_per_output_token_seconds_sum{V} 2",
           f"vllm:time_per_output_token_seconds_count{V} 20")  # fmt: skip
NEW = text(f"vllm:kv_cache_usage_perc{V} 0.97", f"vllm:request_time_per_output_token_seconds_sum{V} 2",
           f"vllm:request_time_per_output_token_seconds_count{V} 20")  # fmt: skip
RANK = '{model_name="m",tp_rank="0"}'
SGLANG = text(f"sglang:token_usage{RANK} 0.97", f"sglang:num_queue_reqs{RANK} 3",
              'sglang:inter_token_latency_seconds_sum{model_name="m"} 2',
              'sglang:inter_token_latency_seconds_count{model_name="m"} 20')  # fmt: skip


@pytest.mark.parametrize("told", [OLD, NEW, SGLANG], ids=["old vLLM", "new vLLM", "SGLang"])
def test_old_and_new_names_say_the_same_and_a_full_cache_is_warned_of(web: Any, told: str) -> None:
    probe, (record,) = looked_at(web, told, told)
    assert record.attributes["tokentrace.metrics.kv_usage"] == 0.97
    assert "tokentrace.metrics.time_per_output_token_s" not in record.attributes, "nothing was counted in between"
    (finding,) = probe.state.facts["findings"]
    assert "97%" in finding
    (checked,) = probe.check(ProbeContext("url", "", False, server=web({"/metrics": lambda body: (200, told)})))
    assert checked.status == "warn" and "97%" in checked.sentence


@pytest.mark.parametrize("answer", [(200, "process_cpu_seconds_total 3\n"), (404, ""), (200, "<!doctype html><html>x")])
def test_figures_that_are_not_there_are_not_available_with_the_servers_version(
    web: Any, answer: tuple[int, str]
) -> None:
    version = json.dumps({"version": "0.17.0"})
    server = web({"/metrics": lambda body: answer, "/version": lambda body: (200, version)})
    probe, context = QueueProbe(), ProbeContext("url", "once", False, server=server)
    probe.arm(context)
    context.exchange = exchange()
    with pytest.raises(ProbeUnavailable, match=r"not available.*\(its version is 0\.17\.0\)") as unseen:
        list(probe.collect(context))
    assert unseen.value.fix
    (checked,) = probe.check(context)
    assert checked.status == "unknown"


def engines(*rows: tuple[str, float, float, int]) -> str:
    lines = []
    for name, usage, queued, count in rows:
        label = f'{{model_name="m",engine="{name}"}}'
        lines += [f"vllm:kv_cache_usage_perc{label} {usage}", f"vllm:num_requests_waiting{label} 2"]
        for histogram in ("request_queue_time", "e2e_request_latency"):
            lines += [f"vllm:{histogram}_seconds_sum{label} {queued}", f"vllm:{histogram}_seconds_count{label} {count}"]
    return text(*lines)


def test_several_engines_are_kept_apart(web: Any) -> None:
    before = engines(("0", 0.97, 8.0, 4), ("1", 0.97, 80.0, 4))
    after = engines(("0", 0.97, 8.0, 4), ("1", 0.97, 90.0, 6))
    probe, records = looked_at(web, before, after)
    by_engine = {r.attributes["tokentrace.metrics.engine"]: r.attributes for r in records}
    assert set(by_engine) == {"engine 0", "engine 1"}
    assert [a["tokentrace.metrics.kv_usage"] for a in by_engine.values()] == [0.97, 0.97]
    assert [a["tokentrace.metrics.waiting"] for a in by_engine.values()] == [2, 2]
    assert "tokentrace.metrics.queue_s" not in by_engine["engine 0"]
    assert by_engine["engine 1"]["tokentrace.metrics.queue_s"] == 5.0
    assert "means over the 2 requests" in by_engine["engine 1"]["tokentrace.metrics.note"]
    assert len(probe.state.facts["findings"]) == 2 and "194" not in str(probe.state.facts)


def test_an_engine_started_anew_in_between_gives_no_figures(web: Any) -> None:
    probe, (record,) = looked_at(web, engines(("0", 0.5, 8.0, 4)), engines(("0", 0.1, 1.0, 1)))
    assert not any(name.endswith("_s") for name in record.attributes)
    assert "started anew" in probe.state.reason


def test_when_two_names_mean_the_same_the_newer_is_taken() -> None:
    (engine,) = _metrics.parse(text(f"vllm:kv_cache_usage_perc{V} 0.2", f"vllm:gpu_cache_usage_perc{V} 0.9"))
    assert engine.gauges == {"kv_usage": 0.2}


def test_what_is_not_a_number_is_unknown() -> None:
    assert _metrics.parse(text(f"vllm:kv_cache_usage_perc{V} NaN")) == []
    one_token = "vllm:request_generation_tokens_bucket" + V.replace("}", ',le="1.0"}')
    for odd in ("NaN", "+Inf"):
        first = _metrics.parse(text(f"vllm:num_requests_running{V} 1", f"{one_token} 2"))
        later = _metrics.parse(text(f"vllm:num_requests_running{V} 2", f"{one_token} {odd}"))
        (found,) = _metrics.change(first, later)
        assert found.one_token is None and found.engine.gauges == {"running": 2}


@pytest.mark.skipif("TOKENTRACE_RECORDINGS" not in os.environ, reason="TOKENTRACE_RECORDINGS is not set")
def test_a_published_dump_with_exponents_of_three_digits_and_models_for_labels() -> None:
    """vLLM of 2024: `e+010`, no label for the engine, and a second model of which only the queue is told."""
    dump = (Path(os.environ["TOKENTRACE_RECORDINGS"]) / "kubeai/vllm_v0_metrics.txt").read_text()
    assert "e+010" in dump and 'engine="' not in dump
    first, second = _metrics.parse(dump)
    assert first.gauges == {"running": 3, "waiting": 2, "kv_usage": 0.0026235242675994863}
    assert first.counters == {"prompt_tokens": 90, "generation_tokens": 2546, "preemptions": 0}
    assert first.sums["e2e"] == (pytest.approx(93.24845), 6) and "queue" not in first.sums
    assert (second.name, second.gauges, second.counters) == ("model_name other/OTHER", {"waiting": 3}, {})


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e6)), min_size=1, max_size=5))
def test_every_engine_keeps_its_own_value(rows: list[tuple[float, float]]) -> None:
    found = _metrics.parse(engines(*((str(n), usage, queued, 4) for n, (usage, queued) in enumerate(rows))))
    assert [engine.gauges["kv_usage"] for engine in found] == [usage for usage, _ in rows]
    assert [engine.sums["queue"] for engine in found] == [(queued, 4.0) for _, queued in rows]
    assert len({engine.name for engine in found}) == len(rows)


def tokenized(web: Any, routes: dict[str, Any]) -> Any:
    context = ProbeContext("url", "once", False, server=web(routes), exchange=exchange())
    (record,) = TokenizerProbe().collect(context)
    return record.attributes


def test_vllms_tokenize_takes_the_messages(web: Any) -> None:
    def tokenize(body: Any) -> tuple[int, str]:
        assert body["messages"] == [{"role": "user", "content": "Hi"}] and body["model"] == "m"
        return 200, json.dumps({"count": 3, "tokens": [1, 2, 3], "max_model_len": 9})

    told = tokenized(web, {"/tokenize": tokenize})
    assert told["tokentrace.tokens.count"] == 3 and told["tokentrace.form.out"] == "3 ids [1, 2, 3]"
    assert told["tokentrace.tokenize.call_ns"] > 0


def test_llama_cpp_renders_first(web: Any) -> None:
    def tokenize(body: Any) -> tuple[int, str]:
        return (200, json.dumps({"tokens": [{"id": 5}, {"id": 6}]})) if "content" in body else (400, "{}")

    told = tokenized(web, {"/tokenize": tokenize, "/apply-template": lambda b: (200, json.dumps({"prompt": "<u>Hi"}))})
    assert told["tokentrace.tokens.count"] == 2 and "/apply-template" in told["tokentrace.tokenize.note"]


def test_a_text_without_its_template_is_not_counted_as_the_prompt(web: Any) -> None:
    def tokenize(body: Any) -> tuple[int, str]:
        return (200, json.dumps({"tokens": [9], "count": 1})) if "prompt" in body else (422, "{}")

    told = tokenized(web, {"/tokenize": tokenize})
    assert "tokentrace.tokens.count" not in told and told["tokentrace.tokens.text_only"] == 1
    assert "without the chat template" in told["tokentrace.tokenize.note"]


@pytest.mark.parametrize("answer", [(404, ""), (200, "<html>"), (200, '{"tokens": "abc"}'), (200, "[]")])
def test_no_usable_tokenize_is_a_reason_and_a_fix(web: Any, answer: tuple[int, str]) -> None:
    with pytest.raises(ProbeUnavailable, match="lies inside the server") as unseen:
        tokenized(web, {"/tokenize": lambda body: answer})
    assert "/tokenize" in unseen.value.fix
