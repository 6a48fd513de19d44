"""One chat request over real HTTP, with the times of its phases and of everything that arrives.

    exchange = chat(endpoint, [{"role": "user", "content": "Hi"}], trace_id=…, span_id=…, on_text=print)
    exchange.error is None and exchange.complete, exchange.text, exchange.latencies

Nothing that could be billed is sent twice. A second request follows only when the first was refused before a token was
made: a field that the server does not know, a redirect on the same host, or (when the settings ask for retries) no
connection, 429 or 503. Each of these is noted.
"""

from __future__ import annotations

import math
import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import orjson

from tokentrace.client import lookaround, private
from tokentrace.client.causes import failure, of_setting, one_line
from tokentrace.client.diagnose import diagnose, error_type, reply_notes
from tokentrace.client.facts import KEPT_BYTES, Facts
from tokentrace.client.fetch import facts_of, hider_of
from tokentrace.client.gate import hide_keys
from tokentrace.client.hiding import Hider
from tokentrace.client.reply import Reply
from tokentrace.client.settings import Endpoint
from tokentrace.client.transport import Outgoing, Response, exchange, failures, merge, prepare
from tokentrace.client.urls import redirected
from tokentrace.client.wire import Timeouts, Wire
from tokentrace.errors import ConfigError, EndpointError
from tokentrace.exchange import Exchange, Phase

_MAX_CHANGES = 3
_MAX_WAIT_S = 60.0
#: After [DONE] the end of the message is waited for this long, so that the server sees an orderly end.
_DRAIN_S = 1.0
_KEPT_HEADERS = re.compile(
    r"^(server|via|date|content-type|retry-after|x-request-id|request-id|cf-ray|x-served-by|age|x-cache|"
    r"openai-(version|processing-ms|organization)|x-ratelimit-.*|x-envoy-.*|x-litellm-.*|server-timing)$"
)


def traceparent(trace_id: int, span_id: int) -> str:
    """W3C trace context, sampled. https://www.w3.org/TR/trace-context/"""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def chat(
    endpoint: Endpoint,
    messages: Sequence[Mapping[str, Any]],
    *,
    trace_id: int,
    span_id: int,
    max_tokens: int | None = None,
    temperature: float | None = None,
    on_text: Callable[[str], None] | None = None,
    timeout_s: float | None = None,
    timeouts: Timeouts | None = None,
    headers: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    should_stop: Callable[[], bool] | None = None,
    stream: bool = True,
    environ: Mapping[str, str] | None = None,
    look_until: float | None = None,
    ask_models: bool = True,
) -> Exchange:
    """Send one request and read its reply to the end. What the server does wrong is in `Exchange.error`, never raised.

    `timeout_s` overrides the endpoint's, `timeouts` sets every limit on its own; `body` holds more fields of the
    request, `headers` more headers. KeyboardInterrupt, or `should_stop` returning True, ends the request: the exchange
    then holds what had come, with `interrupted` True, `complete` False and the note "interrupted". Looking
    around at the server's other addresses after a failure ends at `look_until` (monotonic seconds), and after
    `lookaround.ALL_S` at the latest. Where no model is named the server is asked for its only one before, unless
    `ask_models` is False.
    """
    call = _Call(endpoint, span_id, traceparent(trace_id, span_id), on_text, should_stop, environ)
    call.limits = timeouts or Timeouts.of(timeout_s or endpoint.timeout_s)
    call.headers = dict(headers or {})
    call.hider = hider_of(endpoint, call.headers)
    call.look_until, call.ask_models = look_until, ask_models
    request: dict[str, Any] = {"model": endpoint.model, "messages": [dict(m) for m in messages], "stream": stream}
    if stream:
        request["stream_options"] = {"include_usage": True}
    if max_tokens is not None:
        request["max_tokens"] = max_tokens
    if temperature is not None:
        request["temperature"] = temperature
    request.update(body or {})
    return call.run(request)


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Those of an answer's headers (names in small letters) that tell something and can hold no key."""
    return {name: value[:500] for name, value in headers.items() if _KEPT_HEADERS.match(name)}


