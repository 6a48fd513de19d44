"""What arrives equals what was produced, and when it does not, one sentence says why and what to change."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.http_servers import Refusing
from support.otlp_receiver import Fault, OtlpReceiver, certificate, produced
from support.traces import run_trace

from tokentrace.emit._shown import shown
from tokentrace.emit.otlp_send import Delivery, OtlpTarget, send
from tokentrace.model import Trace

PROTOCOLS = ["http/protobuf", "grpc"]


def sent(trace: Trace) -> dict[int, dict[str, Any]]:
    """What is to arrive; what `shown` changes has its own tests."""
    return produced(shown(trace))


def target(receiver: OtlpReceiver, protocol: str, **more: Any) -> OtlpTarget:
    url = receiver.grpc_url if protocol == "grpc" else receiver.http_url + "/v1/traces"
    return OtlpTarget(url, protocol, **{"timeout_s": 5.0, "patience_s": 5.0, **more})


def balanced(delivery: Delivery) -> Delivery:
    assert delivery.produced == delivery.accepted + delivery.rejected + delivery.skipped
    assert delivery.ok == (not delivery.rejected and not delivery.skipped)
    assert delivery.ok or (delivery.message and delivery.fix)
    return delivery


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("gzip", [False, True])
def test_what_arrives_is_what_was_produced(protocol: str, gzip: bool) -> None:
    trace = run_trace(9000)
    seen: list[tuple[int, int]] = []
    with OtlpReceiver() as receiver:
        delivery = balanced(
            send(trace, target(receiver, protocol, gzip=gzip), environ={}, progress=lambda *x: seen.append(x))
        )
        assert delivery == Delivery(len(trace), accepted=len(trace))
        assert receiver.received() == sent(trace)
        assert receiver.calls == 3
    assert seen == [(4000, len(trace)), (8000, len(trace)), (len(trace), len(trace))]


@pytest.mark.parametrize(
    ("protocol", "fault"),
    [
        ("http/protobuf", Fault(status=503)),
        ("http/protobuf", Fault(status=429, retry_after="0")),
        ("http/protobuf", Fault(status=502)),
        ("http/protobuf", Fault(status=504)),
        ("http/protobuf", Fault(hang_up=True)),
        ("grpc", Fault(code=grpc.StatusCode.UNAVAILABLE)),
        ("grpc", Fault(code=grpc.StatusCode.ABORTED)),
        ("grpc", Fault(code=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_info_s=0.05)),
    ],
)
def test_a_passing_fault_is_waited_for(protocol: str, fault: Fault) -> None:
    trace = run_trace(200)
    with OtlpReceiver() as receiver:
        receiver.faults.append(fault)
        assert balanced(send(trace, target(receiver, protocol), environ={})).ok
        assert receiver.received() == sent(trace)
        assert receiver.calls == 2


def test_retry_after_is_obeyed_and_never_beyond_the_patience() -> None:
    trace = run_trace(50)
    with OtlpReceiver() as receiver:
        receiver.faults.append(Fault(status=429, retry_after="1"))
        begin = time.monotonic()
        assert send(trace, target(receiver, "http/protobuf"), environ={}).ok
        assert time.monotonic() - begin >= 1.0
        receiver.faults.append(Fault(status=429, retry_after="3600"))
        delivery = balanced(send(trace, target(receiver, "http/protobuf"), environ={}))
        assert delivery.accepted == 0
        assert "429" in delivery.message


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_partial_success_is_counted(protocol: str) -> None:
    trace = run_trace(200)
    with OtlpReceiver() as receiver:
        receiver.faults.append(Fault(rejected=7, warning="span names too long"))
        delivery = balanced(send(trace, target(receiver, protocol), environ={}))
    assert delivery.rejected == 7
    assert "span names too long" in delivery.message


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_warning_without_loss_is_passed_on(protocol: str) -> None:
    with OtlpReceiver() as receiver:
        receiver.faults.append(Fault(warning="deprecated"))
        delivery = balanced(send(run_trace(20), target(receiver, protocol), environ={}))
    assert delivery.ok
    assert "deprecated" in delivery.message


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_receiver_with_a_small_limit_gets_smaller_batches(protocol: str) -> None:
    trace = run_trace(2000)
    with OtlpReceiver(max_bytes=100_000) as receiver:
        assert balanced(send(trace, target(receiver, protocol), environ={})).ok
        assert receiver.received() == sent(trace)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_single_span_beyond_the_limit_is_the_only_one_lost(protocol: str) -> None:
    trace = run_trace(200)
    trace.set_attributes(5, {"prompt": "x" * 200_000})
    with OtlpReceiver(max_bytes=100_000) as receiver:
        delivery = balanced(send(trace, target(receiver, protocol), environ={}))
        assert delivery.rejected == 1
        assert "limit" in delivery.fix
        expected = sent(trace)
        del expected[trace.span_id[5]]
        assert receiver.received() == expected


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spans_whose_texts_fill_a_receivers_4_mib_are_split_by_bytes(protocol: str) -> None:
    trace = run_trace(3000)
    for row in range(0, len(trace), 2):
        trace.set_attributes(row, {"note": "n" * 4000})
    with OtlpReceiver() as receiver:
        assert balanced(send(trace, target(receiver, protocol), environ={})).ok
        assert receiver.received() == sent(trace)
        assert max(map(len, receiver.bodies)) < 3 * 2**20
        assert sum(map(len, receiver.bodies)) > 4 * 2**20


@pytest.mark.parametrize(
    ("protocol", "fault", "says", "fix"),
    [
        ("http/protobuf", Fault(status=401), "401", "HEADERS"),
        ("http/protobuf", Fault(status=403), "403", "HEADERS"),
        ("http/protobuf", Fault(status=405), "405", "/v1/traces"),
        ("http/protobuf", Fault(status=308, headers={"Location": "https://else.example/v1/traces"}), "308", "else"),
        ("http/protobuf", Fault(status=200, body=b"<html>hi", content_type="text/html"), "web page", "/v1/traces"),
        ("http/protobuf", Fault(status=200, body=b"\xff\xff\xff"), "no OTLP response", "/v1/traces"),
        ("http/protobuf", Fault(status=415), "415", "protobuf"),
        ("grpc", Fault(code=grpc.StatusCode.UNAUTHENTICATED), "UNAUTHENTICATED", "HEADERS"),
        ("grpc", Fault(code=grpc.StatusCode.UNIMPLEMENTED), "UNIMPLEMENTED", "endpoint"),
    ],
)
def test_a_refusal_of_everything_ends_the_sending(protocol: str, fault: Fault, says: str, fix: str) -> None:
    with OtlpReceiver() as receiver:
        receiver.faults.append(fault)
        delivery = balanced(send(run_trace(9000), target(receiver, protocol), environ={}))
        assert receiver.calls == 1
    assert delivery.accepted == 0
    assert says in delivery.message
    assert fix in delivery.fix


@pytest.mark.parametrize(
    ("protocol", "fault"),
    [
        ("http/protobuf", Fault(status=400, body=b"bad span", content_type="text/plain")),
        ("http/protobuf", Fault(status=500)),
        ("grpc", Fault(code=grpc.StatusCode.INVALID_ARGUMENT, details="bad span")),
        ("grpc", Fault(code=grpc.StatusCode.RESOURCE_EXHAUSTED, details="quota")),
    ],
)
def test_a_refused_batch_costs_its_own_spans_only(protocol: str, fault: Fault) -> None:
    trace = run_trace(9000)
    with OtlpReceiver() as receiver:
        receiver.faults.append(fault)
        delivery = balanced(send(trace, target(receiver, protocol), environ={}))
        assert delivery.rejected == 4000
        expected = sent(trace)
        assert receiver.received() == {s.span_id: expected[s.span_id] for s in trace.spans if s.row >= 4000}
    assert f"{len(trace) - 4000:,} of {len(trace):,} spans arrived" in delivery.message


def test_a_json_answer_is_read_too() -> None:
    body = b'{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "quota"}}'
    with OtlpReceiver() as receiver:
        receiver.faults.append(Fault(status=200, body=body, content_type="application/json"))
        delivery = balanced(send(run_trace(50), target(receiver, "http/protobuf"), environ={}))
    assert delivery.rejected == 3


def test_a_wrong_path_names_the_right_one() -> None:
    with OtlpReceiver() as receiver:
        wrong = OtlpTarget(receiver.http_url + "/wrong", timeout_s=5.0)
        delivery = balanced(send(run_trace(50), wrong, environ={}))
    assert "404" in delivery.message
    assert "/v1/traces" in delivery.fix


def test_the_wrong_port_for_the_protocol_names_the_right_setting() -> None:
    with OtlpReceiver() as receiver:
        http_to_grpc = OtlpTarget(f"http://localhost:{receiver.grpc_port}/v1/traces", "http/protobuf", timeout_s=5.0)
        delivery = balanced(send(run_trace(50), http_to_grpc, environ={}))
        assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in delivery.fix
        grpc_to_http = OtlpTarget(f"http://localhost:{receiver.http_port}", "grpc", timeout_s=5.0, patience_s=5.0)
        delivery = balanced(send(run_trace(50), grpc_to_http, environ={}))
        assert "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in delivery.fix
        assert not receiver.requests


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_absent_receiver_is_said_soon(protocol: str) -> None:
    path = "" if protocol == "grpc" else "/v1/traces"
    begin = time.monotonic()
    with Refusing() as nobody:
        port = nobody.port
        delivery = balanced(send(run_trace(9000), OtlpTarget(f"http://127.0.0.1:{port}{path}", protocol), environ={}))
    assert time.monotonic() - begin < 60
    assert delivery.accepted == 0
    assert "is not there" in delivery.message
    assert f"127.0.0.1:{port}" in delivery.fix


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_unknown_host_is_said_at_once(protocol: str) -> None:
    path = "" if protocol == "grpc" else "/v1/traces"
    delivery = balanced(send(run_trace(50), OtlpTarget(f"http://no.such.invalid:4318{path}", protocol), environ={}))
    assert "address" in delivery.message
    assert "no.such.invalid" in delivery.fix


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_slow_receiver_is_not_waited_for_beyond_the_limits(protocol: str) -> None:
    with OtlpReceiver() as receiver:
        receiver.faults.extend(Fault(delay_s=30) for _ in range(20))
        begin = time.monotonic()
        delivery = balanced(send(run_trace(50), target(receiver, protocol, timeout_s=0.3, patience_s=1.0), environ={}))
        assert time.monotonic() - begin < 25
    assert "may or may not be there" in delivery.message
    assert "TIMEOUT" in delivery.fix


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_total_time_is_bounded(protocol: str) -> None:
    with OtlpReceiver() as receiver:
        # Each of ten batches takes a second, and there are four for all.
        receiver.faults.extend(Fault(delay_s=1.0) for _ in range(50))
        delivery = balanced(send(run_trace(40_000), target(receiver, protocol, total_s=4.0), environ={}))
        assert receiver.calls < 6
    assert 0 < delivery.accepted < delivery.produced


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tls_with_the_right_authority_with_none_and_without_tls(protocol: str, tmp_path: Path) -> None:
    files = certificate(tmp_path)
    trace = run_trace(50)
    with OtlpReceiver(tls=files) as receiver:
        assert balanced(send(trace, target(receiver, protocol, certificate=str(files[0])), environ={})).ok
        assert receiver.received() == sent(trace)
        delivery = balanced(send(trace, target(receiver, protocol), environ={}))
        assert "TLS" in delivery.message
        assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in delivery.fix
    with OtlpReceiver() as plain:
        wanted = target(plain, protocol, certificate=str(files[0]))
        secure = OtlpTarget(wanted.endpoint.replace("http:", "https:"), protocol, certificate=str(files[0]))
        delivery = balanced(send(trace, secure, environ={}))
        assert "http://" in delivery.fix


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_unusable_certificate_file_is_one_sentence(protocol: str, tmp_path: Path) -> None:
    endpoint = "https://localhost:1" + ("" if protocol == "grpc" else "/v1/traces")
    delivery = balanced(
        send(run_trace(20), OtlpTarget(endpoint, protocol, certificate=str(tmp_path / "no")), environ={})
    )
    assert "certificate" in delivery.message
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in delivery.fix


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_proxy_variable_that_points_at_nothing_is_named(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    with Refusing() as nobody, OtlpReceiver() as receiver:
        monkeypatch.setenv("http_proxy", nobody.url)
        delivery = balanced(send(run_trace(20), target(receiver, protocol), environ={}))
        assert "http_proxy" in delivery.message
        assert "NO_PROXY" in delivery.fix
        monkeypatch.setenv("no_proxy", "localhost")
        assert balanced(send(run_trace(20), target(receiver, protocol), environ={})).ok


def test_a_proxy_of_an_unknown_kind_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "gopher://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with OtlpReceiver() as receiver:
        delivery = balanced(send(run_trace(20), target(receiver, "http/protobuf"), environ={}))
    assert "http_proxy cannot be used" in delivery.message


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_headers_arrive_and_are_never_shown(protocol: str) -> None:
    secret = "k-sehr-geheim"
    env = {"OTEL_EXPORTER_OTLP_HEADERS": f"Authorization=Bearer%20{secret},x-team=a"}
    with OtlpReceiver() as receiver:
        url = receiver.grpc_url if protocol == "grpc" else receiver.http_url
        where = OtlpTarget.from_env(url, {**env, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})
        receiver.faults.append(
            Fault(status=400, body=secret.encode(), content_type="text/plain")
            if protocol != "grpc"
            else Fault(code=grpc.StatusCode.INVALID_ARGUMENT, details=f"key {secret}")
        )
        delivery = balanced(send(run_trace(20), where, environ={}))
        assert receiver.headers[0]["authorization"] == f"Bearer {secret}"
        assert receiver.headers[0]["x-team"] == "a"
    assert secret not in f"{delivery} {where}"


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_SAMPLER": "always_off"},
        {"OTEL_TRACES_SAMPLER": "parentbased_always_off"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"},
    ],
)
def test_settings_that_forbid_sending_are_obeyed_and_named(environ: dict[str, str]) -> None:
    with OtlpReceiver() as receiver:
        delivery = balanced(send(run_trace(20), OtlpTarget.from_env(receiver.http_url, environ), environ={}))
        assert receiver.calls == 0
    assert delivery.skipped == delivery.produced
    assert next(iter(environ)) in delivery.message


def test_sampling_by_ratio_is_the_sdks() -> None:
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

    sampler = TraceIdRatioBased(0.3)
    with OtlpReceiver() as receiver:
        env = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.3"}
        for seed in range(30):
            trace = run_trace(20, seed=seed)
            delivery = send(trace, OtlpTarget.from_env(receiver.http_url, env), environ={})
            decision = sampler.should_sample(None, trace.trace_id, "x").decision
            assert delivery.ok == decision.is_sampled()


def test_nothing_is_sent_for_an_empty_trace() -> None:
    with OtlpReceiver() as receiver:
        assert send(Trace(1), target(receiver, "http/protobuf"), environ={}) == Delivery(0)
