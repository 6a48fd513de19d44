"""Layer 7: text to token ids on the way down, token ids to text on the way up.

From inside (the agent's group "tokenizer"): chat template, encoding, decoding of each token. From outside: the server
is asked to tokenize the same messages once more, after the request. That is a call of our own and no part of the
request's time: its span has no length, and says how long the call took.

`state.facts`: prompt_tokens, decoded_tokens, encode_ns, decode_ns.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokentrace.errors import EndpointError
from tokentrace.exchange import Exchange, prompt_of
from tokentrace.model import DOWN, UP, Attributes, Record
from tokentrace.probe import Finding, LayerState, ProbeContext, ProbeUnavailable, Raw, Server
from tokentrace.probes._agent import AgentProbe
from tokentrace.probes._request import our_id
from tokentrace.probes._text import quote
from tokentrace.wording import plural

LAYER = 7
GROUP = "tokenizer"
FIX = "look inside it on its own machine (tokentrace attach URL), or use one that offers /tokenize (vLLM, SGLang)"
_FIRST, _LAST = 16, 8
_NAMES = {"template": "chat template", "render": "render prompt"}
_FUNCTIONS = {"template": "Tokenizer.render", "encode": "Tokenizer.encode", "decode": "Detokenizer.step"}
_FUNCTIONS_VLLM = {
    "render": "BaseRenderer.render_chat_async",
    "template": "safe_apply_chat_template", "encode": "BaseRenderer._tokenize_prompt",
    "decode": "BaseIncrementalDetokenizer.update",
}  # fmt: skip


class TokenizerProbe(AgentProbe):
    """See the module's docstring. Option `with_text`: keep texts in any mode, not only with the local engine."""

    layer = LAYER

    def check(self, context: ProbeContext) -> Iterable[Finding]:
        if context.agent is not None:
            return [Finding(LAYER, "the tokenizer can be seen through the agent")]
        return [
            Finding(
                LAYER, "whether the server offers /tokenize is seen when a request is traced", fix=FIX, status="unknown"
            )
        ]

    def arm(self, context: ProbeContext) -> None:
        self.state = LayerState(LAYER)
        if context.agent is not None:
            text = context.mode == "local" or bool(context.options.get("with_text"))
            self._enable(context.agent, GROUP, {"text": text})

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        if context.agent is None:
            return [self._outside(context)]
        raws = context.agent.records(GROUP)
        rid = our_id(context, (str(raw.data.get("rid", "")) for raw in raws))
        ours = [raw for raw in raws if rid and raw.data.get("rid") == rid]
        if not ours:
            if context.mode == "trace":  # a call in the program itself: there is no server
                raise ProbeUnavailable("no tokenizer was seen at work for this call")
            raise ProbeUnavailable(
                "the tokenizer recorded nothing for this request",
                fix="look at the server's log: the request may have been refused before it was tokenized",
            )
        self._facts(ours)
        rendered = next((raw for raw in ours if raw.name == "template"), None)
        functions = _FUNCTIONS_VLLM if context.agent.facts().get("engine") == "vllm" else _FUNCTIONS
        return [_record(raw, rendered, context.exchange, functions) for raw in ours]

    def _facts(self, ours: Sequence[Raw]) -> None:
        facts = self.state.facts
        for name in ("encode", "decode"):
            facts[f"{name}_ns"] = sum(raw.end_ns - raw.start_ns for raw in ours if raw.name == name)
        facts["decoded_tokens"] = sum(raw.name == "decode" for raw in ours)
        counts = [raw.data["count"] for raw in ours if raw.name == "encode" and "count" in raw.data]
        if counts:
            facts["prompt_tokens"] = sum(counts)

    def _outside(self, context: ProbeContext) -> Record:
        server, exchange = context.server, context.exchange
        if server is None or exchange is None:
            raise ProbeUnavailable("there is no server to ask", fix=FIX)
        if exchange.error is not None:
            raise ProbeUnavailable("the server was not asked for it, because the request failed", fix="mend that first")
        before = time.time_ns()
        ids, how, whole = _ask(server, exchange)
        spent = time.time_ns() - before
        attributes: Attributes = {
            "tokentrace.tokenize.call_ns": spent,
            "tokentrace.tokenize.note": f"asked after the request, no part of its time; {how}",
            "tokentrace.form.in": quote(prompt_of(exchange.request)),
            "tokentrace.form.out": ids_text(ids, len(ids)),
            **_ids(ids, len(ids)),
        }
        if not whole:
            # Not the ids the model saw: nobody may compare this number with the server's count.
            attributes["tokentrace.tokens.text_only"] = attributes.pop("tokentrace.tokens.count")
        else:
            self.state.facts["prompt_tokens"] = len(ids)
        at = exchange.start_ns
        return Record("tokenize", LAYER, at, at, attributes, DOWN, parent_key="chat", flow=True, join="time")


