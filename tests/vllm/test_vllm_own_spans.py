"""vLLM's own spans (--otlp-traces-endpoint), received by tokentrace for the request that it has sent."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from vllm_server import MODEL, VllmServer, complete, free_pair

from tokentrace import attach, receive, workflow
from tokentrace.attach.own_spans import advice, endpoint_of
from tokentrace.client.settings import Endpoint
from tokentrace.emit import load
from tokentrace.model import Span
from tokentrace.session import Ask

pytestmark = pytest.mark.vllm
TOKENS = 6


@pytest.fixture(scope="module")
def port() -> int:
    return free_pair()


@pytest.fixture(scope="module")
def server(start_vllm: Callable[..., VllmServer], port: int) -> VllmServer:
    endpoint = f"http://127.0.0.1:{port}"
    return start_vllm("--otlp-traces-endpoint", endpoint, plugin=False, OTEL_BSP_SCHEDULE_DELAY="300")


@pytest.fixture
def receiver(server: VllmServer, port: int) -> Iterator[receive.Receiver]:
    with receive.open(port) as found:
        found.patience_s = 60
        yield found


def ask(server: VllmServer, receiver: receive.Receiver, method: str) -> workflow.Run:
    settings = workflow.Settings(Endpoint(server.url, model=MODEL), receiver=receiver, save=False)
    with attach.open(attach.find(server.url), method=method) as attached:
        prompt = Ask("Hi", max_tokens=TOKENS, temperature=0.0)
        return attach.ask(attached, prompt, settings, workflow.Quiet(), steps=1)


def named(run: workflow.Run, name: str) -> list[Span]:
    return [span for span in run.trace.spans if span.name == name]


def test_from_outside_the_servers_own_account_is_in_the_trace(server: VllmServer, receiver: receive.Receiver) -> None:
    run = ask(server, receiver, "outside")
    assert run.error is None
    (span,) = named(run, "llm_request")
    (chat,) = named(run, f"chat {MODEL}")
    assert span.parent == chat.row and span.layer == 6
    assert span.attributes["tokentrace.join"] == "traceparent" and span.attributes["tokentrace.source"] == "otlp"
    assert "tokentrace.clock" not in span.attributes and span.attributes["otel.scope.name"] == "vllm.tracing.otel"
    assert span.attributes["gen_ai.usage.prompt_tokens"] == 31
    assert span.attributes["gen_ai.usage.completion_tokens"] == TOKENS
    assert run.trace.processes[span.process].attributes["process.pid"] == server.process.pid
    phases = {name: named(run, name) for name in ("queue wait", "engine prefill", "engine decode")}
    assert all(len(spans) == 1 and spans[0].parent == span.row for spans in phases.values())
    facts = next(row for row in run.report.layers if row.layer == 6).facts
    parts = [facts[f"server_{name}_ns"] for name in ("queue_wait", "prefill", "decode")]
    assert all(part > 0 for part in parts) and sum(parts) <= facts["server_e2e_ns"] <= run.report.wall_ns
    assert facts["server_queue_wait_ns"] + facts["server_prefill_ns"] <= facts["server_ttft_ns"]


def test_requests_of_others_are_refused(server: VllmServer, receiver: receive.Receiver) -> None:
    receiver.expect(0x1234)
    complete(server.url, "Hi", 3, {"traceparent": f"00-{0x99:032x}-{0x1:016x}-01"})
    deadline = time.monotonic() + 60
    while not receiver.refused and time.monotonic() < deadline:
        time.sleep(0.05)
    assert receiver.refused and receiver.spans() == []


def test_from_inside_each_pass_has_the_servers_account_beside_the_agents(
    server: VllmServer, receiver: receive.Receiver
) -> None:
    run = ask(server, receiver, "borrow")
    assert run.error is None
    for span, chat in zip(named(run, "llm_request"), named(run, f"chat {MODEL}"), strict=True):
        assert span.parent == chat.row
    assert {one.attributes["tokentrace.pass"] for one in named(run, "llm_request")} == {"warm", "deep"}
    assert len(named(run, "queue wait")) == 2 and named(run, "engine prefill") == []  # the agent's own
    assert all("tokentrace.source" not in one.attributes for one in named(run, "queue wait"))
    for span in named(run, "llm_request"):
        assert run.trace.processes[span.process].attributes["tokentrace.process.name"]  # the same one as the agent's


def watched(command: list[str], ask_once: Callable[[], object]) -> dict[str, Any]:
    """What the command says, while somebody asks again and again."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 240
        while process.poll() is None and time.monotonic() < deadline:
            ask_once()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    document: dict[str, Any] = orjson.loads(out)
    return document


