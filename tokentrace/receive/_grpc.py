"""OTLP's gRPC door: TraceService/Export, and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tokentrace.errors import UsageError

_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_THREADS = 4
_AT_ONCE = 16


@contextmanager
def grpc_door(take: Callable[[bytes], int], port: int, max_bytes: int) -> Iterator[int]:
    """Listen on the loopback; gives the port. `take` gets each message's bytes and says how many spans it refused.

    Raises UsageError when the port cannot be had.
    """
    if "grpc" not in sys.modules:
        # The C core writes to the terminal what is not the user's matter, a port that is taken for one.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    from tokentrace.receive.receiver import REFUSAL

    def export(body: bytes, context: Any) -> bytes:
        try:
            refused = take(body)
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        answer = ExportTraceServiceResponse()
        if refused:
            answer.partial_success.rejected_spans = refused
            answer.partial_success.error_message = REFUSAL
        return bytes(answer.SerializeToString())

    handler = grpc.unary_unary_rpc_method_handler(export, request_deserializer=None, response_serializer=None)
    options = [
        ("grpc.so_reuseport", 0),  # or two could listen on one port, and each would get half of the spans
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.max_concurrent_streams", _AT_ONCE),
    ]
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="otlp-grpc")
    server = grpc.server(threads, options=options, maximum_concurrent_rpcs=_AT_ONCE)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Export": handler}),))
    try:
        try:
            got = server.add_insecure_port(f"127.0.0.1:{port}")
        except RuntimeError as error:
            raise UsageError(
                f"port {port} of 127.0.0.1 cannot be listened on", fix="give another: --receive PORT"
            ) from error
        server.start()
        yield int(got)
    finally:
        server.stop(1.0).wait()  # a message that is being taken gets its answer
        threads.shutdown(wait=False)
