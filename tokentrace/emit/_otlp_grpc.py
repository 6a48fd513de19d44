"""OTLP over gRPC: one unary call with ready bytes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tokentrace.emit._otlp_http import key_fix, tls_fix
from tokentrace.emit._otlp_outcome import (
    ABSENT_PATIENCE_S,
    REFUSED,
    RETRY,
    SPLIT,
    STOP,
    Outcome,
    Transport,
    bad_certificate,
    from_response,
    proxy_fix,
    proxy_variable,
    seconds,
    short,
)
from tokentrace.emit.otlp_target import OtlpTarget

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
#: OTLP specification, "OTLP/gRPC Response": these may be tried again; RESOURCE_EXHAUSTED only with RetryInfo.
_RETRYABLE = ("CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS")


class GrpcTransport(Transport):
    """Raises Unusable when a certificate file is."""

    def __init__(self, target: OtlpTarget) -> None:
        if "grpc" not in sys.modules:
            # The C core writes handshake failures to the terminal; here they become one sentence.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        import grpc
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        from tokentrace.version import __version__

        self._target = target
        options = [("grpc.primary_user_agent", f"tokentrace/{__version__}")]
        compression = grpc.Compression.Gzip if target.gzip else grpc.Compression.NoCompression
        if target.secure:
            files = (target.certificate, target.client_key, target.client_certificate)
            try:
                credentials = grpc.ssl_channel_credentials(*map(_content, files))
            except OSError as error:
                raise bad_certificate(error) from error
            self._channel = grpc.secure_channel(target.host_port, credentials, options, compression)
        else:
            self._channel = grpc.insecure_channel(target.host_port, options, compression)
        self._call = self._channel.unary_unary(
            _METHOD, request_serializer=None, response_deserializer=ExportTraceServiceResponse.FromString
        )
        self._metadata = tuple(target.headers.items())

    def close(self) -> None:
        self._channel.close()

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        import grpc

        try:
            return from_response(self._call(body, timeout=timeout_s, metadata=self._metadata))
        except grpc.RpcError as error:
            return self._judge(error, timeout_s)

    def _judge(self, error: Any, timeout_s: float) -> Outcome:
        code, details = error.code().name, str(error.details() or "")
        said = f"answered {code}" + (f" ({short(details)})" if details else "")
        lower = details.lower()
        if code == "UNAVAILABLE" and ("http1" in lower or "http/1" in lower or "settings" in lower):
            return Outcome(
                STOP,
                "speaks HTTP/1, not gRPC, at this port",
                fix="set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf (usually port 4318), or use its gRPC port (4317)",
            )
        if code == "UNAVAILABLE" and (
            "ssl" in lower or "tls" in lower or "handshake" in lower or "certificate" in lower
        ):
            return Outcome(
                STOP, f"could not be reached over TLS ({short(details)})", fix=tls_fix(details, self._target)
            )
        if code == "UNAVAILABLE" and ("name resolution" in lower or "dns" in lower or "domain name" in lower):
            return Outcome(STOP, f"has an address that is not known ({short(details)})", fix=self._fix_address())
        if code == "UNAVAILABLE" and ("failed to connect" in lower or "refused" in lower):
            # gRPC reads the proxy variables in lower case only (grpc: environment_variables.md).
            if proxy := proxy_variable(f"//{self._target.host_port}", ("grpc_proxy", "https_proxy", "http_proxy")):
                message = f"could not be reached through the proxy of {proxy} ({short(details)})"
                return Outcome(STOP, message, fix=proxy_fix(proxy))
            message = f"is not there ({short(details)})"
            return Outcome(RETRY, message, fix=self._fix_address(), patience_s=ABSENT_PATIENCE_S)
        if code == "DEADLINE_EXCEEDED":
            return Outcome(
                RETRY,
                f"gave no answer within {seconds(timeout_s)}, so the spans may or may not be there",
                fix="raise OTEL_EXPORTER_OTLP_TIMEOUT, or send again later",
            )
        if code == "RESOURCE_EXHAUSTED":
            if "larger than max" in lower or ("message" in lower and "size" in lower):
                return Outcome(SPLIT, said, fix="raise the receiver's limit for one message")
            wait = _retry_info(error)
            kind = REFUSED if wait is None else RETRY
            return Outcome(kind, said, fix="send again when it has room", retry_after_s=wait)
        if code in _RETRYABLE:
            return Outcome(RETRY, said, fix="send again when it has recovered", retry_after_s=_retry_info(error))
        if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
            return Outcome(STOP, said, fix=key_fix(self._target))
        if code == "UNIMPLEMENTED":
            return Outcome(STOP, said, fix=f"nothing takes traces at {self._target.host_port}: correct the endpoint")
        return Outcome(REFUSED, said, fix="see the receiver's log for its reason")

    def _fix_address(self) -> str:
        return f"start a receiver at {self._target.host_port}, or correct {self._target.source}"


def _content(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _retry_info(error: Any) -> float | None:
    """Seconds to wait, from the google.rpc.RetryInfo among the error's details."""
    from google.protobuf.message import DecodeError
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        try:
            for detail in Status.FromString(value).details:
                info = RetryInfo()
                if detail.Unpack(info):
                    return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
        except DecodeError:
            return None
    return None