class _Call:
    """One call of `chat`: one or more attempts."""

    limits: Timeouts
    headers: dict[str, str]
    hider: Hider
    look_until: float | None = None
    ask_models: bool = True

    def __init__(
        self,
        endpoint: Endpoint,
        span_id: int,
        parent: str,
        on_text: Callable[[str], None] | None,
        should_stop: Callable[[], bool] | None,
        environ: Mapping[str, str] | None,
    ) -> None:
        self.endpoint = endpoint
        self.url = endpoint.chat_url + endpoint.query
        self.on_text = on_text
        self.should_stop = should_stop
        self.environ = os.environ if environ is None else environ
        self.wires: list[tuple[Wire, Facts, int]] = []  # of each attempt, with its end
        self.pauses: list[Phase] = []
        self.x = Exchange(
            url=endpoint.chat_url,
            model=endpoint.model,
            span_id=span_id,
            traceparent=parent,
            server_address=endpoint.host,
            server_port=endpoint.port,
        )

    def run(self, request: dict[str, Any]) -> Exchange:
        x = self.x
        try:
            # Outside the request's time: imports and certificates are no part of it.
            prepare(self.endpoint, self.environ)
            self._choose_model(request)
            x.start_ns = time.time_ns()
            self._attempts(request)
        except KeyboardInterrupt:
            self._interrupted()
        except (EndpointError, ConfigError) as error:
            self._failed(error)
        x.start_ns = x.start_ns or time.time_ns()
        x.end_ns = max(x.end_ns or time.time_ns(), x.start_ns)
        x.phases = self._phases()
        x.attempts = max(1, len(self.wires))
        hide_keys(x, self.hider)
        return x

    def _choose_model(self, request: dict[str, Any]) -> None:
        if request.get("model"):
            return
        known = lookaround.model_ids(self.endpoint, environ=self.environ) if self.ask_models else None
        if known and len(known) > 1:
            raise failure(
                "TT841",
                f"no model was named and the server has {len(known)}",
                f"--model {known[0]}",
                "it has: " + one_line(", ".join(known[:10]), 600),
            )
        if known:
            request["model"] = self.x.model = known[0]
            self.endpoint = replace(self.endpoint, model=known[0])
            self.x.notes.append(f"no model was named; the server's only one was used: {known[0]}")
        else:
            request.pop("model", None)

    def _attempts(self, request: dict[str, Any]) -> None:
        changes = retries = 0
        while True:
            facts = self._once(request)
            if self.x.interrupted:
                return
            note = self._change(request, facts) if changes < _MAX_CHANGES else ""
            if note:
                changes += 1
                self.x.notes.append(note)
            elif retries < self.endpoint.max_retries and (why := _may_retry(facts)):
                retries += 1
                self._pause(facts, retries, why)
            else:
                self._conclude(facts)
                return

    def _once(self, request: dict[str, Any]) -> Facts:
        """One HTTP exchange; the facts of how it went. What arrives goes into the exchange."""
        from tokentrace.client.network import Stopped

        x = self.x
        content = _as_json(request)
        x.request, x.request_bytes = dict(request), len(content)
        wire, limits = Wire(), replace(self.limits)
        facts = facts_of(self.endpoint, x.url, wire, limits.first_byte_s, self.environ)
        facts.request_bytes = len(content)
        limit = request.get("max_tokens") or request.get("max_completion_tokens")
        facts.max_tokens = limit if isinstance(limit, int) else 0
        facts.private = private.texts(request.get("messages"))
        facts.hider = self.hider
        reply = Reply(x, facts, self.on_text, self.hider)
        headers = merge({"traceparent": x.traceparent, "X-Request-Id": f"tokentrace-{x.span_id:016x}"}, self.headers)
        began = time.time_ns()
        end_ns = 0
        response: Response | None = None
        try:
            outgoing = Outgoing("POST", self.url, content, headers)
            response = exchange(self.endpoint, outgoing, wire, limits, self.should_stop, self.environ)
            self._take_headers(response, facts)
            if 200 <= response.status < 300:
                self._read(response, reply, wire, limits)
            else:
                facts.body = _beginning(response)
            end_ns = wire.last_read_ns
        except (KeyboardInterrupt, Stopped):
            self._interrupted()
        except failures() as error:
            if reply.done:  # the reply is whole; only the message's own end is missing
                end_ns = wire.last_read_ns
                x.notes.append("after [DONE] the connection was not ended properly")
            else:
                facts.error = error
        finally:
            end_ns = end_ns or time.time_ns()
            if response is not None:
                x.response_bytes = response.body_bytes
                response.close()
            reply.close()
            if reply.display_error:
                x.notes.append(f"the reply could not be shown while it came: {one_line(reply.display_error)}")
            x.end_ns = end_ns
            x.proxy = wire.proxy
            facts.elapsed_ns = end_ns - began
            self.wires.append((wire, facts, end_ns))
        return facts

    def _take_headers(self, response: Response, facts: Facts) -> None:
        x = self.x
        facts.status, facts.headers = response.status, response.headers
        x.status_code, x.http_version = response.status, response.http_version
        x.response_headers = kept_headers(response.headers)

    def _read(self, response: Response, reply: Reply, wire: Wire, limits: Timeouts) -> None:
        for data in response.chunks:
            reply.feed(data, wire.last_read_ns)
            if reply.done:
                limits.between_s = min(limits.between_s, _DRAIN_S)

    def _change(self, request: dict[str, Any], facts: Facts) -> str:
        """Change what the server refused, if that changes nothing the user asked for; the note, or "" for no change."""
        if facts.error is not None:
            return ""
        if facts.status in (307, 308):
            target = redirected(self.url, facts.headers.get("location", ""))
            if urlsplit(target)[:2] == urlsplit(self.url)[:2] and target != self.url:
                self.url = target
                return (
                    f"the server redirected ({facts.status}) to {one_line(urlsplit(target).path)}, which was followed"
                )
        if facts.status not in (400, 422):
            return ""
        said = facts.said + facts.text
        if "stream_options" in request and re.search(r"stream_options|include_usage", said):
            del request["stream_options"]
            return f"the server refused stream_options ({facts.status}); the request was sent again without it"
        if "max_tokens" in request and re.search(
            r"max_tokens.{0,80}(not supported|unsupported)|use .{0,3}max_completion_tokens", said, re.DOTALL
        ):
            request["max_completion_tokens"] = request.pop("max_tokens")
            return (
                f"the server refused max_tokens ({facts.status}); the request was sent again with max_completion_tokens"
            )
        return ""

    def _pause(self, facts: Facts, count: int, why: str) -> None:
        from tokentrace.client.network import Backend, Stopped

        asked = facts.headers.get("retry-after", "")
        seconds = float(asked) if re.fullmatch(r"\d{1,6}(\.\d+)?", asked) else 0.5 * 2 ** (count - 1)
        seconds = min(_MAX_WAIT_S, seconds) * (1.0 if asked else random.uniform(0.8, 1.2))
        start = time.time_ns()
        try:
            Backend(Wire(), self.limits, self.should_stop).sleep(seconds)
        except Stopped:
            raise KeyboardInterrupt from None
        finally:
            self.pauses.append(Phase("wait", start, time.time_ns(), {"tokentrace.retry": why}))
        self.x.notes.append(f"{why}; retry {count} of {self.endpoint.max_retries} after {seconds:.1f} s")

    def _conclude(self, facts: Facts) -> None:
        x = self.x
        error = diagnose(facts)
        if error is None:
            x.complete = True
            x.notes += reply_notes(facts)
            if x.request.get("stream") and not x.streamed:
                x.notes.append(
                    "the server did not stream: the reply came in one piece, so no token has a time of its own"
                )
            if x.usage is None:
                x.notes.append("the server sent no usage: how many tokens there were is not known")
            return
        left = lookaround.ALL_S
        if self.look_until is not None:
            left = min(left, self.look_until - time.monotonic())
        try:
            if left > 0:
                lookaround.look(self.endpoint, facts, error, left, self.environ)
        except KeyboardInterrupt:
            x.notes.append("interrupted")
        self._failed(diagnose(facts) or error)

    def _failed(self, error: EndpointError | ConfigError) -> None:
        if not isinstance(error, EndpointError):
            error = of_setting(error)
        self.x.error = error
        self.x.error_type = error_type(error, self.x.status_code)
        if self.x.text or self.x.reasoning:
            self.x.notes.append("what came before the failure is kept, and is not a whole reply")

    def _interrupted(self) -> None:
        self.x.interrupted, self.x.complete = True, False
        if "interrupted" not in self.x.notes:
            self.x.notes.append("interrupted")
        self.x.error_type = self.x.error_type or "interrupted"

    def _phases(self) -> list[Phase]:
        first = next(iter(self.x.token_times_ns), 0)
        found: list[Phase] = []
        for number, (wire, facts, end_ns) in enumerate(self.wires, 1):
            last, status = number == len(self.wires), facts.status
            answered = self.x.complete or status >= 300
            # Without a token, an answer that is one still ends the wait; silence and keep-alives do not.
            wait_end = (first if last else 0) or (wire.first_read_ns if answered else end_ns)
            phases = wire.phases(end_ns, wait_end or end_ns, last and first > 0, self._broken(wire, facts, last))
            for phase in phases:
                if len(self.wires) > 1:
                    phase.attributes["tokentrace.attempt"] = number
                    if phase.name == "wait" and status:
                        phase.attributes["http.response.status_code"] = status
            found += phases
        return sorted([*found, *self.pauses], key=lambda p: p.start_ns)

    def _broken(self, wire: Wire, facts: Facts, last: bool) -> str:
        if facts.error is not None:
            return f"timeout: {wire.limit}" if wire.limit else "failed"
        return "interrupted" if last and self.x.interrupted else ""


