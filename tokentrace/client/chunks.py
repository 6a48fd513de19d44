"""What an event of a chat or completion stream says, for all the dialects of the OpenAI protocol.

Nothing is assumed to be there: `choices` may be missing, null or empty, `usage` may come in any chunk, in the last one,
under `x_groq`, or never; an error may come inside a stream that began with 200.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from tokentrace.client.sse import Event

#: What stands for a delta that says nothing: PHP, for one, writes an empty object as a list.
_NOTHING: tuple[Any, ...] = (None, "", [])
#: No reply has as many; a number of more digits can stand in no trace either.
_MOST_TOKENS = 10**12


@dataclass(slots=True)
class Piece:
    """A part of one event: its kind (see exchange.Chunk), text and choice."""

    kind: str
    text: str = ""
    choice: int = 0


@dataclass(slots=True)
class Reading:
    """Everything one event says. `pieces` is never empty."""

    pieces: list[Piece] = field(default_factory=list)
    finish: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    response_id: str = ""
    model: str = ""
    error: dict[str, Any] | None = None
    malformed: bool = False
    keys: tuple[str, ...] = ()
    has_choices: bool = False
    strange: str = ""  # what stands where a reply should, and is none, such as "content is a number"
    shape: str = ""  # "openai", "anthropic", "ollama", "responses" or "" when unknown


def read_event(event: Event) -> Reading:
    """Never raises."""
    data = event.data.strip()
    if data == "[DONE]":
        return Reading([Piece("done")], shape="openai")
    if not data:
        return Reading([Piece("other")])
    try:
        value = parse_json(data)
    except ValueError:
        if event.type == "error":
            return Reading([Piece("error", data)], error={"message": data})
        return Reading([Piece("other", data[:200])], malformed=True)
    reading = read_object(value)
    if event.type == "error" and reading.error is None:
        reading.error = value if isinstance(value, dict) else {"message": str(value)}
        reading.pieces = [Piece("error", error_message(reading.error))]
    return reading


def parse_json(data: str | bytes) -> Any:
    """JSON, and what Python servers send beside it: NaN, Infinity, lone surrogates. Raises ValueError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return _clean(json.loads(data))
        except RecursionError:
            raise ValueError("nested too deeply") from None


def _clean(value: Any) -> Any:
    """Lone surrogates cannot be printed or exported: replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def read_object(value: Any) -> Reading:
    """One parsed chunk, or one whole answer that was not streamed. Never raises."""
    if not isinstance(value, dict):
        return Reading([Piece("other", str(value)[:200])])
    reading = Reading(keys=tuple(str(key) for key in value))
    reading.response_id = _str(value.get("id"))
    reading.model = _str(value.get("model"))
    choices = value.get("choices")
    reading.has_choices = isinstance(choices, list) and bool(choices)
    if isinstance(choices, list):
        for position, choice in enumerate(choices):
            if isinstance(choice, dict):
                _choice(reading, choice, position)
            else:
                reading.strange = f"a choice is {_kind(choice)}, not an object"
    elif choices is not None:
        reading.strange = f"choices is {_kind(choices)}, not a list"
    reading.usage = _usage(value)
    reading.error = error_in(value)
    reading.shape = _shape(value)
    if reading.usage is not None:
        reading.pieces.append(Piece("usage"))
    if reading.error is not None:
        reading.pieces.append(Piece("error", error_message(reading.error)))
    if not reading.pieces:
        reading.pieces.append(Piece("other"))
    return reading


def error_in(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """The error an answer carries, in any of the shapes in use, as a dictionary with at least `message`; or None."""
    error = value.get("error")
    if isinstance(error, dict):
        return {"message": "", **error} if error else None
    if isinstance(error, str) and error:
        return {"message": _str(value.get("message")) or error, "type": _str(value.get("error_type"))}
    if value.get("object") == "error" or (value.get("type") == "error" and "message" in value):
        return {**value, "message": _str(value.get("message"))}
    if "choices" in value:
        return None
    for key in ("detail", "message", "errors"):
        if key in value and "model" not in value:
            inner = value[key]
            if key == "message" and not isinstance(inner, str):
                continue  # a message of another protocol, not about an error
            return {"message": inner if isinstance(inner, str) else _invalid(inner) or _short(inner)}
    return None


def _invalid(value: Any) -> str:
    """FastAPI's list of what is wrong with a request, without the request that it repeats; "" for anything else."""
    if not isinstance(value, list) or not value:
        return ""
    told = []
    for one in value[:8]:
        if not isinstance(one, dict) or not isinstance(one.get("msg"), str) or not isinstance(one.get("loc"), list):
            return ""
        told.append(f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}")
    return "; ".join(told)


def error_message(error: Mapping[str, Any]) -> str:
    message = error.get("message")
    return message if isinstance(message, str) and message else _short(dict(error))