def test_requests_of_others_watched_from_inside_have_the_servers_own_span(
    server: VllmServer, port: int, tmp_path: Path
) -> None:
    caller, above = 0xABCDEF0123456789, 0x1122334455667788
    headers: list[dict[str, str]] = [{}, {"traceparent": f"00-{caller:032x}-{above:016x}-01"}]
    before = attach.find(server.url)

    def ask_once() -> None:
        headers.reverse()
        complete(server.url, "A secret: zanzibar", 5, headers[0])

    command = [sys.executable, "-c", "from tokentrace.cli import main; main()", "attach", server.url]
    command += ["--requests", "4", "--receive", str(port), "--json", "--out", str(tmp_path)]
    document = watched(command, ask_once)
    assert document["depth"] == "injected" and len(document["requests"]) == 4
    traces = [load(Path(row["run"]) / "trace.jsonl") for row in document["requests"]]
    for row, trace in zip(document["requests"], traces, strict=True):
        spans = {span.name: span for span in trace.spans}
        own, handler = spans["llm_request"], spans["POST /v1/chat/completions"]
        assert own.parent == handler.row and own.attributes["tokentrace.source"] == "otlp"
        assert row["request"].startswith(own.attributes["gen_ai.request.id"]) and row["reply_tokens"] == 5
        assert handler.start_ns <= own.start_ns and own.end_ns <= handler.end_ns and own.process == handler.process
        assert [span.name for span in trace.spans].count("step") == 5 and "engine prefill" not in spans
        assert "zanzibar" not in (Path(row["run"]) / "trace.jsonl").read_text()
        # The CPU's worker does not load the monitor.
        states = trace.meta["passes"]["once"]["states"]
        assert next(one["facts"] for one in states if one["layer"] == 2)["jit_monitor"] == "not loaded"
    assert sum(trace.trace_id == caller and trace.meta["parent_span_id"] == above for trace in traces) == 2
    assert attach.find(server.url).processes == before.processes and attach.find(server.url).sockets == {}


def test_requests_of_others_are_watched_from_outside(server: VllmServer, port: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from tokentrace.cli import main; main()", "attach", server.url]
    command += ["--method", "outside", "--requests", "2", "--receive", str(port), "--json", "--out", str(tmp_path)]
    document = watched(command, lambda: complete(server.url, "A secret: zanzibar", 5))
    assert document["depth"] == "outside" and len(document["requests"]) == 2
    for row in document["requests"]:
        assert row["request"].startswith("chatcmpl-") and row["reply_tokens"] == 5 and row["run"]
        assert 0 < row["wait_ns"] + row["prefill_ns"] <= row["ttft_ns"] <= row["wall_ns"]
    assert attach.find(server.url).sockets == {}


def test_the_command_receives_and_advises(server: VllmServer, port: int, tmp_path: Path) -> None:
    found = attach.find(server.url)
    assert endpoint_of(found) == f"http://127.0.0.1:{port}"
    assert f"--receive {port}" in " ".join(advice(found, "outside", None))
    command = [sys.executable, "-c", "from tokentrace.cli import main; main()", "attach", server.url, "Hi"]
    command += ["--method", "outside", "--receive", str(port), "--max-tokens", "3", "--json", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert f"127.0.0.1:{port} (gRPC)" in done.stderr and "note:" not in done.stderr
    facts = next(row["facts"] for row in orjson.loads(done.stdout)["layers"] if row["layer"] == 6)
    assert facts["server_spans"] == 1 and facts["server_decode_ns"] > 0