def _as_json(request: Mapping[str, Any]) -> bytes:
    """Raises ConfigError for a field that JSON has no form for."""
    temperature = request.get("temperature")
    if isinstance(temperature, float) and not math.isfinite(temperature):
        raise ConfigError(f"a temperature of {temperature} cannot be sent", fix="give a number from 0 to 2", layer=8)
    try:
        return orjson.dumps(request)
    except TypeError as error:  # a number of too many digits, a lone surrogate, an object of Python
        sizes = [name for name, value in request.items() if isinstance(value, int) and value.bit_length() > 63]
        what = f"{sizes[0]} is larger than any server takes" if sizes else f"the request cannot be sent: {error}"
        raise ConfigError(what, fix="give a smaller number" if sizes else "change what it holds", layer=8) from None


def _may_retry(facts: Facts) -> str:
    """Why the same request may be sent again, or "" when it may not: no token can have been made."""
    if facts.error is not None:
        early = facts.wire.stage in ("dns", "connect", "tls") and not isinstance(facts.error, ConfigError)
        return "no connection came about" if early else ""
    return f"the server answered {facts.status}" if facts.status in (429, 503) else ""


def _beginning(response: Response) -> bytes:
    body = b""
    for data in response.chunks:
        body += data
        if len(body) >= KEPT_BYTES:
            break
    return body[:KEPT_BYTES]
