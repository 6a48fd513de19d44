"""OTLP over HTTP with protobuf bodies."""

from __future__ import annotations

import email.utils
import gzip
import ssl
import time
from datetime import datetime, timezone
from typing import Any

from tokentrace.emit._otlp_outcome import (
    ABSENT_PATIENCE_S,
    ACCEPTED,
    REFUSED,
    RETRY,
    SPLIT,
    STOP,
    Outcome,
    Transport,
    Unusable,
    bad_certificate,
    from_response,
    proxy_fix,
    proxy_variable,
    seconds,
    short,
)
from tokentrace.emit.otlp_target import PATH, OtlpTarget

_BODY_LIMIT = 64 * 1024
_RETRYABLE = (429, 502, 503, 504)  # OTLP specification, "Retryable Response Codes"


class HttpTransport(Transport):
    """Raises Unusable when a certificate file or a proxy variable is."""

    def __init__(self, target: OtlpTarget) -> None:
        import httpx

        from tokentrace.version import __version__

        self._target = target
        verify = _verify(target)
        headers = {"user-agent": f"tokentrace/{__version__}", **target.headers}
        headers["content-type"] = "application/x-protobuf"
        if target.gzip:
            headers["content-encoding"] = "gzip"
        scheme = "HTTPS" if target.secure else "HTTP"
        names = (f"{scheme}_PROXY".lower(), f"{scheme}_PROXY", "all_proxy", "ALL_PROXY")
        self._proxy = proxy_variable(target.endpoint, names)
        try:
            self._client = httpx.Client(verify=verify, headers=headers, follow_redirects=False)
        except (ValueError, ImportError, httpx.InvalidURL) as error:  # of a proxy variable: unknown scheme, SOCKS
            name = self._proxy or "a proxy variable"
            raise Unusable(f"{name} cannot be used ({short(str(error))})", proxy_fix(name)) from error

    def close(self) -> None:
        self._client.close()

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        import httpx

        if self._target.gzip:
            body = gzip.compress(body, 5, mtime=0)
        deadline = time.monotonic() + timeout_s
        try:
            with self._client.stream("POST", self._target.endpoint, content=body, timeout=timeout_s) as response:
                answer = bytearray()
                for part in response.iter_bytes():
                    answer += part
                    if len(answer) > _BODY_LIMIT or time.monotonic() > deadline:
                        break
                return self._judge(response, bytes(answer))
        except httpx.TimeoutException as error:
            if isinstance(error, httpx.ConnectTimeout):
                what = "a TLS connection" if self._target.secure else "a connection"
                plain = "; if it speaks plain http, begin it with http://" if self._target.secure else ""
                return Outcome(
                    RETRY, f"did not take {what} within {seconds(timeout_s)}", fix=self._fix_address() + plain
                )
            return Outcome(
                RETRY,
                f"gave no answer within {seconds(timeout_s)}, so the spans may or may not be there",
                fix="raise OTEL_EXPORTER_OTLP_TIMEOUT, or send again later",
            )
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            return self._broken(error)

    def _judge(self, response: Any, body: bytes) -> Outcome:
        status = response.status_code
        kind = response.headers.get("content-type", "").split(";")[0].strip().lower()
        if 200 <= status < 300:
            return self._accepted(status, kind, body)
        said = f"answered {status} {response.reason_phrase}".rstrip() + _status_message(kind, body)
        if status in _RETRYABLE:
            wait = _retry_after(response.headers.get("retry-after", ""))
            return Outcome(RETRY, said, fix="send again when it has recovered", retry_after_s=wait)
        if status == 413:
            return Outcome(SPLIT, said, fix="raise the receiver's limit for one request")
        if status in (401, 403):
            return Outcome(STOP, said, fix=key_fix(self._target))
        if 300 <= status < 400:
            where = response.headers.get("location", "")
            return Outcome(STOP, said, fix=f"use the address it points to{': ' + short(where) if where else ''}")
        if status in (404, 405):
            return Outcome(STOP, said, fix=self._fix_path())
        if status == 415:
            return Outcome(
                STOP, said, fix="it takes no protobuf: use an OTLP receiver, or OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
            )
        return Outcome(REFUSED, said, fix="see the receiver's log for its reason")

    def _accepted(self, status: int, kind: str, body: bytes) -> Outcome:
        from google.protobuf.json_format import ParseDict, ParseError
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        if not body:
            return Outcome(ACCEPTED)
        try:
            if kind == "application/json":
                import orjson

                return from_response(ParseDict(orjson.loads(body), ExportTraceServiceResponse()))
            if kind in ("application/x-protobuf", "application/protobuf", "application/octet-stream", ""):
                return from_response(ExportTraceServiceResponse.FromString(body))
        except (DecodeError, ParseError, ValueError, TypeError):
            pass
        what = "a web page" if kind == "text/html" else f"{kind or 'something'} that is no OTLP response"
        return Outcome(
            STOP, f"answered {status} with {what}, so nothing shows that it took the spans", fix=self._fix_path()
        )

    def _broken(self, error: BaseException) -> Outcome:
        import httpx

        cause = _root_cause(error)
        text = short(str(cause) or type(cause).__name__)
        if isinstance(error, httpx.ProxyError) or (self._proxy and isinstance(error, httpx.ConnectError)):
            name = self._proxy or "the proxy variable"
            return Outcome(STOP, f"could not be reached through the proxy of {name} ({text})", fix=proxy_fix(name))
        if isinstance(cause, ssl.SSLError):
            return Outcome(STOP, f"could not be reached over TLS ({text})", fix=tls_fix(text, self._target))
        if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
            return Outcome(
                RETRY,
                f"did not answer as an HTTP server does ({text})",
                fix="if this is a gRPC port (usually 4317), set OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
                patience_s=ABSENT_PATIENCE_S,
            )
        if isinstance(error, httpx.ConnectError):
            if isinstance(cause, OSError) and type(cause).__name__ == "gaierror":
                return Outcome(STOP, f"has an address that is not known ({text})", fix=self._fix_address())
            return Outcome(RETRY, f"is not there ({text})", fix=self._fix_address(), patience_s=ABSENT_PATIENCE_S)
        return Outcome(STOP, f"could not be asked ({text})", fix=self._fix_address())

    def _fix_address(self) -> str:
        return f"start a receiver at {self._target.host_port}, or correct {self._target.source}"

    def _fix_path(self) -> str:
        if self._target.endpoint.rstrip("/").endswith(PATH):
            return "check the address: an OTLP receiver takes traces over HTTP at port 4318, path /v1/traces"
        return f"the path must end in {PATH}: OTEL_EXPORTER_OTLP_ENDPOINT appends it, its TRACES_ENDPOINT does not"


