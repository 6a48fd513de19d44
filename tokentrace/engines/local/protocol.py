"""The OpenAI protocol: reading request bodies, and the JSON that goes back. Nothing here touches engine or network."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any

CHAT, COMPLETION = "chat", "completion"
_ID_PREFIX = {CHAT: "chatcmpl", COMPLETION: "cmpl"}
_SAFE_ID = re.compile(r"^[\x21-\x7e]{1,128}$")  # printable, as it goes into log lines and JSON
MAX_STOPS = 16

#: Fields whose use would change the reply in a way this engine cannot follow, and the values that mean "not used".
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "functions": (None, []),
    "logprobs": (None, False, 0),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "audio": (None,),
    "response_format": (None, {"type": "text"}),
}


class ApiError(Exception):
    """A refusal in OpenAI's shape. `status` is the HTTP status."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A chat or completion request as read. Fields the client left out are None."""

    model: str | None
    messages: list[dict[str, Any]] | None  # chat
    prompt: str | list[int] | None  # completion
    stream: bool
    include_usage: bool
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool


def new_request_id(kind: str, wanted: str | None) -> str:
    """The id of a request, known before its body is read; `wanted` is the client's X-Request-Id."""
    prefix = _ID_PREFIX[kind]
    if wanted and _SAFE_ID.match(wanted):
        return f"{prefix}-{wanted}-{secrets.token_hex(4)}"  # the ending keeps two uses of one id apart
    return f"{prefix}-{secrets.token_hex(16)}"


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a request body. Raises ApiError 400."""
    try:
        value = json.loads(body)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"The request body must be a JSON object, not {_kind(value)}.")
    return value


def read_generation(kind: str, body: bytes) -> GenerationRequest:
    """A chat or completion request. Raises ApiError 400 and names the field."""
    value = read_object(body)
    for name, unused in _UNSUPPORTED.items():
        if value.get(name) not in unused:
            raise ApiError(400, f"This engine does not support {name}.", param=name, code="unsupported_parameter")
    if _number(value, "n", 1, 1, 1 << 31, whole=True) != 1:
        raise ApiError(400, "This engine gives one choice: n must be 1.", param="n", code="unsupported_parameter")
    limit = "max_completion_tokens" if value.get("max_completion_tokens") is not None else "max_tokens"
    max_tokens = _number(value, limit, None, 1, 1 << 31, whole=True)
    if kind == COMPLETION and max_tokens is None:
        max_tokens = 16  # the API's own default for this endpoint
    top_k = _number(value, "top_k", None, -1, 1 << 31, whole=True)
    seed = _number(value, "seed", None, -(1 << 63), (1 << 63) - 1, whole=True)
    temperature = _number(value, "temperature", None, 0, 2)
    if temperature is not None and temperature < 0.01:
        temperature = 0.0  # colder than this is greedy, and dividing by it would overflow
    options = value.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object.", param="stream_options")
    return GenerationRequest(
        model=_text(value, "model"),
        messages=read_messages(value) if kind == CHAT else None,
        prompt=_prompt(value.get("prompt")) if kind == COMPLETION else None,
        stream=_flag(value, "stream"),
        include_usage=_flag(options or {}, "include_usage"),
        max_tokens=None if max_tokens is None else int(max_tokens),
        temperature=temperature,
        top_p=_number(value, "top_p", None, 0, 1, above=True),
        top_k=None if top_k is None else max(0, int(top_k)),
        seed=None if seed is None else int(seed),
        stop=_stops(value.get("stop")),
        ignore_eos=_flag(value, "ignore_eos"),
    )


def read_messages(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Its messages with plain text contents; a list of text parts is joined by line ends. Raises ApiError 400."""
    given = value.get("messages")
    if not isinstance(given, list) or not given:
        raise ApiError(400, "messages must be a list with at least one message.", param="messages")
    messages = []
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, f"{where} must be an object with a role.", param=where)
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(_part(part, f"{where}.content") for part in content)
        if not isinstance(content, str):
            raise ApiError(400, f"{where}.content must be text, not {_kind(content)}.", param=f"{where}.content")
        messages.append({**message, "content": content})
    return messages


def _part(part: Any, where: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else _kind(part)
    raise ApiError(400, f"{where} may hold text parts only, not {kind}.", param=where)


def _prompt(value: Any) -> str | list[int]:
    """A text, or token ids; a list with one of these is taken as that one."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(one) is int for one in value):
        return list(value)
    raise ApiError(400, "prompt must be one text or one list of token ids.", param="prompt")


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops) or len(stops) > MAX_STOPS:
        raise ApiError(400, f"stop must be a text or a list of at most {MAX_STOPS} texts.", param="stop")
    return tuple(one for one in stops if one)


def _number(
    value: dict[str, Any],
    name: str,
    default: float | None,
    low: float,
    high: float,
    *,
    whole: bool = False,
    above: bool = False,
) -> float | None:
    number = value.get(name)
    if number is None:
        return default
    fits = isinstance(number, int) if whole else isinstance(number, int | float)
    if isinstance(number, bool) or not fits or not low <= number <= high or (above and number == low):
        what = "a whole number" if whole else "a number"
        bounds = f"{'above' if above else 'from'} {low} to {high}"
        raise ApiError(400, f"{name} must be {what} {bounds}, not {json.dumps(number)[:60]}.", param=name)
    return float(number) if not whole else int(number)


def _flag(value: dict[str, Any], name: str) -> bool:
    flag = value.get(name)
    if flag is None:
        return False
    if not isinstance(flag, bool):
        raise ApiError(400, f"{name} must be true or false.", param=name)
    return flag


def _text(value: dict[str, Any], name: str) -> str | None:
    text = value.get(name)
    if text is not None and not isinstance(text, str):
        raise ApiError(400, f"{name} must be a text.", param=name)
    return text


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


@dataclass(frozen=True, slots=True)
class Replies:
    """Builds the JSON of one reply: chunks of a stream, or the whole. `created` is unix seconds."""

    kind: str
    rid: str
    model: str
    created: int

    def chunk(self, *, text: str | None = None, role: bool = False, finish: str | None = None) -> dict[str, Any]:
        if self.kind == CHAT:
            delta: dict[str, Any] = {"role": "assistant", "content": ""} if role else {}
            if text is not None:
                delta["content"] = text
            choice: dict[str, Any] = {"index": 0, "delta": delta}
        else:
            choice = {"index": 0, "text": text or ""}
        return self._frame("chat.completion.chunk", [{**choice, "logprobs": None, "finish_reason": finish}])

    def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        return {**self._frame("chat.completion.chunk", []), "usage": usage}

    def whole(self, text: str, finish: str, usage: dict[str, int]) -> dict[str, Any]:
        if self.kind == CHAT:
            choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": text}}
        else:
            choice = {"index": 0, "text": text}
        frame = self._frame("chat.completion", [{**choice, "logprobs": None, "finish_reason": finish}])
        return {**frame, "usage": usage}

    def _frame(self, name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = name if self.kind == CHAT else "text_completion"
        return {"id": self.rid, "object": name, "created": self.created, "model": self.model, "choices": choices}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