def _choice(reading: Reading, choice: dict[str, Any], position: int) -> None:
    index = choice.get("index")
    index = index if isinstance(index, int) else position
    before = len(reading.pieces)
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        other = choice.get("message")
        if isinstance(other, dict) or delta in _NOTHING:
            delta = other
        if delta in _NOTHING:
            delta = None
    if isinstance(delta, dict):
        if (strange := _strange(delta.get("content"))) != "":
            reading.strange = f"content is {strange}, not text"
        for kind, text in _parts(delta):
            if text:
                reading.pieces.append(Piece(kind, text, index))
        reading.pieces.extend(Piece("tool", text, index) for text in _tools(delta))
    elif isinstance(choice.get("text"), str):
        if choice["text"]:
            reading.pieces.append(Piece("content", choice["text"], index))
    elif delta is not None or choice.get("text") is not None:
        what, given = ("text", choice["text"]) if delta is None else ("a delta or message", delta)
        reading.strange = f"{what} is {_kind(given)}, not {'text' if delta is None else 'an object'}"
    finish = choice.get("finish_reason")
    if isinstance(finish, str) and finish:
        reading.finish[index] = finish
        reading.pieces.append(Piece("finish", finish, index))
    if len(reading.pieces) == before:
        role = delta.get("role") if isinstance(delta, dict) else None
        reading.pieces.append(Piece("role" if role else "other", _str(role), index))


def _parts(delta: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(kind, text) of a delta or message; reasoning first, as it is said first."""
    reasoning = _str(delta.get("reasoning")) or _str(delta.get("reasoning_content"))
    details = delta.get("reasoning_details")
    if not reasoning and isinstance(details, list):
        reasoning = "".join(_str(d.get("text")) or _str(d.get("summary")) for d in details if isinstance(d, dict))
    yield "reasoning", reasoning
    content = delta.get("content")
    if isinstance(content, list):  # parts, as Mistral's reasoning models send them
        for part in content:
            if isinstance(part, dict):
                thinking = part.get("thinking")
                if isinstance(thinking, list):
                    thinking = "".join(_str(t.get("text")) for t in thinking if isinstance(t, dict))
                yield "reasoning", _str(thinking)
                yield "content", _str(part.get("text"))
    else:
        yield "content", _str(content)
    yield "content", _str(delta.get("refusal"))


def _strange(content: Any) -> str:
    """What kind of thing stands in place of text, "" for text, none, or the parts of one."""
    if content is None or isinstance(content, str):
        return ""
    if isinstance(content, list):
        return "" if all(isinstance(part, dict) for part in content) else "a list of what is no object"
    return _kind(content)


def _kind(value: Any) -> str:
    """What JSON calls it, to be read in a sentence."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def _tools(delta: dict[str, Any]) -> Iterator[str]:
    calls = delta.get("tool_calls")
    named = calls if isinstance(calls, list) else []
    functions = [call.get("function") for call in named if isinstance(call, dict)]
    for function in [*functions, delta.get("function_call")]:
        if isinstance(function, dict):
            yield _str(function.get("name")) + _str(function.get("arguments"))


def possible(usage: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The usage less counts that cannot be, and what was wrong with one of these; "" when nothing was.

    Also less what no trace can hold: a whole number of any size may come, and those of a trace have 64 bits.
    """
    told = ""
    for name, what in (("completion_tokens", "of reply"), ("prompt_tokens", "of prompt"), ("total_tokens", "in all")):
        count = usage.get(name)
        if isinstance(count, (int, float)) and not _counts(count):
            usage = {key: value for key, value in usage.items() if key != name}
            told = (
                told
                or f"the server counts {max(min(count, 1e300), -1e300):.4g} tokens {what}, which cannot be: how many "
                "there were is not known"
            )
    kept: dict[str, Any] = {}
    for name, inner in usage.items():
        if isinstance(inner, dict):
            kept[name] = {part: n for part, n in inner.items() if not isinstance(n, (int, float)) or _counts(n)}
        elif not isinstance(inner, int) or -(2**63) <= inner < 2**63:
            kept[name] = inner
    return kept, told


def _counts(number: float) -> bool:
    return 0 <= number <= _MOST_TOKENS


def _usage(value: dict[str, Any]) -> dict[str, Any] | None:
    usage = value.get("usage")
    if isinstance(usage, dict) and usage:
        return usage
    groq = value.get("x_groq")
    usage = groq.get("usage") if isinstance(groq, dict) else None
    return usage if isinstance(usage, dict) and usage else None


def _shape(value: dict[str, Any]) -> str:
    kind = _str(value.get("type"))
    if "choices" in value:
        return "openai"
    if kind.startswith(("message_", "content_block_")) or (kind == "message" and "content" in value):
        return "anthropic"
    if kind.startswith("response.") or value.get("object") == "response":
        return "responses"
    if "done" in value and ("message" in value or "response" in value):
        return "ollama"
    return ""


def _str(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _short(value: Any) -> str:
    try:
        return orjson.dumps(value, default=str).decode()[:400]
    except TypeError:
        return str(value)[:400]
