"""A real OTLP receiver inside the test process: gRPC and HTTP/protobuf, with faults on demand.

    with OtlpReceiver() as receiver:
        receiver.faults.append(Fault(status=503, retry_after="0"))   # the next call fails, the one after does not
        ...send to receiver.http_url or receiver.grpc_url...
        assert receiver.received() == produced(trace)

`received` and `produced` give one plain dictionary per span, by span id, so that what arrived can be compared with
what was made, field by field. They know the protobuf classes and the Trace, and nothing of tokentrace.emit.
"""

from __future__ import annotations

import gzip
import http.server
import ssl
import subprocess
import threading
import time
from collections import deque
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc

from tokentrace.model import Trace


@dataclass
class Fault:
    """What the receiver does with one call instead of accepting it. A fault with `rejected` or `warning` accepts."""

    status: int = 0  # HTTP status
    code: grpc.StatusCode | None = None  # gRPC status
    details: str = "injected"
    body: bytes = b""
    content_type: str = "application/x-protobuf"
    headers: dict[str, str] = field(default_factory=dict)
    retry_after: str = ""
    retry_info_s: float | None = None
    delay_s: float = 0.0
    rejected: int = 0
    warning: str = ""
    hang_up: bool = False


class OtlpReceiver:
    """`max_bytes` limits one message on both doors (gRPC's own default is 4 MiB). `tls` is (certificate, key)."""

    def __init__(self, *, path: str = "/v1/traces", max_bytes: int = 4 * 2**20, tls: tuple[Path, Path] | None = None):
        self.path = path
        self.max_bytes = max_bytes
        self.requests: list[pb.ExportTraceServiceRequest] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.faults: deque[Fault] = deque()
        self.calls = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._tls = tls
        self._grpc = grpc.server(
            futures.ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", max_bytes)]
        )
        pb_grpc.add_TraceServiceServicer_to_server(_Service(self), self._grpc)
        if tls:
            credentials = grpc.ssl_server_credentials([(tls[1].read_bytes(), tls[0].read_bytes())])
            self.grpc_port = self._grpc.add_secure_port("127.0.0.1:0", credentials)
        else:
            self.grpc_port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.http_port = self._http.server_port
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def http_url(self) -> str:
        return f"{'https' if self._tls else 'http'}://localhost:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{'https' if self._tls else 'http'}://localhost:{self.grpc_port}"

    def __enter__(self) -> OtlpReceiver:
        self._grpc.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._grpc.stop(0).wait()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def next_fault(self) -> Fault | None:
        with self._lock:
            self.calls += 1
            fault = self.faults.popleft() if self.faults else None
        if fault and fault.delay_s:
            self._stop.wait(fault.delay_s)
        return fault

    def take(self, body: bytes, fault: Fault | None) -> pb.ExportTraceServiceResponse:
        with self._lock:
            self.bodies.append(body)
            self.requests.append(pb.ExportTraceServiceRequest.FromString(body))
        answer = pb.ExportTraceServiceResponse()
        if fault and (fault.rejected or fault.warning):
            answer.partial_success.rejected_spans = fault.rejected
            answer.partial_success.error_message = fault.warning
        return answer

    def received(self) -> dict[int, dict[str, Any]]:
        """Spans by id; a span that came twice counts in the key `times`."""
        found: dict[int, dict[str, Any]] = {}
        for request in self.requests:
            for resource in request.resource_spans:
                shared = {a.key: value_of(a.value) for a in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        one = _span_facts(span, shared)
                        one["times"] = found.get(one["span_id"], {"times": 0})["times"] + 1
                        found[one["span_id"]] = one
        return found

    def wait_for(self, spans: int, timeout_s: float = 120.0) -> None:
        """Until that many spans are here; for a receiver behind another one."""
        end = time.monotonic() + timeout_s
        while len(self.received()) < spans:
            if time.monotonic() > end:
                raise AssertionError(f"{len(self.received())} of {spans} spans came within {timeout_s:g} s")
            time.sleep(0.05)


class _Service(pb_grpc.TraceServiceServicer):  # type: ignore[misc]
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:
        receiver = self._receiver
        receiver.headers.append({key: str(value) for key, value in context.invocation_metadata()})
        fault = receiver.next_fault()
        if fault and fault.code is not None:
            if fault.retry_info_s is not None:
                status = Status(code=fault.code.value[0], message=fault.details)
                info = RetryInfo()
                info.retry_delay.FromNanoseconds(int(fault.retry_info_s * 1e9))
                status.details.add().Pack(info)
                context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(fault.code, fault.details)
        return receiver.take(request.SerializeToString(), fault)


def _handler(receiver: OtlpReceiver) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.headers.append({key.lower(): value for key, value in self.headers.items()})
            fault = receiver.next_fault()
            if fault and fault.hang_up:
                self.close_connection = True
                return
            if fault and fault.status:
                self._answer(fault.status, fault.body, fault.content_type, fault)
            elif self.path != receiver.path:
                self._answer(404, b"404 page not found\n", "text/plain")
            elif self.headers["content-type"] != "application/x-protobuf":
                self._answer(415, b"", "text/plain")
            else:
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if len(body) > receiver.max_bytes:
                    self._answer(413, b"request body too large", "text/plain")
                    return
                self._answer(200, receiver.take(body, fault).SerializeToString(), "application/x-protobuf")

        def do_GET(self) -> None:
            self._answer(405, b"", "text/plain")

        def _answer(self, status: int, body: bytes, kind: str, fault: Fault | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if fault and fault.retry_after:
                self.send_header("Retry-After", fault.retry_after)
            for key, value in (fault.headers if fault else {}).items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

    return Handler


def value_of(value: Any) -> Any:
    """An AnyValue as a Python value."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: value_of(item.value) for item in value.kvlist_value.values}
    return getattr(value, kind)


def _attributes(items: Any) -> dict[str, Any]:
    found = {item.key: value_of(item.value) for item in items}
    assert len(found) == len(items), "an attribute came twice"
    return found


def _span_facts(span: Any, resource: dict[str, Any]) -> dict[str, Any]:
    return {
        "trace_id": int.from_bytes(span.trace_id, "big"),
        "span_id": int.from_bytes(span.span_id, "big"),
        "parent_id": int.from_bytes(span.parent_span_id, "big"),
        "name": span.name,
        "kind": span.kind,
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "attributes": _attributes(span.attributes),
        "events": [(e.name, e.time_unix_nano, _attributes(e.attributes)) for e in span.events],
        "links": [
            (int.from_bytes(x.trace_id, "big"), int.from_bytes(x.span_id, "big"), _attributes(x.attributes))
            for x in span.links
        ],
        "status": (span.status.code, span.status.message),
        "flags": span.flags,
        "service": resource.get("service.name"),
        "pid": resource.get("process.pid"),
        "host": resource.get("host.id"),
        "times": 1,
    }


def produced(trace: Trace) -> dict[int, dict[str, Any]]:
    """The same of a trace whose attribute values OTLP can carry as they are, with one host in all processes."""
    titles = {8: "L8 client request", 7: "L7 tokenizer", 6: "L6 engine queue", 5: "L5 tensor op"}
    titles |= {4: "L4 operator profiler", 3: "L3 kernel launch", 2: "L2 JIT cache", 1: "L1 chip power", 0: "tokentrace"}
    found = {}
    for span in trace.spans:
        attributes = {k: list(v) if isinstance(v, tuple) else v for k, v in span.attributes.items()}
        columns = {
            "tokentrace.layer": span.layer or None,
            "tokentrace.direction": span.direction or None,
            "thread.id": span.thread or None,
            "tokentrace.envelope": span.envelope or None,
        }
        for key, value in columns.items():
            if value is not None:
                attributes.setdefault(key, value)
        process = trace.processes[span.process].attributes
        found[span.span_id] = {
            "trace_id": trace.trace_id,
            "span_id": span.span_id,
            "parent_id": trace.span_id[span.parent] if span.parent >= 0 else 0,
            "name": span.name,
            "kind": span.kind,
            "start_ns": span.start_ns,
            "end_ns": span.end_ns,
            "attributes": attributes,
            "events": [(e.name, e.time_ns, e.attributes) for e in span.events],
            "links": [(trace.trace_id, x.span_id, x.attributes) for x in span.links],
            "status": (span.status, span.status_message),
            "flags": 0x101,
            "service": titles[span.layer],
            "pid": process.get("process.pid"),
            "host": process.get("host.id"),
            "times": 1,
        }
    return found


def certificate(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    """A self-signed certificate for localhost and its key, made by openssl."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return cert, key
