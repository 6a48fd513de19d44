"""The plumbing: settings, and delivery proven by the answer to a test span."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc
import pytest
from doctor_support import everything, ids, look
from support.http_servers import WAIT, Answer, ScriptedServer, html_answer
from support.otlp_receiver import Fault, OtlpReceiver

from tokentrace.doctor import Diagnosis

PLUMBING = frozenset((0,))


def plumbing(folder: Path, **environ: str) -> Diagnosis:
    env = {"TOKENTRACE_DATA_DIR": str(folder), **{f"OTEL_EXPORTER_OTLP_{k}": v for k, v in environ.items()}}
    return look(None, environ=env, layers=PLUMBING)


def test_a_receiver_that_takes_the_span(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver:
        for environ in ({"ENDPOINT": receiver.http_url}, {"ENDPOINT": receiver.grpc_url, "PROTOCOL": "grpc"}):
            found = plumbing(tmp_path, **environ)
            assert "TT002" in ids(found, "ok") and found.verdict.exit_code == 0, found.examination.results
        names = [span["name"] for span in receiver.received().values()]
    assert names == ["tokentrace doctor test span"] * 2


def test_no_receiver_is_no_fault(tmp_path: Path) -> None:
    found = plumbing(tmp_path)
    assert {"TT001", "TT002"} <= ids(found, "skip") and found.verdict.exit_code == 0


def test_wrong_protocol_for_the_port(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver:
        http_at_grpc = plumbing(tmp_path, ENDPOINT=f"http://127.0.0.1:{receiver.grpc_port}")
        grpc_at_http = plumbing(tmp_path, ENDPOINT=f"http://127.0.0.1:{receiver.http_port}", PROTOCOL="grpc")
        assert receiver.received() == {}
    assert http_at_grpc.verdict.check == "TT002" and "PROTOCOL=grpc" in http_at_grpc.verdict.fix
    assert grpc_at_http.verdict.check == "TT002" and "http/protobuf" in grpc_at_http.verdict.fix
    assert http_at_grpc.verdict.layer == 0 and "plumbing" in http_at_grpc.verdict.sentence


def test_a_path_that_is_missing(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver:
        found = plumbing(tmp_path, TRACES_ENDPOINT=receiver.http_url)
    assert found.verdict.check == "TT002" and "/v1/traces" in found.verdict.fix
    assert "TT001" in ids(found, "warn")


@pytest.mark.parametrize(("port", "protocol"), [(4317, "http/protobuf"), (4318, "grpc")])
def test_usual_ports_are_known(tmp_path: Path, port: int, protocol: str) -> None:
    found = look(
        None,
        environ={
            "TOKENTRACE_DATA_DIR": str(tmp_path),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        },
        layers=PLUMBING,
        offline=True,
    )
    assert "TT001" in ids(found, "warn") and found.verdict.fix


def test_receivers_that_fail(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        found = plumbing(tmp_path, ENDPOINT=f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert found.verdict.check == "TT002" and "is not there" in found.verdict.cause
    with ScriptedServer() as server:
        server.otherwise(html_answer())
        assert "web page" in plumbing(tmp_path, ENDPOINT=server.url).verdict.cause
        server.otherwise(Answer(200, {}, [WAIT], before=60))
        assert plumbing(tmp_path, ENDPOINT=server.url).verdict.check == "TT002"
    with OtlpReceiver() as receiver:
        receiver.faults += [Fault(rejected=1), Fault(status=401), Fault(code=grpc.StatusCode.UNAUTHENTICATED)]
        assert "rejected" in plumbing(tmp_path, ENDPOINT=receiver.http_url).verdict.cause
        secret = plumbing(tmp_path, ENDPOINT=receiver.http_url, HEADERS="x-api-key=canary-header-1")
        assert "HEADERS" in secret.verdict.fix and "canary-header-1" not in everything(secret)
        assert plumbing(tmp_path, ENDPOINT=receiver.grpc_url, PROTOCOL="grpc").verdict.status == "fail"


def test_settings_that_cannot_be_used(tmp_path: Path) -> None:
    for environ in ({"ENDPOINT": "nonsense://x"}, {"ENDPOINT": "http://h", "PROTOCOL": "http/json"}):
        found = plumbing(tmp_path, **environ)
        assert found.verdict.check == "TT001" and "OTEL_EXPORTER_OTLP_" in found.verdict.cause


def test_a_trace_that_is_dropped_and_a_store_that_cannot_be_written() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"
    found = look(None, environ={"TRACEPARENT": parent + "0", "TOKENTRACE_DATA_DIR": "/dev/null/x"}, layers=PLUMBING)
    assert {"TT003", "TT004"} <= ids(found, "warn") and found.verdict.exit_code == 0
    assert "TT004" in ids(look(None, environ={"TRACEPARENT": parent + "1"}, layers=PLUMBING), "ok")
