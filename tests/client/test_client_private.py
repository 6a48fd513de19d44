"""What a user wrote is not repeated by an error, however a server's words repeat it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from client_support import CHAT, SPAN, TRACE, everything_said
from hypothesis import given
from hypothesis import strategies as st
from support.http_servers import Answer, Request, ScriptedServer, body_answer, chunk, html_answer, json_answer, sse

from tokentrace.client import private
from tokentrace.client.chat import chat
from tokentrace.client.settings import Endpoint
from tokentrace.exchange import Exchange

PROMPT = 'Patient "Ada\nLovelace", born 1815: canary-prompt in the ward of St. Mary’s'
WORDS = ("canary-prompt", "Lovelace", "Patient", "born 1815")


def asked(answer: Any) -> Exchange:
    messages = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}, {"role": "user", "content": "ward 7"}]
    with ScriptedServer().on("POST", CHAT, answer) as server:
        endpoint = Endpoint.of(server.url + "/v1", model="alpha", timeout_s=20)
        return chat(endpoint, messages, trace_id=TRACE, span_id=SPAN, environ={})


def said(text: str, status: int = 400) -> Answer:
    return json_answer({"error": {"message": text, "type": "x", "code": None}}, status)


ECHOES = {
    "as it is": lambda r: said(f"cannot read the message: {PROMPT}"),
    "the request as JSON": lambda r: said(f"bad body: {r.body.decode()}", 422),
    "of FastAPI": lambda r: json_answer({"detail": [{"loc": ["body"], "msg": PROMPT, "input": r.json}]}, 422),
    "as Python shows it": lambda r: said(f"bad value {PROMPT!r}"),
    "its end": lambda r: said(f"near '{PROMPT[20:]}'"),
    "as text": lambda r: body_answer(f"cannot: {PROMPT}".encode(), "text/plain", 500),
    "a page": lambda r: html_answer(f"<title>500 {PROMPT}</title><center>nginx</center></body>", 500, Server="nginx"),
    "status 200": lambda r: json_answer({"error": {"message": PROMPT}}),
    "in the stream": lambda r: sse(chunk("a"), b"event: error\ndata: " + json.dumps(PROMPT).encode() + b"\n\n"),
    "an event that is no JSON": lambda r: sse(b"data: " + " ".join(PROMPT.split()).encode() + b"\n\n"),
    "JSON without choices": lambda r: json_answer({PROMPT: PROMPT}),
}  # fmt: skip


@pytest.mark.parametrize("name", ECHOES)
def test_no_sentence_repeats_the_prompt(name: str) -> None:
    x = asked(lambda request: ECHOES[name](request))
    error = x.error
    assert error is not None
    shown = "\n".join([str(error), error.fix, error.detail, *x.notes])
    assert not [word for word in WORDS if word in shown], shown


def test_the_servers_own_words_stay() -> None:
    x = asked(lambda request: said(f"the field top_p is wrong; you wrote: {PROMPT}"))
    assert x.error is not None and "the field top_p is wrong; you wrote: (your prompt)" in str(x.error)


def test_a_key_and_a_prompt_in_one_answer() -> None:
    def both(request: Request) -> Answer:
        return said(f"{request.headers} {request.body.decode()}")

    with ScriptedServer().on("POST", CHAT, both) as server:
        endpoint = Endpoint.of(server.url + "/v1", model="alpha", api_key="sk-canary-0123456789", timeout_s=20)
        x = chat(endpoint, [{"role": "user", "content": PROMPT}], trace_id=TRACE, span_id=SPAN, environ={})
    assert "sk-canary" not in everything_said(x)
    assert x.error is not None and "canary-prompt" not in str(x.error) + x.error.detail


@given(st.text(min_size=12, max_size=60), st.text(max_size=30), st.text(max_size=30))
def test_a_text_is_hidden_wherever_it_stands(prompt: str, before: str, after: str) -> None:
    shown = private.without(before + prompt + after, private.texts([{"role": "user", "content": prompt}]))
    assert prompt not in shown or len(prompt.strip()) < 5


PIECES = st.lists(st.sampled_from(["abcdefgh", "ijklmnop", "qrstuvwx", "yz", "prompt", "(your", "-"]), max_size=8)


@given(st.lists(PIECES.map("".join), max_size=3), PIECES.map("".join))
def test_no_piece_of_the_prompt_stays_beside_another(prompts: list[str], text: str) -> None:
    shown = private.without(text, private.texts([{"content": one} for one in prompts]))
    for run in shown.split(private.HIDDEN):
        assert not [run[i : i + 12] for i in range(len(run) - 11) if any(run[i : i + 12] in one for one in prompts)]


def test_a_piece_that_begins_within_another_is_hidden_to_its_end() -> None:
    prompt = "abcdefghijklmnop-nopqrstuvwxyz0"
    assert private.without("said: abcdefghijklmnopqrstuvwxyz0.", [prompt]) == "said: (your prompt)."


def test_what_stands_for_the_prompt_is_not_hidden_again() -> None:
    assert private.without("no: prompt, my long prompt", ["prompt", "my long prompt"]) == (
        "no: (your prompt), (your prompt)"
    )


def test_short_prompts_hide_nothing_of_ordinary_words() -> None:
    assert private.without("This is not high enough", private.texts([{"role": "user", "content": "Hi"}])) == (
        "This is not high enough"
    )
