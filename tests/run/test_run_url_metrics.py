"""What `run --url` shows of the engine's queue: the figures of the server's /metrics, before and after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.http_servers import DONE, WAIT, Answer, Request, ScriptedServer, chunk, sse

from tokentrace.cli import cli

CHAT = "/v1/chat/completions"
GREETING = sse(chunk("Hel"), chunk("lo", finish="stop"), DONE)


def vllm(finished: int, *, running: int = 0, waiting: int = 0, usage: float, hits: int, queued: float) -> str:
    label = '{model_name="m",engine="0"}'
    lines = {
        "num_requests_running": running, "num_requests_waiting": waiting, "kv_cache_usage_perc": usage,
        "prefix_cache_hits_total": hits, "prompt_tokens_total": 31 * finished,
        "generation_tokens_total": 10 * finished, "request_queue_time_seconds_sum": queued,
        "request_queue_time_seconds_count": finished, "e2e_request_latency_seconds_sum": 0.5 * finished,
        "e2e_request_latency_seconds_count": finished,
    }  # fmt: skip
    return "".join(f"vllm:{name}{label} {value}\n" for name, value in lines.items())


def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str) -> tuple[dict[str, Any], str]:
    """The report as JSON and as text."""
    for name, value in (("TOKENTRACE_DATA_DIR", str(tmp_path)), ("OPENAI_BASE_URL", ""), ("TOKENTRACE_BASE_URL", "")):
        monkeypatch.setenv(name, value)
    with ScriptedServer().on("POST", CHAT, GREETING) as server:

        def metrics(_: Request) -> Answer:
            sent = any(r.path == CHAT for r in server.requests)
            return Answer(headers={"content-type": "text/plain"}, body=[(after if sent else before).encode()])

        server.on("GET", "/metrics", metrics)
        done = CliRunner().invoke(cli, ["run", "Hi", "--url", f"{server.url}/v1", "--model", "m", "--json"])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(cli, ["show", "--no-color"], env={"COLUMNS": "140"})
    return json.loads(done.stdout), " ".join(shown.output.split())


def test_the_queues_row_shows_the_servers_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, text = asked(
        tmp_path, monkeypatch, vllm(4, usage=0.02, hits=100, queued=1.0),
        vllm(5, usage=0.05, hits=116, queued=1.0125),
    )  # fmt: skip
    row = next(row for row in report["layers"] if row["layer"] == 6)
    assert row["form_in"] == "31 prompt tokens"
    assert row["form_out"] == "queue 12.5 ms, KV cache 5.0 %, 0 running, 0 waiting, 16 from prefix cache"
    assert row["form_up_in"] == "10 tokens generated"
    facts = row["facts"]
    assert facts["metrics_queue_s"] == pytest.approx(0.0125) and facts["metrics_cached_tokens"] == 16
    assert (facts["metrics_kv_usage_before"], facts["metrics_kv_usage"]) == (0.02, 0.05)
    assert facts["metrics_alone"] and "the times are its own, and so are the counts" in facts["metrics_note"]
    for said in ("queue wait 12.5 ms", "KV cache 5.0 % full (2.0 % before)", "16 prompt tokens from the prefix cache"):
        assert said in text, text


def test_figures_that_others_are_in_are_marked_as_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, text = asked(
        tmp_path, monkeypatch, vllm(4, running=3, waiting=2, usage=0.5, hits=100, queued=1.0),
        vllm(7, running=1, waiting=0, usage=0.4, hits=100, queued=1.6),
    )  # fmt: skip
    row = next(row for row in report["layers"] if row["layer"] == 6)
    assert row["form_in"] == "server's: 93 prompt tokens" and row["form_up_in"] == "server's: 30 tokens generated"
    assert row["form_out"].startswith("server's: queue 200 ms")
    assert not row["facts"]["metrics_alone"] and "means over the 3 requests" in row["facts"]["metrics_note"]
    assert "1 running (3 before), 0 waiting (2 before)" in text and "means over the 3 requests" in text


def test_a_timeout_below_a_second_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    idle = Answer(headers={"content-type": "text/plain"}, body=[vllm(4, usage=0, hits=0, queued=0).encode()])
    with ScriptedServer().on("POST", CHAT, sse(WAIT)).on("GET", "/metrics", idle) as server:
        done = CliRunner().invoke(cli, ["run", "Hi", "--url", f"{server.url}/v1", "--model", "m", "--timeout", "0.3"])
    assert done.exit_code == 2
    assert "within 0 s" not in done.output and "300 ms" in done.output, done.output


def test_an_engine_that_counts_no_requests_says_nothing_of_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gauges = "llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\nllamacpp:prompt_tokens_total "
    report, _ = asked(tmp_path, monkeypatch, f"{gauges}5\n", f"{gauges}36\n")
    row = next(row for row in report["layers"] if row["layer"] == 6)
    assert row["form_in"] == "server's: 31 prompt tokens"
    assert "others may have been in it" in row["facts"]["metrics_note"]
    assert "metrics_queue_s" not in row["facts"]
