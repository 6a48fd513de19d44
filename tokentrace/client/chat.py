"""One streaming chat request over real HTTP, with the times of its phases and of everything that arrives.

Phases come from httpcore's trace events (connect, tls, send), the name look-up from one of our own before it, since
httpcore does both in one call. A chunk's time is taken when its bytes leave the socket, before they are parsed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tokentrace.client import diagnose, sse
from tokentrace.client.settings import Endpoint
from tokentrace.errors import EndpointError
from tokentrace.exchange import Chunk, Exchange, Phase

if TYPE_CHECKING:
    import httpx

_MAX_BODY = 1 << 20
_LOCAL = ("localhost", "127.0.0.1", "::1")


def traceparent(trace_id: int, span_id: int) -> str:
    """W3C trace context, sampled. https://www.w3.org/TR/trace-context/"""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def http_client(endpoint: Endpoint, timeout_s: float, retries: int = 0) -> httpx.Client:
    """A client that follows no redirect (the key must not travel on) and uses no proxy for this machine itself."""
    import httpx

    local = urlsplit(endpoint.base_url).hostname in _LOCAL
    timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 15.0))
    if local:
        transport = httpx.HTTPTransport(retries=retries)
        return httpx.Client(timeout=timeout, trust_env=False, transport=transport)
    return httpx.Client(timeout=timeout)


