"""Layer 7: text to token ids on the way down, token ids to text on the way up.

From inside (agent): the chat template, the encoding, the decoding of every token. From outside: the server's /tokenize,
asked after the request; that is a call of our own and no part of the request's time, and its span says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokentrace.errors import EndpointError, ProbeUnavailable
from tokentrace.model import DOWN, UP, Attributes, Record
from tokentrace.probe import Finding, LayerState, ProbeContext, Raw

LAYER = 7
FIX = "trace a server with the agent in it, or one that offers /tokenize (vLLM, SGLang, llama.cpp)"
_SHOWN = 60


class TokenizerProbe:
    """See the module's docstring."""

    layer = LAYER

    def __init__(self) -> None:
        self.state = LayerState(LAYER)
        self._agent: Any = None

    def check(self, context: ProbeContext) -> Iterable[Finding]:
        return ()

    def arm(self, context: ProbeContext) -> None:
        self.state = LayerState(LAYER)
        if context.agent is not None:
            context.agent.enable("tokenizer")
            self._agent = context.agent

    def disarm(self) -> None:
        if self._agent is not None:
            self._agent.disable("tokenizer")
            self._agent = None

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        if context.agent is None:
            return [self._outside(context)]
        rid = context.request_id
        raws = [r for r in context.agent.records("tokenizer") if not rid or r.data.get("rid") == rid]
        if not raws:
            raise ProbeUnavailable("the tokenizer recorded nothing for this request", fix="look at the server's log")
        return [_record(raw, context) for raw in raws]

    def _outside(self, context: ProbeContext) -> Record:
        import time

        exchange = context.exchange
        if context.server is None or exchange is None:
            raise ProbeUnavailable("there is no server to ask", fix=FIX)
        messages = exchange.request.get("messages")
        start = time.time_ns()
        try:
            answer = context.server.post_json("/tokenize", {"model": exchange.model, "messages": messages})
        except EndpointError as error:
            raise ProbeUnavailable(f"seen only from outside, and {error}", fix=FIX) from error
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(ids, list) or not all(isinstance(i, int) for i in ids):
            raise ProbeUnavailable("the answer of /tokenize has no token ids in it", fix=FIX)
        spent = time.time_ns() - start
        attributes = {
            **_ids(ids),
            "tokentrace.tokenize.own_call_ns": spent,
            "tokentrace.note": "asked after the request; its duration is no part of it",
            "tokentrace.form.in": _quote(_prompt(messages)),
            "tokentrace.form.out": _ids_text(ids),
        }
        if exchange.input_tokens is not None:
            attributes["tokentrace.tokens.server_counted"] = exchange.input_tokens
            self.state.facts["counts_agree"] = exchange.input_tokens == len(ids)
        return Record(
            "tokenize", LAYER, exchange.start_ns, exchange.start_ns, attributes, DOWN, parent_key="chat", flow=True
        )


def _record(raw: Raw, context: ProbeContext) -> Record:
    data = raw.data
    way = UP if raw.name == "decode" else DOWN
    name = {"template": "chat template"}.get(raw.name, raw.name)
    attributes: Attributes
    if raw.name == "template":
        prompt = _prompt((context.exchange.request.get("messages") if context.exchange else None) or [])
        attributes = {
            "code.function.name": "Tokenizer.render",
            "tokentrace.chars": data.get("chars_out", 0),
            "tokentrace.form.in": _quote(prompt),
            "tokentrace.form.out": _quote(data.get("text_out", "")),
        }
    elif raw.name == "encode":
        ids = data.get("ids") or []
        attributes = {
            "code.function.name": "Tokenizer.encode",
            **_ids(ids, data.get("count")),
            "tokentrace.form.in": f"{data.get('chars', 0)} characters",
            "tokentrace.form.out": _ids_text(ids, data.get("count")),
        }
    else:
        attributes = {
            "code.function.name": "Detokenizer.step",
            "tokentrace.token.index": data.get("index", 0),
            "tokentrace.token.id": data.get("id", 0),
            "tokentrace.form.in": str(data.get("id", "")),
            "tokentrace.form.out": _quote(data.get("text", "")),
        }
    return Record(
        name, LAYER, raw.start_ns, raw.end_ns, attributes, way, raw.process, raw.thread,
        parent_key=f"request-http:{data.get('rid')}", request=str(data.get("rid", "")), join="request_id", flow=True,
    )  # fmt: skip


def _ids(ids: list[int], count: int | None = None) -> Attributes:
    total = count if count is not None else len(ids)
    attributes: Attributes = {"tokentrace.tokens.count": total, "tokentrace.tokens.first": ids[:16]}
    if len(ids) > 16 and total == len(ids):
        attributes["tokentrace.tokens.last"] = ids[-8:]
    return attributes


def _ids_text(ids: list[int], count: int | None = None) -> str:
    total = count if count is not None else len(ids)
    more = ", …" if total > 3 else ""
    return f"{total} ids [{', '.join(map(str, ids[:3]))}{more}]"


def _prompt(messages: Any) -> str:
    for message in reversed(messages or []):
        if isinstance(message, dict) and message.get("role") == "user":
            return str(message.get("content", ""))
    return ""


def _quote(text: str) -> str:
    return f'"{text[:_SHOWN]}…"' if len(text) > _SHOWN else f'"{text}"'
