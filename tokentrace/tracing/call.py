"""One request that a program sends through httpx, as an exchange: what went out, what came back, and when."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tokentrace.client import keys, private
from tokentrace.client.chat import kept_headers, traceparent
from tokentrace.client.chunks import parse_json
from tokentrace.client.diagnose import diagnose, error_type
from tokentrace.client.facts import KEPT_BYTES, Facts
from tokentrace.client.gate import drop_told, hide_keys
from tokentrace.client.hiding import Hider
from tokentrace.client.reply import Reply
from tokentrace.client.wire import Wire
from tokentrace.exchange import Exchange
from tokentrace.wording import plural

if TYPE_CHECKING:
    import httpx

    from tokentrace.tracing.block import Block

_MAX_REQUEST_BYTES = 4 * 2**20
#: Fields by which the body of a request for a reply is known.
_ASKS = ("messages", "prompt")


class Call:
    """One request on its way. Every method is safe to call at any time and never raises."""

    def __init__(self, block: Block, request: httpx.Request, is_async: bool) -> None:
        parts = urlsplit(str(request.url))
        where = f"{parts.scheme}://{request.url.netloc.decode('ascii', 'replace').rpartition('@')[2]}{parts.path}"
        self.block = block
        self.wire = Wire(host=parts.hostname or "", port=parts.port or (443 if parts.scheme == "https" else 80))
        asked = _asked(request)
        span_id = block.ids.span_id()
        given = request.headers.get("traceparent")
        self.x = Exchange(
            url=where,  # without the query, where some services want the key
            model=str(asked.get("model") or "") if asked else "",
            span_id=span_id,
            traceparent=given or traceparent(block.trace_number, span_id),
            request=asked or {},
            request_bytes=int(request.headers.get("content-length") or 0),
            start_ns=time.time_ns(),
            server_address=self.wire.host,
            server_port=self.wire.port,
        )
        if asked is None:
            self.x.operation = f"{request.method} {parts.path or '/'}"
        elif "messages" not in asked:
            self.x.operation = "text_completion"
        if given:
            self.x.notes.append("the request carried a traceparent of another tracer, which was left as it is")
        else:
            request.headers["traceparent"] = self.x.traceparent
        self.facts = Facts(self.x.url, self.x.url, self.wire, model=self.x.model)
        self.facts.key_sent = "authorization" in request.headers
        self.facts.request_bytes = self.x.request_bytes
        if asked is not None:
            self.facts.private = private.texts([asked.get(name) for name in _ASKS])
        self.stage, told = block.current_stage()
        if told:
            self.x.notes.append(told)
        self._reply = Reply(self.x, self.facts)
        self.facts.hider = self._hider = Hider(keys.secrets(dict(request.headers), parts.query))
        self._decoder: Any = None
        self._unreadable = ""
        self._ended = False
        #: The kind of error with which the program left this call, "" where it left it without one.
        self.left_with = ""
        self._listen(request, is_async)
        block.begun(self)

    def _listen(self, request: httpx.Request, is_async: bool) -> None:
        """Have httpcore tell when it connects and sends, beside whoever else wanted to be told."""
        other = request.extensions.get("trace")

        def told(name: str, info: Any) -> Any:
            with contextlib.suppress(Exception):
                self._on_wire(name)
            return other(name, info) if other is not None else None

        async def told_async(name: str, info: Any) -> None:
            with contextlib.suppress(Exception):
                self._on_wire(name)
            if other is not None:
                await other(name, info)

        request.extensions = {**request.extensions, "trace": told_async if is_async else told}

    def _on_wire(self, name: str) -> None:
        """Names are httpcore's: https://www.encode.io/httpcore/extensions/#trace"""
        now, wire = time.time_ns(), self.wire
        _, _, event = name.partition(".")
        if event == "connect_tcp.started":
            wire.stage, wire.connect_start_ns = "connect", wire.connect_start_ns or now
        elif event == "connect_tcp.complete":
            wire.connect_end_ns = now
        elif event == "start_tls.started":
            wire.stage, wire.tls_start_ns = "tls", now
        elif event == "start_tls.complete":
            wire.tls_end_ns = now
        elif event == "send_request_headers.started":
            wire.stage, wire.send_start_ns = "send", now
        elif event == "send_request_body.complete":
            wire.stage, wire.send_end_ns = "wait", now
        elif event == "receive_response_headers.complete":
            wire.first_read_ns = now

    def answered(self, response: httpx.Response) -> None:
        with contextlib.suppress(Exception):
            headers = {name.lower(): self._hider.raw_text(value) for name, value in response.headers.items()}
            self.facts.status, self.facts.headers = response.status_code, headers
            self.x.status_code, self.x.response_headers = response.status_code, kept_headers(headers)
            self.x.http_version = str(response.http_version).removeprefix("HTTP/")
            coding = headers.get("content-encoding", "").strip().lower()
            if coding in ("gzip", "x-gzip", "deflate"):
                self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)
            elif coding not in ("", "identity"):
                self._unreadable = f"the answer is compressed with {coding}, which is not read along"

    def arrived(self, data: bytes) -> None:
        """A piece of the body, on its way to the program."""
        now = time.time_ns()
        self.wire.last_read_ns, self.wire.stage, self.wire.body_begun = now, "stream", True
        self.x.response_bytes += len(data)
        if self._unreadable:
            return
        try:
            plain = self._decoder.decompress(data) if self._decoder is not None else data
            if not 200 <= self.facts.status < 300:
                self.facts.body = (self.facts.body + plain)[:KEPT_BYTES]
            elif plain and self.x.is_model_call:
                self._reply.feed(plain, now)
        except Exception as error:  # noqa: BLE001 - the program reads on, only we cannot
            self._unreadable = f"the answer could not be read along: {type(error).__name__}"

    def failed(self, error: BaseException) -> None:
        """The request or its reply ended with an error, which goes on to the program."""
        if not isinstance(error, Exception):
            self._left(error)
            return
        with contextlib.suppress(Exception):
            self.facts.error, self.wire.fault = _cause(error)
        self.facts.error = self.facts.error or error
        self._end("")

    def closed(self, whole: bool) -> None:
        """The program has read the reply to its end, or let go of it before."""
        if whole or self._reply.done:
            self._end()
        else:
            self._left(sys.exc_info()[1])

    def left_open(self, error: BaseException | None) -> None:
        """The block has ended, with this error if any, and this call has not."""
        self.left_with = type(error).__name__ if error is not None else ""
        self._end(let_go="the request was still under way when the trace ended")

    def _left(self, error: BaseException | None) -> None:
        """The program lets go of the call, because of this error of its own if any. That is its right: only what ends
        a whole program is an interruption."""
        if error is not None and not isinstance(error, GeneratorExit):
            self.left_with = type(error).__name__
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            self._end(interrupted=True)
        elif isinstance(error, asyncio.CancelledError):
            self._end(let_go="the program cancelled the call")
        elif self.x.streamed:
            self._end(let_go=f"the program closed the stream after {plural(len(self.x.chunks), 'chunk')}")
        else:
            self._end(let_go="the program stopped reading before the reply's end")

    def _end(self, let_go: str = "", interrupted: bool = False) -> None:
        if self._ended:
            return
        self._ended = True
        x = self.x
        x.end_ns = max(time.time_ns(), x.start_ns)
        with contextlib.suppress(Exception):
            self._reply.close()
            self.facts.elapsed_ns = x.wall_ns
            if self._unreadable:
                x.notes.append(self._unreadable)
            if interrupted:
                x.interrupted, x.error_type = True, "interrupted"
                x.notes.append("interrupted")
            elif let_go:
                x.let_go = let_go
                x.notes.append(let_go)
            else:
                self._judge()
            first = next(iter(x.token_times_ns), 0)
            answered = x.complete or x.status_code >= 300
            wait_end = first or (self.wire.first_read_ns if answered else 0) or x.end_ns
            if not self.wire.send_end_ns and self.wire.first_read_ns:
                self.wire.send_end_ns = self.wire.send_start_ns
            x.phases = self.wire.phases(x.end_ns, wait_end, first > 0, x.error_type if interrupted else "")
        try:
            hide_keys(x, self._hider)
        except Exception:  # noqa: BLE001 - nothing of tokentrace's reaches the program, and no key the trace
            drop_told(x)
        self.block.ended(self)

    def _judge(self) -> None:
        x = self.x
        if x.is_model_call and not self._unreadable:
            error = diagnose(self.facts)
        else:
            error = diagnose(self.facts) if self.facts.error is not None or self.facts.status >= 400 else None
        if error is None:
            x.complete = True
            return
        x.error, x.error_type = error, error_type(error, x.status_code)


def _cause(error: Exception) -> tuple[Exception, OSError | None]:
    """What the network did, in the terms of httpcore, which the diagnosis speaks; and what the system said."""
    import httpcore

    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    fault = next((one for one in chain if isinstance(one, OSError)), None)
    for one in chain:
        if type(one).__module__.startswith("httpcore"):
            same = getattr(httpcore, type(one).__name__, None)
            if isinstance(same, type) and issubclass(same, Exception):
                return same(str(one)), fault
    return error, fault


def _asked(request: httpx.Request) -> dict[str, Any] | None:
    """The body of a request for a reply, None for any other request."""
    if request.method != "POST":
        return None
    try:
        content = request.content
    except Exception:  # noqa: BLE001 - RequestNotRead of whichever package: the body is sent as it is made
        return None
    if not content or len(content) > _MAX_REQUEST_BYTES:
        return None
    try:
        value = parse_json(content)
    except ValueError:
        return None
    return value if isinstance(value, dict) and any(name in value for name in _ASKS) else None
