"""The receiver on real sockets, with OpenTelemetry's own exporters as senders: takes one trace, refuses all others."""

from __future__ import annotations

import gzip
import http.client
import socket
import time

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from span_sender import FIGURES, Tracing, exporter

from tokentrace import receive
from tokentrace.errors import UsageError
from tokentrace.receive.receiver import MAX_BYTES, MAX_SPANS
from tokentrace.receive.spans import MAX_TEXT, read

OURS, ABOVE, OTHER = 0xABCDEF0123456789, 0x1122334455667788, 0x99
PROTOCOLS = ("grpc", "http", "http+gzip")


def parent(trace_id: int) -> str:
    return f"00-{trace_id:032x}-{ABOVE:016x}-01"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spans_of_our_trace_are_taken_and_others_are_not_kept(protocol: str) -> None:
    with receive.open(0) as receiver:
        receiver.expect(OURS)
        with Tracing(exporter(receiver, protocol)) as sender:
            now = time.time_ns()
            sender.span(parent(OTHER), now)
            sender.span("", now)
            sender.span(parent(OURS), now)
            assert receiver.wait(bool, 60)
        (span,) = receiver.spans()
        assert (span.trace_id, span.parent_id, span.name, span.end_ns, span.kind) == (
            OURS,
            ABOVE,
            "llm_request",
            now,
            2,
        )
        assert span.attributes == FIGURES
        assert span.scope == "vllm.tracing.otel" and span.resource["vllm.process_id"] == "4242"
        assert receiver.refused == 2 and receiver.unreadable == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_taken_before_a_trace_is_expected(protocol: str) -> None:
    with receive.open(0) as receiver, Tracing(exporter(receiver, protocol)) as sender:
        sender.span(parent(OURS), time.time_ns())
        sender.provider.force_flush()
        assert receiver.spans() == [] and receiver.refused == 1


def message(*spans: tuple[int, int], text: str = "") -> pb.ExportTraceServiceRequest:
    """Spans as (trace id, span id)."""
    request = pb.ExportTraceServiceRequest()
    scoped = request.resource_spans.add().scope_spans.add()
    for trace_id, span_id in spans:
        span = scoped.spans.add(trace_id=trace_id.to_bytes(16, "big"), span_id=span_id.to_bytes(8, "big"), name="x")
        if text:
            span.attributes.add(key="long").value.string_value = text
            span.attributes.add(key="tokentrace.layer").value.int_value = 1
    return request


def post(port: int, body: bytes, path: str = "/v1/traces", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    named = {"Content-Type": "application/x-protobuf"} | {
        key.replace("_", "-"): value for key, value in headers.items()
    }
    connection.request("POST", path, body, named)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def export(port: int, body: bytes) -> pb.ExportTraceServiceResponse:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            response_deserializer=pb.ExportTraceServiceResponse.FromString,
        )
        return call(body, timeout=120)


def test_the_sender_is_told_how_many_were_refused() -> None:
    body = message((OURS, 1), (OTHER, 2), (OTHER, 3)).SerializeToString()
    with receive.open(0) as receiver:
        receiver.expect(OURS)
        status, answer = post(receiver.http_port, body)
        assert status == 200
        for told in (pb.ExportTraceServiceResponse.FromString(answer), export(receiver.grpc_port, body)):
            assert told.partial_success.rejected_spans == 2
            assert "one request" in told.partial_success.error_message
        assert [span.span_id for span in receiver.spans()] == [1]  # sent twice, kept once


def test_a_trace_that_is_expected_no_longer_is_forgotten() -> None:
    with receive.open(0) as receiver:
        receiver.expect(OURS)
        export(receiver.grpc_port, message((OURS, 1)).SerializeToString())
        receiver.expect(OTHER)
        assert receiver.spans() == []
        export(receiver.grpc_port, message((OURS, 1)).SerializeToString())
        assert receiver.spans() == [] and receiver.refused == 1


def test_what_is_kept_has_bounds() -> None:
    with receive.open(0) as receiver:
        receiver.expect(OURS)
        many = message(*((OURS, number) for number in range(1, MAX_SPANS + 51)), text="y" * (MAX_TEXT // 8))
        status, _ = post(receiver.http_port, many.SerializeToString())
        assert status == 200
        assert len(receiver.spans()) == MAX_SPANS and receiver.refused == 50
        post(receiver.http_port, message((OURS, 9_999)).SerializeToString())
        assert len(receiver.spans()) == MAX_SPANS


def test_long_texts_are_cut_and_our_own_names_are_not_taken_from_others() -> None:
    (span,) = read(message((OURS, 1), text="y" * (MAX_TEXT + 9)).SerializeToString(), OURS, 1).spans
    assert span.attributes == {"long": "y" * MAX_TEXT}


def test_what_is_no_otlp_is_refused_and_counted() -> None:
    good = message((OURS, 1)).SerializeToString()
    with receive.open(0) as receiver:
        receiver.expect(OURS)
        port = receiver.http_port
        assert post(port, b"\xff\xff\xff")[0] == 400
        assert post(port, b"{}", Content_Type="application/json")[0] == 415
        assert post(port, b"no gzip", Content_Encoding="gzip")[0] == 400
        assert post(port, gzip.compress(good)[:-6], Content_Encoding="gzip")[0] == 400
        assert post(port, gzip.compress(bytes(MAX_BYTES + 1)), Content_Encoding="gzip")[0] == 400
        with pytest.raises(grpc.RpcError) as error:
            export(receiver.grpc_port, b"\xff\xff\xff")
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert receiver.unreadable == receiver.messages == 6
        assert post(port, good, "/v1/metrics")[0] == 404
        assert post(port, b"", Content_Length=str(MAX_BYTES + 1))[0] == 413
        with pytest.raises(grpc.RpcError) as error:
            export(receiver.grpc_port, bytes(MAX_BYTES + 1))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert receiver.spans() == []
        assert post(port, gzip.compress(good), Content_Encoding="gzip")[0] == 200
        assert len(receiver.spans()) == 1


def test_only_this_machine_can_reach_it_and_only_while_it_is_open() -> None:
    with receive.open(0) as receiver:
        ports = receiver.grpc_port, receiver.http_port
        try:
            others = {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
        except OSError:  # a machine need not know its own name
            others = set()
        for port in ports:
            socket.create_connection(("127.0.0.1", port), 10).close()
            for address in others - {one for one in others if one.startswith("127.")}:
                with pytest.raises(OSError):
                    socket.create_connection((address, port), 10)
    for port in ports:
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), 10)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_port_that_somebody_has_is_told(host: str, which: int) -> None:
    with socket.create_server((host, 0)) as collector:
        port = collector.getsockname()[1]
        with pytest.raises(UsageError) as error:
            receive.open(port - which)
    assert str(error.value).startswith((f"port {port} is taken", f"port {port - which} is taken"))
    assert "--otlp http://localhost:" in error.value.fix and "--otlp-traces-endpoint" in error.value.fix


def test_two_receivers_never_share_a_port() -> None:
    with receive.open(0) as first, pytest.raises(UsageError, match="is taken"):
        receive.open(first.grpc_port)


@pytest.mark.parametrize("port", [65535, 65536, 99999])
def test_a_number_that_is_no_port(port: int) -> None:
    with pytest.raises(UsageError):
        receive.open(port)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_read_or_refused(body: bytes) -> None:
    try:
        found = read(body, OURS, 10)
    except ValueError:
        return
    assert all(span.trace_id == OURS and span.end_ns >= span.start_ns for span in found.spans)