def chat(
    endpoint: Endpoint,
    messages: Sequence[Mapping[str, Any]],
    *,
    trace_id: int,
    span_id: int,
    max_tokens: int | None = None,
    temperature: float | None = None,
    on_text: Callable[[str], None] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Exchange:
    """Send one request and read its stream to the end. Never raises for what the server does: `Exchange.error` says it.

    KeyboardInterrupt ends the request and gives what had come, with `complete` False and the note "interrupted".
    Nothing is sent twice, except once without `stream_options` when the server refuses that field (no token was made).
    """
    body: dict[str, Any] = {"messages": list(messages), "stream": True, "stream_options": {"include_usage": True}}
    if endpoint.model:
        body["model"] = endpoint.model
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if temperature is not None:
        body["temperature"] = temperature
    call = _Call(endpoint, body, traceparent(trace_id, span_id), span_id, on_text, dict(headers or {}))
    exchange = call.run()
    if exchange.status_code in (400, 422) and exchange.error and "stream_options" in exchange.error.detail:
        body.pop("stream_options")
        again = _Call(endpoint, body, traceparent(trace_id, span_id), span_id, on_text, dict(headers or {}))
        first = exchange.start_ns
        exchange = again.run()
        exchange.notes.append(
            "the server refused stream_options, so the request was sent again without it, "
            f"{(exchange.start_ns - first) / 1e6:.0f} ms later"
        )
    return exchange


class _Call:
    def __init__(
        self,
        endpoint: Endpoint,
        body: dict[str, Any],
        parent: str,
        span_id: int,
        on_text: Callable[[str], None] | None,
        headers: dict[str, str],
    ) -> None:
        import orjson

        self.endpoint, self.on_text, self.headers = endpoint, on_text, headers
        self.content = orjson.dumps(body)
        url = urlsplit(endpoint.chat_url)
        self.x = Exchange(
            url=endpoint.chat_url,
            model=endpoint.model,
            span_id=span_id,
            traceparent=parent,
            request=body,
            request_bytes=len(self.content),
            server_address=url.hostname or "",
            server_port=url.port or (443 if url.scheme == "https" else 80),
        )
        self.open: dict[str, int] = {}
        self.sent_ns = 0
        self.body_start = b""

    def run(self) -> Exchange:
        import httpx

        x = self.x
        # Outside the request's time: making a client reads certificates, which is no part of the request.
        client = http_client(self.endpoint, self.endpoint.timeout_s, self.endpoint.max_retries)
        x.start_ns = time.time_ns()
        try:
            self._look_up()
            with client:
                self._exchange(client)
        except KeyboardInterrupt:
            x.notes.append("interrupted")
        except EndpointError as error:
            x.error = error
        except sse.TooLarge as error:
            x.error = EndpointError(str(error), fix="check that the URL is a chat endpoint", layer=8)
        except (httpx.HTTPError, OSError, httpx.InvalidURL) as error:
            x.error = diagnose.broken(error, self.endpoint, x)
        finally:
            x.end_ns = time.time_ns()
            self._close_phases()
        if x.error is None and "interrupted" not in x.notes:
            x.error = diagnose.unfinished(x, self.endpoint, self.body_start)
            x.complete = x.error is None
        return x

    def _look_up(self) -> None:
        host = self.x.server_address
        start = time.time_ns()
        try:
            found = socket.getaddrinfo(host, self.x.server_port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if not _proxied(self.endpoint):
                raise diagnose.unknown_host(host, error) from error
            return
        numbers = [f[4][0] for f in found]
        if host not in numbers:
            self.x.phases.append(Phase("dns", start, time.time_ns(), {"tokentrace.dns.addresses": len(numbers)}))

    def _trace(self, name: str, info: dict[str, Any]) -> None:
        now = time.time_ns()
        event, _, state = name.rpartition(".")
        phase = {
            "connection.connect_tcp": "connect",
            "connection.start_tls": "tls",
            "proxy.stream.start_tls": "tls",
            "http11.send_request_headers": "send",
            "http2.send_request_headers": "send",
        }.get(event)
        if phase and state == "started":
            self.open[phase] = now
        elif phase and phase != "send" and phase in self.open:
            self.x.phases.append(Phase(phase, self.open.pop(phase), now))
        elif event.endswith("send_request_body") and state == "complete":
            self.sent_ns = now
            self.x.phases.append(
                Phase("send", self.open.pop("send", now), now, {"tokentrace.bytes": len(self.content)})
            )

    def _exchange(self, client: httpx.Client) -> None:
        x = self.x
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "traceparent": x.traceparent,
            **self.headers,
            **self.endpoint.headers,
        }
        request = client.build_request("POST", x.url, content=self.content, headers=headers)
        request.extensions["trace"] = self._trace
        response = client.send(request, stream=True)
        try:
            x.status_code, x.http_version = response.status_code, response.http_version
            x.content_type = response.headers.get("content-type", "")
            keep = ("server", "via", "x-request-id", "retry-after", "cf-ray", "location", "x-served-by")
            x.response_headers = {k: v[:200] for k, v in response.headers.items() if k in keep}
            if response.status_code != 200:
                self._read_whole(response)
                raise diagnose.refused(x, self.endpoint, self.body_start)
            if "text/event-stream" in x.content_type:
                self._stream(response.iter_bytes())
            else:
                self._whole(response)
        finally:
            response.close()

    def _read_whole(self, response: httpx.Response) -> None:
        for data in response.iter_bytes():
            self.x.response_bytes += len(data)
            if len(self.body_start) < _MAX_BODY:
                self.body_start += data
            else:
                break

    def _stream(self, source: Iterator[bytes]) -> None:
        parser = sse.SseParser()
        for data in source:
            now = time.time_ns()
            self.x.response_bytes += len(data)
            if len(self.body_start) < 2000:
                self.body_start += data[:2000]
            for event in parser.feed(data):
                self._event(event, now)
        for event in parser.finish():
            self._event(event, time.time_ns())

    def _event(self, event: sse.SseEvent, now: int) -> None:
        x = self.x
        if event.comment:
            x.keepalives += 1
            x.chunks.append(Chunk(now, "keepalive", event.data[:100], size_bytes=event.size_bytes))
        elif event.data.strip() == "[DONE]":
            x.saw_done = True
            x.chunks.append(Chunk(now, "done", size_bytes=event.size_bytes))
        else:
            value = sse.parse_json(event.data)
            if not isinstance(value, dict):
                x.chunks.append(Chunk(now, "other", size_bytes=event.size_bytes))
                x.notes.append("an event of the stream is not JSON")
                return
            self._value(value, now, event.size_bytes)

    def _value(self, value: dict[str, Any], now: int, size: int) -> None:
        x = self.x
        x.response_id = x.response_id or str(value.get("id") or "")
        x.response_model = x.response_model or str(value.get("model") or "")
        x.usage = sse.usage_of(value) or x.usage
        for piece in sse.pieces(value):
            x.chunks.append(Chunk(now, piece.kind, piece.text, piece.choice, size))
            size = 0
            if piece.kind == "error":
                raise diagnose.error_inside(x, piece.text)
            if piece.choice:
                continue
            if piece.kind == "content":
                x.text += piece.text
                if self.on_text:
                    self.on_text(piece.text)
            elif piece.kind == "reasoning":
                x.reasoning += piece.text
            elif piece.kind == "finish":
                x.finish_reason = piece.finish

    def _whole(self, response: httpx.Response) -> None:
        self._read_whole(response)
        value = sse.parse_json(self.body_start.decode("utf-8", "replace"))
        if not isinstance(value, dict) or not (value.get("choices") or value.get("error")):
            raise diagnose.not_the_api(self.x, self.endpoint, self.body_start, value)
        self.x.notes.append("the answer came in one piece, not as a stream: no time of a token is known")
        self._value(value, time.time_ns(), len(self.body_start))
        self.x.saw_done = True

    def _close_phases(self) -> None:
        x = self.x
        for name, start in self.open.items():
            x.phases.append(Phase(name, start, x.end_ns, {"error.type": "unfinished"}))
        if self.sent_ns:
            first = x.chunks[0].time_ns if x.chunks else x.end_ns
            x.phases.append(Phase("wait", self.sent_ns, first))
            if x.chunks:
                x.phases.append(Phase("stream", first, x.end_ns))


def _proxied(endpoint: Endpoint) -> bool:
    return diagnose.proxy_variable(endpoint.base_url) != ""
