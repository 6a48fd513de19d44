"""Layer 8: the request as the client sent it and the reply as it came, and the server's side of the same HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tokentrace.errors import ProbeUnavailable
from tokentrace.exchange import Exchange
from tokentrace.model import DOWN, KIND_CLIENT, KIND_SERVER, STATUS_ERROR, STATUS_UNSET, UP, Event, Record
from tokentrace.probe import Finding, LayerState, ProbeContext, Raw

_TOKEN_KINDS = ("content", "reasoning", "tool")
_MAX_EVENTS = 4096
_SHOWN = 60


class ClientProbe:
    """Phases, chunks and tokens of one exchange; with the agent, also parsing and writing inside the server."""

    layer = 8

    def __init__(self) -> None:
        self.state = LayerState(8)
        self._armed: ProbeContext | None = None

    def check(self, context: ProbeContext) -> Iterable[Finding]:
        return ()

    def arm(self, context: ProbeContext) -> None:
        if context.agent is None:
            return
        try:
            context.agent.enable("http")
            self._armed = context
        except ProbeUnavailable as error:
            # The client's own side needs no agent.
            self.state.facts["server_side"] = str(error)

    def disarm(self) -> None:
        if self._armed is not None and self._armed.agent is not None:
            self._armed.agent.disable("http")
        self._armed = None

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        exchange = context.exchange
        if exchange is None:
            raise ProbeUnavailable("no request was sent")
        records = [_chat(exchange), *_phases(exchange)]
        if context.agent is not None:
            records += _server_side(context.agent.records("http"), exchange)
        return records


def _chat(x: Exchange) -> Record:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai_compatible",
        "gen_ai.request.stream": True,
        "server.address": x.server_address,
        "server.port": x.server_port,
        "url.full": x.url,
        "http.request.method": "POST",
        "http.request.body.size": x.request_bytes,
        "http.response.body.size": x.response_bytes,
        "tokentrace.form.in": _quote(_prompt(x)),
        "tokentrace.form.out": _quote(x.text) if x.text else "",
    }
    if x.model or x.response_model:
        attributes["gen_ai.request.model"] = x.model or x.response_model
    for name in ("max_tokens", "temperature", "top_p"):
        if x.request.get(name) is not None:
            attributes[f"gen_ai.request.{name}"] = x.request[name]
    if x.response_id:
        attributes["gen_ai.response.id"] = x.response_id
    if x.response_model:
        attributes["gen_ai.response.model"] = x.response_model
    if x.finish_reason:
        attributes["gen_ai.response.finish_reasons"] = [x.finish_reason]
    if x.ttft_ns is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = x.ttft_ns / 1e9
    if x.input_tokens is not None:
        attributes["gen_ai.usage.input_tokens"] = x.input_tokens
    if x.output_tokens is not None:
        attributes["gen_ai.usage.output_tokens"] = x.output_tokens
    if x.status_code:
        attributes["http.response.status_code"] = x.status_code
        attributes["network.protocol.version"] = x.http_version.removeprefix("HTTP/")
    if x.keepalives:
        attributes["tokentrace.keepalives"] = x.keepalives
    if x.notes:
        attributes["tokentrace.notes"] = list(x.notes)
    status, message = STATUS_UNSET, ""
    if x.error is not None:
        attributes["error.type"] = str(x.status_code) if x.status_code not in (0, 200) else type(x.error).__name__
        status, message = STATUS_ERROR, str(x.error)
    return Record(
        f"chat {x.model or x.response_model or 'model'}",
        8,
        x.start_ns,
        x.end_ns,
        attributes,
        span_id=x.span_id,
        key="chat",
        kind=KIND_CLIENT,
        flow=True,
        envelope=True,
        status=status,
        status_message=message,
        events=list(_events(x)),
    )


def _events(x: Exchange) -> Iterator[Event]:
    index = 0
    for chunk in x.chunks[:_MAX_EVENTS]:
        if chunk.kind in _TOKEN_KINDS:
            if chunk.choice == 0:
                held = {
                    "tokentrace.token.index": index,
                    "tokentrace.token.text": chunk.text,
                    "tokentrace.kind": chunk.kind,
                }
                yield Event("tokentrace.token", chunk.time_ns, held)
                index += 1
        elif chunk.kind != "other":
            yield Event(f"tokentrace.{chunk.kind}", chunk.time_ns, {"tokentrace.bytes": chunk.size_bytes})


def _phases(x: Exchange) -> Iterator[Record]:
    for phase in x.phases:
        attributes = dict(phase.attributes)
        if phase.name == "send":
            attributes["tokentrace.form.in"] = _quote(_prompt(x))
            attributes["tokentrace.form.out"] = f"HTTP body, {x.request_bytes} bytes"
        elif phase.name == "stream":
            attributes["tokentrace.form.in"] = f"{len(x.token_times_ns)} SSE chunks"
            attributes["tokentrace.form.out"] = _quote(x.text or x.reasoning)
        way = UP if phase.name == "stream" else DOWN
        holds = phase.name in ("wait", "stream")
        yield Record(
            phase.name,
            8,
            phase.start_ns,
            phase.end_ns,
            attributes,
            way,
            parent_key="chat",
            flow=True,
            envelope=holds,
        )


def _server_side(raws: Iterable[Raw], x: Exchange) -> list[Record]:
    found: list[Record] = []
    ours = {raw.data.get("rid") for raw in raws if raw.name == "request" and _is_ours(raw, x)}
    for raw in raws:
        rid = raw.data.get("rid")
        if rid not in ours:
            continue
        place: dict[str, Any] = {"process": raw.process, "thread": raw.thread, "request": rid, "flow": True}
        parent = f"request-http:{rid}"
        if raw.name == "request":
            attributes = {
                "http.request.method": raw.data.get("method", "POST"),
                "url.path": raw.data.get("path", ""),
                "tokentrace.request_id": rid,
            }
            if raw.data.get("status"):
                attributes["http.response.status_code"] = raw.data["status"]
            name = f"POST {raw.data.get('path', '')}"
            found.append(
                Record(
                    name, 8, raw.start_ns, raw.end_ns, attributes, parent_id=x.span_id, key=parent,
                    join="traceparent", kind=KIND_SERVER, envelope=True, **place,
                )
            )  # fmt: skip
        elif raw.name == "parse":
            found.append(
                Record(
                    "parse request",
                    8,
                    raw.start_ns,
                    raw.end_ns,
                    {},
                    DOWN,
                    parent_key=parent,
                    join="request_id",
                    **place,
                )
            )
        elif raw.name == "write":
            attributes = {"tokentrace.index": raw.data.get("index", 0), "tokentrace.bytes": raw.data.get("bytes", 0)}
            found.append(
                Record(
                    "write chunk",
                    8,
                    raw.start_ns,
                    raw.end_ns,
                    attributes,
                    UP,
                    parent_key=parent,
                    join="request_id",
                    **place,
                )
            )
    return found


def _is_ours(raw: Raw, x: Exchange) -> bool:
    return raw.data.get("traceparent") == x.traceparent


def _prompt(x: Exchange) -> str:
    for message in reversed(x.request.get("messages") or []):
        if isinstance(message, dict) and message.get("role") == "user":
            return str(message.get("content", ""))
    return ""


def _quote(text: str) -> str:
    return f'"{text[:_SHOWN]}…"' if len(text) > _SHOWN else f'"{text}"'
