"""The plumbing: settings, and delivery proven by the answer to a test span."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from doctor_support import everything, healthy, ids, look
from support.http_servers import WAIT, Answer, ScriptedServer, html_answer
from support.otlp_receiver import Fault, OtlpReceiver

from tokentrace.doctor import Diagnosis

PLUMBING = frozenset((0,))
COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]


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


@pytest.fixture(scope="module")
def unanswered(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    """Of a receiver that takes the span and keeps silent."""
    with ScriptedServer() as server:
        server.otherwise(Answer(200, {}, [WAIT], before=60))
        return plumbing(tmp_path_factory.mktemp("data"), ENDPOINT=server.url)


def test_receivers_that_fail(tmp_path: Path, unanswered: Diagnosis) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        found = plumbing(tmp_path, ENDPOINT=f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert found.verdict.check == "TT002" and "is not there" in found.verdict.cause
    with ScriptedServer() as server:
        server.otherwise(html_answer())
        assert "web page" in plumbing(tmp_path, ENDPOINT=server.url).verdict.cause
    assert unanswered.verdict.check == "TT002"
    with OtlpReceiver() as receiver:
        receiver.faults += [Fault(rejected=1), Fault(status=401), Fault(code=grpc.StatusCode.UNAUTHENTICATED)]
        assert "rejected" in plumbing(tmp_path, ENDPOINT=receiver.http_url).verdict.cause
        secret = plumbing(tmp_path, ENDPOINT=receiver.http_url, HEADERS="x-api-key=canary-header-1")
        assert "check the key in OTEL_EXPORTER_OTLP_HEADERS" in secret.verdict.fix  # it is set, and was refused
        assert "canary-header-1" not in everything(secret)
        assert plumbing(tmp_path, ENDPOINT=receiver.grpc_url, PROTOCOL="grpc").verdict.status == "fail"


def test_settings_that_cannot_be_used(tmp_path: Path) -> None:
    for environ in ({"ENDPOINT": "nonsense://x"}, {"ENDPOINT": "http://h", "PROTOCOL": "http/json"}):
        found = plumbing(tmp_path, **environ)
        assert found.verdict.check == "TT001" and "OTEL_EXPORTER_OTLP_" in found.verdict.cause


def offline(**environ: str) -> Diagnosis:
    return look(None, environ=environ, layers=PLUMBING, offline=True)


@pytest.mark.parametrize(
    ("environ", "status", "words"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "None"}, "fail", "a value that was not set"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "warn", "no scheme and is read as https://collector:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_EXPORTER_OTLP_HEADERS": "canary-broken"}, "warn",
         "OTEL_EXPORTER_OTLP_HEADERS has no = in it"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "canary-broken"}, "warn", "OTEL_EXPORTER_OTLP_HEADERS has no = in it"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "warn", "which is not a time"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}, "fail", "not a time"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}, "fail",
         "'carrier-pigeon', which is not supported"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_SDK_DISABLED": "true"}, "warn", "nothing is sent"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_SDK_DISABLED": "1"}, "warn", "counts as false"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", "OTEL_TRACES_SAMPLER": "traceidratio",
          "OTEL_TRACES_SAMPLER_ARG": "0.25"}, "warn", "only 25% of all traces"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "skip", "although OTEL_EXPORTER_OTLP_PROTOCOL is"),
    ],
)  # fmt: skip
def test_every_broken_variable_has_one_sentence(environ: dict[str, str], status: str, words: str) -> None:
    found = offline(**environ)
    results = [r for r in found.examination.results if r.id == "TT001"]
    assert [r.status for r in results] == [status] and words in results[0].detail, results
    assert status == "skip" or results[0].fix
    assert "canary" not in everything(found)


def test_run_says_what_the_doctor_says(tmp_path: Path) -> None:
    """The sending command and the doctor read one set of settings."""
    for name, value in (("ENDPOINT", "None"), ("PROTOCOL", "carrier-pigeon"), ("TIMEOUT", "soon")):
        env = {f"OTEL_EXPORTER_OTLP_{name}": value}
        told = offline(**{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", **env})
        run = subprocess.run(
            [*COMMAND, "run", "Hi", "--url", "http://127.0.0.1:9/v1", "--otlp", ""],
            capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", **env},
        )  # fmt: skip
        assert run.returncode == 2 and told.verdict.cause in run.stderr, (told.verdict, run.stderr)


def test_run_remarks_what_the_doctor_warns_of_and_sends(tmp_path: Path) -> None:
    with healthy() as server, OtlpReceiver() as receiver:
        env = {"OTEL_EXPORTER_OTLP_HEADERS": "canary-broken", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.http_url}
        told = next(r for r in offline(**env).examination.results if r.id == "TT001")
        run = subprocess.run(
            [*COMMAND, "run", "Hi", "--url", server.url + "/v1", "--layers", "8"],
            capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path), "TOKENTRACE_DATA_DIR": str(tmp_path), **env},
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        assert receiver.received()
    assert told.status == "warn" and f"warning: {told.detail}: {told.fix}" in run.stderr
    assert "canary" not in run.stdout + run.stderr


@pytest.mark.parametrize(
    ("parent", "words"),
    [
        ("garbage", "another form"),
        ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", "capital letters"),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", "zeros"),
        ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "version is ff"),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", "longer"),
        (" 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "spaces"),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", "another form"),
    ],
)
def test_a_traceparent_that_nobody_can_read(parent: str, words: str) -> None:
    found = offline(TRACEPARENT=parent)
    result = next(r for r in found.examination.results if r.id == "TT004")
    assert result.status == "warn" and words in result.detail and "unset TRACEPARENT" in result.fix


def test_times_in_sentences_are_round(unanswered: Diagnosis) -> None:
    told = unanswered.verdict.cause
    assert "no answer within" in told and not re.search(r"\d\.\d{3,}", told), told


def test_a_trace_that_is_dropped_and_a_store_that_cannot_be_written() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"
    found = look(None, environ={"TRACEPARENT": parent + "0", "TOKENTRACE_DATA_DIR": "/dev/null/x"}, layers=PLUMBING)
    assert {"TT003", "TT004"} <= ids(found, "warn") and found.verdict.exit_code == 0
    assert "TT004" in ids(look(None, environ={"TRACEPARENT": parent + "1"}, layers=PLUMBING), "ok")


def test_a_store_where_the_kernel_makes_up_the_files() -> None:
    found = look(None, environ={"TOKENTRACE_DATA_DIR": "/proc/x"}, layers=PLUMBING, offline=True)
    assert "TT003" in ids(found, "warn") and "lies on proc" in found.verdict.cause
