"""A reply in which nothing can be read is no empty reply, and a count that cannot be is no count."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from client_support import CHAT, ask, error_of
from support.http_servers import ScriptedServer, chunk, event, json_answer, sse, usage_chunk

DONE = b"data: [DONE]\n\n"


def choice(**more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": "stop", **more}]}


STRANGE = {
    "choices is text, not a list": {"choices": "x"},
    "choices is an object, not a list": {"choices": {"delta": {"content": "Hi"}}},
    "a choice is text, not an object": {"choices": ["Hi"]},
    "a delta or message is text, not an object": choice(delta="Hi"),
    "content is a number, not text": choice(delta={"content": 5}),
    "content is an object, not text": choice(delta={"content": {"text": "Hi"}}),
    "content is a list of what is no object, not text": choice(delta={"content": ["Hi"]}),
    "text is a list, not text": choice(text=["Hi"]),
}


@pytest.mark.parametrize("said", sorted(STRANGE))
@pytest.mark.parametrize("streamed", [True, False])
def test_what_is_no_reply_is_an_error_that_says_what_stands_there(said: str, streamed: bool) -> None:
    answer = sse(event(STRANGE[said]), usage_chunk(3, 5), DONE) if streamed else json_answer(STRANGE[said])
    with ScriptedServer().on("POST", CHAT, answer) as server:
        assert said in str(error_of(ask(server), "TT851"))


def test_one_event_that_cannot_be_read_is_noted_beside_a_reply() -> None:
    with ScriptedServer().on(
        "POST", CHAT, sse(chunk("He"), event({"choices": "x"}), chunk("llo", finish="stop"), DONE)
    ) as server:
        x = ask(server)
    assert x.complete and x.text == "Hello"
    assert any("choices is text" in note for note in x.notes)


@pytest.mark.parametrize("nothing", [[], "", None])
@pytest.mark.parametrize("name", ["delta", "message"])
def test_an_empty_delta_of_any_kind_says_nothing(name: str, nothing: Any) -> None:
    with ScriptedServer().on("POST", CHAT, sse(chunk("Hello"), event(choice(**{name: nothing})), DONE)) as server:
        x = ask(server)
    assert x.complete and x.text == "Hello" and x.finish_reason == "stop"
    assert not [note for note in x.notes if "could not be read" in note]


@pytest.mark.parametrize(
    ("steps", "note"),
    [
        ((chunk("", finish="stop"), usage_chunk(9, 1)), "the reply is empty"),
        ((chunk("", finish="stop"), usage_chunk(9, 0)), "the reply is empty"),
        ((event({"choices": [{"delta": {"content": None}, "finish_reason": "stop"}]}),), "the reply is empty"),
        ((chunk("", finish="length"), usage_chunk(9, 64)), "although the server counts 64 tokens"),
    ],
)
def test_an_empty_reply_is_a_reply(steps: tuple[bytes, ...], note: str) -> None:
    """A model may have nothing to say, and a service may count reasoning that it does not send."""
    with ScriptedServer().on("POST", CHAT, sse(*steps, DONE)) as server:
        x = ask(server)
    assert x.complete and x.text == "" and any(note in one for one in x.notes)


def test_a_call_of_a_tool_needs_no_text() -> None:
    called = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}], "content": None}
    with ScriptedServer().on("POST", CHAT, sse(event(choice(delta=called)), usage_chunk(9, 5), DONE)) as server:
        x = ask(server)
    assert x.complete and not [note for note in x.notes if "empty" in note]


@pytest.mark.parametrize("count", [-5, -1, 10**15, 1e300])
@pytest.mark.parametrize("name", ["completion_tokens", "prompt_tokens"])
def test_a_count_that_cannot_be_is_not_known(name: str, count: float) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, name: count}
    with ScriptedServer().on(
        "POST", CHAT, sse(chunk("Hi", finish="stop"), event({"choices": [], "usage": usage}), DONE)
    ) as server:
        x = ask(server)
    assert x.complete and (x.usage or {}).get(name) is None and all(c.counted != count for c in x.chunks)
    assert (x.input_tokens, x.output_tokens) == ((None, 2) if name == "prompt_tokens" else (9, None))
    assert [note for note in x.notes if "cannot be" in note]


@pytest.mark.parametrize("usage", ['"completion_tokens": @', '"prompt_tokens_details": {"cached_tokens": @}', '"x": @'])
@pytest.mark.parametrize("count", [10**30, 10**400, -(10**400)])
def test_a_count_of_any_number_of_digits_loses_no_reply(usage: str, count: int) -> None:
    said = '{"choices": [], "x_before": NaN, "usage": {"prompt_tokens": 9, @}}'.replace(
        "@", usage.replace("@", str(count))
    )
    with ScriptedServer().on(
        "POST", CHAT, sse(chunk("Hi", finish="stop"), f"data: {said}\n\n".encode(), DONE)
    ) as server:
        x = ask(server)
    assert x.complete and x.text == "Hi" and x.input_tokens == 9 and x.output_tokens is None
    orjson.dumps(x.usage)
    assert [note for note in x.notes if "cannot be" in note] or "completion" not in usage