def _ask(server: Server, exchange: Exchange) -> tuple[list[int], str, bool]:
    """(ids, how they were got, whether they are the whole prompt). Raises ProbeUnavailable.

    vLLM takes the messages. llama.cpp renders them with /apply-template and tokenizes `content`. SGLang tokenizes a
    text, so that the chat template's tokens are missing.
    """
    request = exchange.request
    messages, text = request.get("messages"), prompt_of(request)
    first: EndpointError | None = None
    if messages:
        body: dict[str, Any] = {"model": exchange.model, "messages": messages, "add_generation_prompt": True}
    else:
        body = {"model": exchange.model, "prompt": text}
    try:
        ids = _token_ids(server.post_json("/tokenize", body))
        if ids is not None:
            return ids, "the server's /tokenize with the same messages", True
    except EndpointError as error:
        first = error
    if messages:
        try:
            rendered = server.post_json("/apply-template", {"messages": messages})
            if isinstance(rendered, Mapping) and isinstance(rendered.get("prompt"), str):
                asked = {"content": rendered["prompt"], "add_special": True, "parse_special": True}
                ids = _token_ids(server.post_json("/tokenize", asked))
                if ids is not None:
                    return ids, "the server's /apply-template, then /tokenize", True
        except EndpointError:
            pass
        try:
            asked = {"model": exchange.model, "prompt": text, "add_special_tokens": False}
            ids = _token_ids(server.post_json("/tokenize", asked))
            if ids:
                return ids, "the server's /tokenize of the last message alone, without the chat template", False
        except EndpointError:
            pass
    why = str(first) if first is not None else "the answer of its /tokenize holds no token ids"
    raise ProbeUnavailable(f"the tokenizer lies inside the server, and {why}", fix=FIX)


def _token_ids(answer: Any) -> list[int] | None:
    """{"tokens": [1, 2]}, or llama.cpp's {"tokens": [{"id": 1}, …]}."""
    tokens = answer.get("tokens") if isinstance(answer, Mapping) else None
    if not isinstance(tokens, list):
        return None
    ids = [token.get("id") if isinstance(token, Mapping) else token for token in tokens]
    whole = [one for one in ids if type(one) is int]
    return whole if len(whole) == len(ids) else None


def _record(
    raw: Raw, rendered: Raw | None, exchange: Exchange | None, functions: Mapping[str, str] = _FUNCTIONS
) -> Record:
    data = raw.data
    attributes: Attributes = {"code.function.name": functions.get(raw.name, raw.name)}
    if raw.name == "render":
        pass  # what it took and gave say the two parts of it
    elif raw.name == "template":
        said = quote(prompt_of(exchange.request)) if exchange is not None else _characters(data.get("chars_in"))
        attributes["tokentrace.template.characters"] = data.get("chars_out", 0)
        attributes["tokentrace.form.in"] = said
        attributes["tokentrace.form.out"] = _text(data, "text_out", "chars_out")
        if "text_out" in data:
            attributes["tokentrace.template.text"] = data["text_out"]
    elif raw.name == "encode":
        ids, count = data.get("ids") or [], int(data.get("count") or 0)
        attributes.update(_ids(ids, count))
        attributes["tokentrace.form.in"] = (
            _text(rendered.data, "text_out", "chars_out") if rendered is not None else _characters(data["chars"])
        )
        attributes["tokentrace.form.out"] = ids_text(ids, count)
    elif data.get("count", 1) != 1:  # a whole reply at once
        attributes.update(_ids(data.get("ids") or [], data["count"]))
        attributes["tokentrace.form.in"] = ids_text(data.get("ids") or [], data["count"])
        attributes["tokentrace.form.out"] = _text(data, "text", "chars")
    else:
        attributes["tokentrace.token.index"] = data.get("index", 0)
        attributes["tokentrace.form.in"] = str(data.get("id", "1 id"))
        if "id" in data:
            attributes["tokentrace.token.id"] = data["id"]
        attributes["tokentrace.form.out"] = _text(data, "text", "chars")
        if "text" in data:
            attributes["tokentrace.token.text"] = data["text"]
    if "error" in data:
        attributes["error.type"] = data["error"]
    rid = str(data["rid"])
    return Record(
        _NAMES.get(raw.name, raw.name), LAYER, raw.start_ns, raw.end_ns, attributes,
        UP if raw.name == "decode" else DOWN, raw.process, raw.thread, parent_key=f"request-http:{rid}", request=rid,
        join="request_id", flow=True,
    )  # fmt: skip


def _text(data: Mapping[str, Any], text: str, characters: str) -> str:
    if text in data:
        return quote(data[text])
    return _characters(data.get(characters))


def _characters(count: int | None) -> str:
    return "? characters" if count is None else plural(count, "character")


def _ids(ids: Sequence[int], count: int) -> Attributes:
    """Count, the first ids, and the last ones if they are known."""
    attributes: Attributes = {"tokentrace.tokens.count": count}
    if ids:
        attributes["tokentrace.tokens.first"] = list(ids[:_FIRST])
    if len(ids) == count > _FIRST:
        attributes["tokentrace.tokens.last"] = list(ids[max(_FIRST, count - _LAST) :])
    return attributes


def ids_text(ids: Sequence[int], count: int) -> str:
    """31 ids [1, 9690, 198, …]; without the ids where they were not kept."""
    if count and not ids:
        return f"{count} id{'s' * (count != 1)}"
    shown = ", ".join(map(str, ids[:3]))
    return f"{count} id{'s' * (count != 1)} [{shown}{', …' if count > 3 else ''}]"
