"""Requests of others, watched from outside by the spans that the server makes of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from span_sender import FIGURES, LENGTH_NS, Tracing, exporter
from support.http_servers import ScriptedServer, json_answer
from support.otlp_receiver import Fault, OtlpReceiver

from tokentrace import attach, receive, workflow
from tokentrace.attach.found import Found
from tokentrace.attach.told import watch_told
from tokentrace.attach.watch import Row

CALLER, ABOVE = 0xABCDEF0123456789, 0x1122334455667788


def watched(receiver: receive.Receiver, sender: Tracing, count: int) -> list[tuple[Row, workflow.Run]]:
    """`count` requests that end after the watching has begun, the first of a caller who traces, and another span."""
    server = attach.Attached(Found("http://127.0.0.1:1/v1", "vllm", "0.32.0"), "outside")
    found: list[tuple[Row, workflow.Run]] = []
    sent: list[int] = []

    def idle(under_way: int) -> None:
        if not sent:
            sent.append(time.time_ns())
            sender.span("", sent[0], "loading", figures=False)
            for number in range(count):
                sender.span(f"00-{CALLER:032x}-{ABOVE:016x}-01" if number == 0 else "", sent[0] + number)

    for one in watch_told(server, workflow.Settings(save=False), receiver, requests=count, idle=idle):
        found.append(one)
    return found


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_each_request_is_a_row_and_a_trace_of_what_the_server_tells(protocol: str) -> None:
    with receive.open(0) as receiver, Tracing(exporter(receiver, protocol)) as sender:
        found = watched(receiver, sender, 3)
        assert receiver.refused == 1  # of no request
    assert len(found) == 3
    row, run = found[0]
    assert (row.request, row.prompt_tokens, row.reply_tokens) == ("chatcmpl-1", 9, 2)
    assert (row.wall_ns, row.ttft_ns, row.wait_ns) == (LENGTH_NS, 14_000_000, 2_000_000)
    assert (row.prefill_ns, row.decode_ns_per_token) == (10_000_000, 20_000_000)
    assert row.batch is None and row.share is None  # not told, so not known
    trace = run.trace
    assert trace.trace_id == CALLER and trace.meta["parent_span_id"] == ABOVE
    spans = {span.name: span for span in trace.spans}
    assert FIGURES.items() <= spans["llm_request"].attributes.items()
    assert spans["queue wait"].parent == spans["llm_request"].row
    assert run.report.wall_ns == LENGTH_NS and run.report.tokens == {"input": 9, "output": 2}
    status = {one.layer: one for one in run.report.layers}
    assert status[6].status == "seen" and status[6].facts["server_prefill_ns"] == 10_000_000
    assert all(status[number].status == "unseen" and status[number].reason for number in (8, 7, 5, 4, 3, 2, 1))
    assert found[1][1].trace.trace_id != found[2][1].trace.trace_id


def test_a_span_that_is_sent_when_the_time_is_over_still_counts() -> None:
    server = attach.Attached(Found("http://127.0.0.1:1/v1", "vllm", ""), "outside")
    settings = workflow.Settings(save=False)
    with receive.open(0) as receiver, Tracing(exporter(receiver, "grpc")) as sender:
        assert list(watch_told(server, settings, receiver, for_s=0.01, late_s=0.01)) == []
        late = watch_told(
            server, settings, receiver, for_s=0, late_s=100, idle=lambda _: sender.span("", time.time_ns())
        )
        assert next(late)[0].request == "chatcmpl-1"


def test_a_watched_request_is_saved_as_a_run(tmp_path: Path) -> None:
    server = attach.Attached(Found("http://127.0.0.1:1/v1", "vllm", ""), "outside")
    with receive.open(0) as receiver, Tracing(exporter(receiver, "grpc")) as sender:
        settings = workflow.Settings(out=tmp_path)
        found = watch_told(server, settings, receiver, idle=lambda _: sender.span("", time.time_ns()))
        row, run = next(found)
    assert run.folder is not None and row.run == str(run.folder)  # not where runs are found by their name
    assert b"llm_request" in (run.folder / "trace.jsonl").read_bytes()


class Interrupting(OtlpReceiver):
    """Takes what is sent, and interrupts the sender meanwhile."""

    pid = 0

    def next_fault(self) -> Fault | None:
        os.kill(self.pid, signal.SIGINT)
        return super().next_fault()


def test_ctrl_c_while_a_request_is_being_saved_and_sent_is_not_lost(tmp_path: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "OPENAI_", "TOKENTRACE_"))}
    models = json_answer({"data": [{"id": "alpha", "owned_by": "vllm"}]})
    with ScriptedServer().on("GET", "/v1/models", models) as server, Interrupting() as collector:
        command = [sys.executable, "-u", "-c", "from tokentrace.cli import main; main()", "attach", f"{server.url}/v1"]
        command += ["--for", "10h", "--receive", "0", "--out", str(tmp_path), "--otlp", collector.http_url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            collector.pid = process.pid
            port = next(found[1] for line in process.stdout if (found := re.search(r"127\.0\.0\.1:(\d+) \(gRPC", line)))
            with Tracing(OTLPSpanExporter(endpoint=f"http://127.0.0.1:{port}", insecure=True)) as sender:
                while not collector.calls and process.poll() is None:
                    sender.span("", time.time_ns())
                    time.sleep(0.05)
                try:
                    out, err = process.communicate(timeout=100)
                finally:
                    process.kill()
    assert process.returncode == 130 and "interrupted" in err
    assert "seen" in out and list(tmp_path.rglob("report.json"))
