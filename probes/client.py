"""Layer 8: the request as the client sent it and the reply as it came, and the server's side of the same HTTP.

The times come from the exchange, which the client wrote while it sent and read. With the agent in the server, its own
view is added: the handler as a whole, reading the request, writing each chunk.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tokentrace.errors import ProbeUnavailable
from tokentrace.exchange import TOKEN_KINDS, Exchange, prompt_of
from tokentrace.model import DOWN, KIND_CLIENT, STATUS_ERROR, STATUS_UNSET, UP, Event, Record
from tokentrace.probe import Finding, LayerState, ProbeContext
from tokentrace.probes._agent import AgentProbe
from tokentrace.probes._http_server import server_side
from tokentrace.probes._text import SHOWN, quote

LAYER = 8
GROUP = "http"
#: Events kept one by one on the chat span; a longer reply keeps its first ones, and says how many there were.
_MAX_EVENTS = 8_192
#: Host name endings by the provider names of the OpenTelemetry conventions.
_PROVIDERS = {
    "openai.azure.com": "azure.ai.openai", "services.ai.azure.com": "azure.ai.inference", "openai.com": "openai",
    "groq.com": "groq", "deepseek.com": "deepseek", "mistral.ai": "mistral_ai", "x.ai": "x_ai",
    "perplexity.ai": "perplexity", "anthropic.com": "anthropic", "cohere.com": "cohere",
    "generativelanguage.googleapis.com": "gcp.gemini", "aiplatform.googleapis.com": "gcp.vertex_ai",
    "amazonaws.com": "aws.bedrock", "openrouter.ai": "openrouter", "together.xyz": "together_ai",
}  # fmt: skip


class ClientProbe(AgentProbe):
    """Phases, chunks and tokens of one exchange; with the agent, also parsing and writing inside the server."""

    layer = LAYER

    def __init__(self) -> None:
        super().__init__()
        self._server_side = ""  # why the server's own side cannot be seen

    def check(self, context: ProbeContext) -> Iterable[Finding]:
        """Nothing has to be there for this layer but an endpoint, and only a request shows whether that works."""
        sides = "the client's side and the server's" if context.agent is not None else "the client's side"
        return [Finding(LAYER, f"The request and its reply can be seen from {sides}.", status="ok")]

    def arm(self, context: ProbeContext) -> None:
        self.state = LayerState(LAYER)
        self._server_side = ""
        if context.agent is None:
            self._server_side = "there is no agent in the server"
            return
        try:
            self._enable(context.agent, GROUP)
        except ProbeUnavailable as error:
            # The client's own side needs no agent.
            self._server_side = str(error)

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        exchange = context.exchange
        if exchange is None:
            raise ProbeUnavailable("no request was sent", fix="run the request again", layer=LAYER)
        records = [_chat(exchange), *_phases(exchange)]
        served: list[Record] = []
        if context.agent is not None and not self._server_side:
            served = server_side(context.agent.records(GROUP), exchange, context.request_id)
        self._conclude(exchange, len(served))
        return [*records, *served]

    def _conclude(self, x: Exchange, served: int) -> None:
        facts: dict[str, Any] = {
            "status_code": x.status_code or None,
            "wall_ns": x.wall_ns,
            "ttft_ns": x.ttft_ns,
            "text_chunks": len(x.token_times_ns),
            "tokens_per_s": x.pace.tokens_per_s if x.pace.exact else None,
            "keepalives": x.keepalives,
            "request_bytes": x.request_bytes,
            "response_bytes": x.response_bytes,
            "attempts": x.attempts,
            "server_records": served,
        }
        if x.pace.tokens_per_s is not None and not x.pace.exact:
            facts["tokens_per_s_at_most"] = x.pace.tokens_per_s
        if x.pace.why:
            facts["tokens_per_s_why"] = x.pace.why
        if self._server_side:
            facts["server_side"] = self._server_side
        if x.proxy:
            facts["proxy"] = x.proxy
        if x.error is not None:
            facts["error_check"] = x.error.check
        self.state.facts.update(facts)


def _chat(x: Exchange) -> Record:
    error = x.error
    failed = error is not None or x.interrupted
    message = str(error) if error is not None else "interrupted" if x.interrupted else ""
    return Record(
        f"{x.operation} {x.model or x.response_model}".rstrip() if x.is_model_call else x.operation,
        LAYER,
        x.start_ns,
        x.end_ns,
        dict(_chat_attributes(x)),
        span_id=x.span_id,
        key="chat",
        kind=KIND_CLIENT,
        flow=True,
        envelope=True,
        status=STATUS_ERROR if failed else STATUS_UNSET,
        status_message=message,
        events=list(_events(x)),
    )


def _chat_attributes(x: Exchange) -> Iterator[tuple[str, Any]]:
    """Those that are known; nothing stands for what is not."""
    if x.is_model_call:
        yield "gen_ai.operation.name", x.operation
        yield "gen_ai.provider.name", _provider(x.server_address)
        yield "gen_ai.request.stream", bool(x.request.get("stream"))
    if model := x.model or x.response_model:
        yield "gen_ai.request.model", model
    for field, name in (("max_tokens", "max_tokens"), ("max_completion_tokens", "max_tokens"),
                        ("temperature", "temperature"), ("top_p", "top_p"), ("seed", "seed")):  # fmt: skip
        if isinstance(x.request.get(field), (int, float)):
            yield f"gen_ai.request.{name}", x.request[field]
    if x.response_id:
        yield "gen_ai.response.id", x.response_id
    if x.response_model:
        yield "gen_ai.response.model", x.response_model
    if x.finish_reason:
        yield "gen_ai.response.finish_reasons", [x.finish_reason]
    if (first := _first_chunk_ns(x)) is not None:
        yield "gen_ai.response.time_to_first_chunk", (first - x.start_ns) / 1e9
    if x.ttft_ns is not None:
        yield "tokentrace.ttft_ns", x.ttft_ns
    if x.input_tokens is not None:
        yield "gen_ai.usage.input_tokens", x.input_tokens
    if x.output_tokens is not None:
        yield "gen_ai.usage.output_tokens", x.output_tokens
    yield "server.address", x.server_address
    yield "server.port", x.server_port
    yield "url.full", x.url
    yield "http.request.method", "POST" if x.is_model_call else x.operation.partition(" ")[0]
    yield "http.request.body.size", x.request_bytes
    if x.status_code:
        yield "http.response.status_code", x.status_code
        yield "http.response.body.size", x.response_bytes
        yield "network.protocol.name", "http"
        yield "network.protocol.version", x.http_version
    if x.attempts > 1:
        yield "http.request.resend_count", x.attempts - 1
    yield "tokentrace.form.in", quote(prompt_of(x.request))
    yield "tokentrace.form.out", quote(x.text or x.reasoning)
    yield "tokentrace.stream.chunks", len(x.token_times_ns)
    yield "tokentrace.stream.keepalives", x.keepalives
    yield "tokentrace.complete", x.complete
    if x.proxy:
        yield "tokentrace.proxy", x.proxy
    if x.error_type:
        yield "error.type", x.error_type
    if x.error is not None:
        yield "tokentrace.error.layer", x.error.layer
        yield "tokentrace.error.fix", x.error.fix
        if x.error.check:
            yield "tokentrace.error.check", x.error.check
    if x.notes:
        yield "tokentrace.notes", list(x.notes)


def _first_chunk_ns(x: Exchange) -> int | None:
    """When the stream's first chunk came. By the conventions that is one of any content: a role counts, a comment is
    none."""
    chunks = [c.time_ns for c in x.chunks if c.kind not in ("keepalive", "error", "done")] if x.streamed else []
    return chunks[0] if chunks else None


def _events(x: Exchange) -> Iterator[Event]:
    index = -1
    for chunk in x.chunks[:_MAX_EVENTS]:
        if chunk.kind in TOKEN_KINDS and chunk.choice == 0 and not x.streamed:
            # All tokens in one piece, which has a time and they have none.
            held: dict[str, Any] = {"tokentrace.text": chunk.text[:500], "tokentrace.bytes": chunk.size_bytes}
            yield Event("tokentrace.reply", chunk.time_ns, held)
        elif chunk.kind in TOKEN_KINDS and chunk.choice == 0:
            index += 1
            yield Event(
                "tokentrace.token",
                chunk.time_ns,
                {
                    "tokentrace.token.index": index,
                    "tokentrace.token.text": chunk.text,
                    "tokentrace.token.kind": chunk.kind,
                    "tokentrace.form": "text",
                    "tokentrace.bytes": chunk.size_bytes,
                },
            )
        elif chunk.kind == "keepalive":
            yield Event("tokentrace.keepalive", chunk.time_ns, {"tokentrace.bytes": chunk.size_bytes})
        elif chunk.kind in ("role", "finish", "usage", "error", "done"):
            held = {"tokentrace.bytes": chunk.size_bytes}
            if chunk.kind in ("finish", "error") and chunk.text:
                held["tokentrace.text"] = chunk.text[:500]
            yield Event(f"tokentrace.{chunk.kind}", chunk.time_ns, held)
    if len(x.chunks) > _MAX_EVENTS:
        more = len(x.chunks) - _MAX_EVENTS
        yield Event("tokentrace.more_chunks", x.chunks[-1].time_ns, {"tokentrace.count": more})


def _phases(x: Exchange) -> Iterator[Record]:
    last = max((i for i, p in enumerate(x.phases) if p.name == "send"), default=-1)
    for index, phase in enumerate(x.phases):
        attributes = dict(phase.attributes)
        if index == last:
            attributes["tokentrace.form.in"] = quote(prompt_of(x.request))
            attributes["tokentrace.form.out"] = f"HTTP body, {x.request_bytes} bytes {_body(x)}"
            attributes["http.request.body.size"] = x.request_bytes
        elif phase.name == "stream":
            kind = f"{len(x.token_times_ns)} SSE chunks" if x.streamed else "HTTP body"
            attributes["tokentrace.form.in"] = f"{kind}, {x.response_bytes} bytes"
            attributes["tokentrace.form.out"] = quote(x.text or x.reasoning)
        failed = "error.type" in attributes and x.error is not None
        yield Record(
            phase.name,
            LAYER,
            phase.start_ns,
            phase.end_ns,
            attributes,
            UP if phase.name == "stream" else DOWN,
            parent_key="chat",
            flow=True,
            envelope=phase.name in ("wait", "stream"),
            status=STATUS_ERROR if failed else STATUS_UNSET,
            status_message=str(x.error) if failed else "",
        )


def _provider(host: str) -> str:
    for ending, name in _PROVIDERS.items():
        if host == ending or host.endswith("." + ending):
            return name
    return "openai_compatible"


def _body(x: Exchange) -> str:
    text = json.dumps(x.request, ensure_ascii=False, separators=(",", ":"), default=str)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