def key_fix(target: OtlpTarget) -> str:
    """For a receiver that lets nobody in without a key, or not with this one."""
    if target.headers:
        return "check the key in OTEL_EXPORTER_OTLP_HEADERS, and the name of its header"
    return "put the receiver's key into OTEL_EXPORTER_OTLP_HEADERS (key=value)"


def tls_fix(text: str, target: OtlpTarget) -> str:
    """What to change when a TLS handshake failed."""
    upper = text.upper()
    if "WRONG_VERSION" in upper or "RECORD LAYER" in upper or "PACKET_LENGTH" in upper or "UNEXPECTED_EOF" in upper:
        return f"the port speaks no TLS: use http://{target.host_port}"
    return "set OTEL_EXPORTER_OTLP_CERTIFICATE to the PEM file of the authority that signed its certificate"


def _root_cause(error: BaseException) -> BaseException:
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ssl.SSLError):
            return error
        below = error.__cause__ or error.__context__
        if below is None:
            break
        error = below
    return error


def _verify(target: OtlpTarget) -> ssl.SSLContext | bool:
    if not (target.certificate or target.client_certificate):
        return True
    try:
        context = ssl.create_default_context(cafile=target.certificate or None)
        if target.client_certificate:
            context.load_cert_chain(target.client_certificate, target.client_key or None)
    except OSError as error:  # also ssl.SSLError
        raise bad_certificate(error) from error
    return context


def _retry_after(text: str) -> float | None:
    """Seconds or an HTTP date (RFC 9110, 10.2.3)."""
    text = text.strip()
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        when = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return max(0.0, (when - datetime.now(timezone.utc)).total_seconds())


def _status_message(kind: str, body: bytes) -> str:
    """The receiver's own words: OTLP has it answer errors with a google.rpc.Status."""
    from google.protobuf.message import DecodeError
    from google.rpc.status_pb2 import Status

    if not body or kind == "text/html":
        return ""
    text = ""
    if kind in ("application/x-protobuf", "application/protobuf"):
        try:
            text = Status.FromString(body).message
        except DecodeError:
            return ""
    else:
        text = body[:400].decode("utf-8", "replace")
    return f" ({short(text)})" if text.strip() else ""
