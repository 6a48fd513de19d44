"""What the engine takes and refuses: every refusal is a 400 that names the field; nothing is silently ignored that
would change the reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentrace.engines.local.protocol import (
    CHAT,
    COMPLETION,
    ApiError,
    Replies,
    new_request_id,
    read_generation,
    read_object,
)

HI = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> Any:
    return read_generation(CHAT, json.dumps({"messages": HI, **fields}).encode())


def refused(body: bytes, kind: str = CHAT) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_generation(kind, body)
    assert caught.value.status == 400
    return caught.value


def test_defaults() -> None:
    request = chat()
    assert request.messages == HI
    assert (request.stream, request.max_tokens, request.temperature, request.stop) == (False, None, None, ())
    assert read_generation(COMPLETION, b'{"prompt": "Hi"}').max_tokens == 16


def test_fields_are_read() -> None:
    request = chat(
        model="m",
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=5,
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        seed=3,
        stop="END",
        n=1,
    )
    assert request.max_tokens == 7, "the newer name wins"
    assert (request.model, request.stream, request.include_usage) == ("m", True, True)
    assert (request.temperature, request.top_p, request.top_k, request.seed) == (0.5, 0.9, 0, 3)
    assert request.stop == ("END",)


def test_text_parts_are_joined() -> None:
    request = read_generation(
        CHAT,
        json.dumps(
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}
        ).encode(),
    )
    assert request.messages == [{"role": "user", "content": "a\nb"}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"tools": [{}]}, "tools"),
        ({"logprobs": True}, "logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], param: str | None) -> None:
    error = refused(json.dumps({"messages": HI, **fields}).encode())
    assert error.param == param or param is None
    assert set(error.body()["error"]) == {"message", "type", "param", "code"}


def test_what_is_not_used_is_no_reason_to_refuse() -> None:
    chat(
        tools=[], logprobs=False, frequency_penalty=0, presence_penalty=0.0, response_format={"type": "text"}, user="x"
    )


@given(st.binary(max_size=200))
def test_no_body_raises_anything_but_a_refusal(body: bytes) -> None:
    for kind in (CHAT, COMPLETION):
        try:
            read_generation(kind, body)
        except ApiError as error:
            assert error.status == 400


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))


@given(
    st.dictionaries(
        st.sampled_from(["messages", "prompt", "n", "max_tokens", "temperature", "top_p", "stop", "stream", "seed"]),
        values,
    )
)
def test_no_json_raises_anything_but_a_refusal(fields: dict[str, Any]) -> None:
    for kind in (CHAT, COMPLETION):
        try:
            read_generation(kind, json.dumps({"messages": HI, "prompt": "Hi", **fields}).encode())
        except ApiError as error:
            assert error.status == 400


def test_prompts_of_completions() -> None:
    def prompt(value: Any) -> Any:
        return read_generation(COMPLETION, json.dumps({"prompt": value}).encode()).prompt

    assert prompt("a") == "a" and prompt(["a"]) == "a" and prompt([1, 2]) == [1, 2] and prompt([[1, 2]]) == [1, 2]
    for wrong in (None, [], ["a", "b"], [1.5], [True], {}):
        assert refused(json.dumps({"prompt": wrong}).encode(), COMPLETION).param == "prompt"


def test_request_ids_hold_the_clients_id_and_never_repeat() -> None:
    assert new_request_id(CHAT, "abc").startswith("chatcmpl-abc-")
    assert new_request_id(COMPLETION, None).startswith("cmpl-")
    assert new_request_id(CHAT, "abc") != new_request_id(CHAT, "abc")
    for unsafe in ("", "a b", "a\nb", "x" * 200, "é"):
        made = new_request_id(CHAT, unsafe)
        assert made.isascii() and len(made) == len("chatcmpl-") + 32


def test_chunks_have_the_shape_of_the_api() -> None:
    replies = Replies(CHAT, "chatcmpl-1", "m", 5)
    assert replies.chunk(role=True)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert replies.chunk(text="x")["choices"][0] == {
        "index": 0,
        "delta": {"content": "x"},
        "logprobs": None,
        "finish_reason": None,
    }
    assert replies.chunk(finish="stop")["choices"][0]["delta"] == {}
    assert Replies(COMPLETION, "cmpl-1", "m", 5).chunk(text="x")["object"] == "text_completion"


def test_half_of_a_surrogate_pair_is_refused_as_no_text() -> None:
    with pytest.raises(ApiError) as refused:
        read_object(b'{"prompt": "\\ud83d"}')
    assert refused.value.status == 400
    assert read_object(b'{"prompt": "\\ud83d\\ude00"}') == {"prompt": "\U0001f600"}
