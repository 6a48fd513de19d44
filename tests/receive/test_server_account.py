"""What a server tells of our request by spans of its own: in the trace, in the report, or why not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from span_sender import FIGURES, LENGTH_NS, Tracing, exporter
from support.http_servers import Answer, Request, ScriptedServer, json_answer

from tokentrace import receive, workflow
from tokentrace.client.settings import Endpoint
from tokentrace.model import Span
from tokentrace.session import Ask

HOUR_NS = 3_600_000_000_000


def run(server: ScriptedServer, receiver: receive.Receiver | None) -> workflow.Run:
    endpoint = Endpoint(f"{server.url}/v1", model="alpha")
    return workflow.run(Ask("Hi"), workflow.Settings(endpoint, receiver=receiver, save=False), workflow.Quiet())


def serving(sender: Tracing) -> ScriptedServer:
    return ScriptedServer().on("POST", "/v1/chat/completions", sender.answers)


def named(done: workflow.Run, name: str) -> list[Span]:
    return [span for span in done.trace.spans if span.name == name]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_servers_span_hangs_below_the_clients(protocol: str) -> None:
    with receive.open(0) as receiver, Tracing(exporter(receiver, protocol)) as sender, serving(sender) as server:
        done = run(server, receiver)
    assert done.error is None
    (span,) = named(done, "llm_request")
    (chat,) = named(done, "chat alpha")
    assert span.parent == chat.row and span.layer == 6 and span.kind == 2 and span.envelope
    assert chat.start_ns <= span.start_ns and span.end_ns <= chat.end_ns
    assert span.duration_ns == LENGTH_NS
    assert FIGURES.items() <= span.attributes.items()
    assert span.attributes["tokentrace.source"] == "otlp" and span.attributes["otel.scope.name"] == "vllm.tracing.otel"
    assert span.attributes["tokentrace.join"] == "traceparent" and "tokentrace.clock" not in span.attributes
    assert done.trace.processes[span.process].attributes["process.pid"] == 4242
    for name, figure in (("queue wait", 2), ("engine prefill", 10), ("engine decode", 20)):
        (phase,) = named(done, name)
        assert phase.parent == span.row and phase.duration_ns == figure * 1_000_000
        assert "time to the first token" in phase.attributes["tokentrace.placed"]
    assert named(done, "engine decode")[0].start_ns == span.start_ns + 14_000_000


def test_the_report_has_the_servers_figures() -> None:
    with receive.open(0) as receiver, Tracing(exporter(receiver, "grpc")) as sender, serving(sender) as server:
        report = run(server, receiver).report
    row = next(row for row in report.layers if row.layer == 6)
    assert row.status == "seen"
    assert row.facts["server_queue_wait_ns"] == 2_000_000 and row.facts["server_decode_ns"] == 20_000_000
    assert row.own_ns_down == 2_000_000  # the wait; who worked in the other phases is not known from outside
    own = sum((row.own_ns_down or 0) + (row.own_ns_up or 0) for row in report.layers)
    assert own + report.unattributed_ns == report.wall_ns
    (finding,) = [one for one in report.findings if one.sentence.startswith("By the server's own account")]
    assert "queue wait 2.00 ms" in finding.sentence and "llm_request" in finding.evidence and "4242" in finding.evidence
    assert finding.status == "ok"
    assert not any("belongs to no layer" in one.sentence for one in report.findings)


def test_another_clock_is_said_and_its_times_are_moved() -> None:
    with (
        receive.open(0) as receiver,
        Tracing(exporter(receiver, "grpc"), shift_ns=HOUR_NS) as sender,
        serving(sender) as server,
    ):
        done = run(server, receiver)
    (span,) = named(done, "llm_request")
    (chat,) = named(done, "chat alpha")
    assert span.attributes["tokentrace.clock"] == "foreign"
    assert abs(span.attributes["tokentrace.clock.offset_ns"] + HOUR_NS) < 60_000_000_000
    assert abs((span.start_ns + span.end_ns) - (chat.start_ns + chat.end_ns)) <= 2
    assert span.duration_ns == LENGTH_NS
    assert "host.id" not in done.trace.processes[span.process].attributes
    assert any("another clock" in one.evidence for one in done.report.findings)


def missing(done: workflow.Run) -> tuple[str, str]:
    (finding,) = [one for one in done.report.findings if "own account is missing" in one.sentence]
    assert finding.layer == 6 and finding.status == "unknown"
    return finding.sentence, finding.fix


class Nowhere(SpanExporter):
    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def test_a_server_that_sends_nothing_gets_the_flag_told() -> None:
    with receive.open(0) as receiver, Tracing(Nowhere()) as sender, serving(sender) as server:
        receiver.patience_s = 0.5
        done = run(server, receiver)
        sentence, fix = missing(done)
        assert "sent nothing to 127.0.0.1" in sentence
        assert f"--otlp-traces-endpoint http://127.0.0.1:{receiver.grpc_port}" in fix
    assert done.error is None and named(done, "llm_request") == []
    assert next(row for row in done.report.layers if row.layer == 6).status == "unseen"


def test_a_server_that_does_not_follow_our_trace_is_told_apart() -> None:
    with receive.open(0) as receiver, Tracing(exporter(receiver, "grpc")) as sender:
        receiver.patience_s = 0.5

        def without(request: Request) -> Answer:
            del request.headers["traceparent"]
            answer = sender.answers(request)
            sender.provider.force_flush()
            return answer

        with ScriptedServer().on("POST", "/v1/chat/completions", without) as server:
            sentence, fix = missing(run(server, receiver))
    assert "none of this request's trace" in sentence and "traceparent" in fix


def test_a_request_that_failed_is_not_waited_for() -> None:
    refusal = json_answer({"error": {"message": "no"}}, 401)
    with receive.open(0) as receiver, ScriptedServer().on("POST", "/v1/chat/completions", refusal) as server:
        receiver.patience_s = 3_600  # else this test does not end
        done = run(server, receiver)
    assert done.error is not None


def test_a_span_whose_parent_is_not_sent_hangs_below_the_client_by_time() -> None:
    with receive.open(0) as receiver, Tracing(exporter(receiver, "grpc")) as sender:

        def through(request: Request) -> Answer:
            version, trace_id, _, flags = request.headers["traceparent"].split("-")
            request.headers["traceparent"] = f"{version}-{trace_id}-00000000000000aa-{flags}"
            return sender.answers(request)

        with ScriptedServer().on("POST", "/v1/chat/completions", through) as server:
            done = run(server, receiver)
    (span,) = named(done, "llm_request")
    assert span.parent == named(done, "chat alpha")[0].row and span.attributes["tokentrace.join"] == "time"


def tokentrace(*arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from tokentrace.cli import main; main()", *arguments]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "OPENAI_", "TOKENTRACE_"))}
    env = {**clean, "TOKENTRACE_DATA_DIR": str(data)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=240, check=False)
    assert "Traceback" not in done.stderr + done.stdout
    return done


@pytest.mark.parametrize("command", ["run", "attach"])
def test_a_port_that_somebody_has_ends_the_command_before_anything_is_sent(command: str, tmp_path: Path) -> None:
    with Tracing(Nowhere()) as sender, serving(sender) as server, socket.create_server(("127.0.0.1", 0)) as collector:
        server.on("GET", "/v1/models", json_answer({"data": [{"id": "alpha", "owned_by": "vllm"}]}))
        port = str(collector.getsockname()[1])
        where = ["Hi", "--url", f"{server.url}/v1"] if command == "run" else [f"{server.url}/v1", "Hi"]
        done = tokentrace(command, *where, "--receive", port, data=tmp_path)
        assert done.returncode == 2 and f"port {port} is taken" in done.stderr
        assert "POST" not in [one.method for one in server.requests]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "Hi", "--receive"), "none was named"),
        (("run", "--url", "http://127.0.0.1:9", "--receive", "Hi", "Hi"), "is no port"),
    ],
)
def test_what_cannot_be_received_is_refused(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = tokentrace(*arguments, data=tmp_path)
    assert done.returncode == 2 and words in done.stderr
