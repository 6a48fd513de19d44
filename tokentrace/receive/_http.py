"""OTLP's HTTP door: POST /v1/traces in protobuf, and nothing else."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tokentrace.errors import UsageError

_PATH = "/v1/traces"
_PROTOBUF = "application/x-protobuf"
_SILENT_S = 10.0
_AT_ONCE = 8


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_port = False
    request_queue_size = 16

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(("127.0.0.1", port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # a sender that hung up is its own affair


@contextmanager
def http_door(take: Callable[[bytes], int], unreadable: Callable[[], None], port: int, max_bytes: int) -> Iterator[int]:
    """Listen on the loopback; gives the port. `take` gets each message's bytes and says how many spans it refused;
    `unreadable` is told of one that is not protobuf or cannot be unpacked.

    Raises UsageError when the port cannot be had.
    """
    try:
        server = _Server(port, _handler(take, unreadable, max_bytes))
    except OSError as error:
        message = f"port {port} of 127.0.0.1 cannot be listened on ({error.strerror})"
        raise UsageError(message, fix="give another: --receive PORT") from error
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="otlp-http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(
    take: Callable[[bytes], int], unreadable: Callable[[], None], max_bytes: int
) -> type[BaseHTTPRequestHandler]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    from tokentrace.receive.receiver import REFUSAL

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _SILENT_S

        def log_message(self, *_: object) -> None:
            return

        def do_POST(self) -> None:
            if self.path.partition("?")[0] != _PATH:
                self._answer(404, b"traces go to /v1/traces\n", "text/plain")
                return
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal():
                self._answer(411, b"", "text/plain")
                return
            if int(length) > max_bytes:
                self._answer(413, b"", "text/plain")
                return
            body = self.rfile.read(int(length))
            if self.headers.get_content_type() != _PROTOBUF:
                unreadable()
                self._answer(415, b"", "text/plain")
                return
            try:
                body = _plain(body, self.headers.get("Content-Encoding", ""), max_bytes)
            except ValueError as error:
                unreadable()
                self._answer(400, str(error).encode()[:500], "text/plain")
                return
            try:
                refused = take(body)
            except ValueError as error:
                self._answer(400, str(error).encode()[:500], "text/plain")
                return
            answer = ExportTraceServiceResponse()
            if refused:
                answer.partial_success.rejected_spans = refused
                answer.partial_success.error_message = REFUSAL
            self._answer(200, answer.SerializeToString(), _PROTOBUF)

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.close_connection = True
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _plain(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """The body unpacked, within the bound. Raises ValueError."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise ValueError(f"the content encoding {encoding[:40]!r} is not known")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        plain = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"the body cannot be unpacked: {error}") from error
    if len(plain) > max_bytes or not unpacker.eof:
        raise ValueError("the body is too large or cut off")
    return plain
