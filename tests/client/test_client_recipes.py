"""What people reported: a web page instead of the API, URL forms, keep-alives, cut streams, keys, chat templates."""

from __future__ import annotations

import re
import threading

import pytest
from client_support import CHAT, ask, everything_said, say_hi
from support.http_servers import (
    CLOSE,
    DONE,
    RESET,
    Answer,
    Raw,
    Request,
    ScriptedServer,
    chunk,
    hello,
    html_answer,
    json_answer,
    models,
    sse,
    usage_chunk,
)

from tokentrace.client.settings import resolve
from tokentrace.errors import ConfigError


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer().on("POST", CHAT, hello()).on("GET", "/v1/models", models("alpha"))


def test_web_page_instead_of_the_api(server: ScriptedServer) -> None:
    with server.otherwise(html_answer()):
        x = say_hi(server.url)
        assert x.error is not None and not x.complete
        assert (x.error.layer, x.error.check, x.error.exit_code) == (8, "TT850", 2)
        assert "HTML" in str(x.error) and "200" in str(x.error)
        assert x.error.fix == f"use {server.url}/v1"
        assert "<" not in str(x.error) + x.error.fix + x.error.detail
        assert x.error.detail.count("\n") < 3
        assert say_hi(f"{server.url}/v1").text == "Hello"


def test_json_without_choices_lists_its_keys(server: ScriptedServer) -> None:
    with server.otherwise(json_answer({"error": "unknown path"})):
        x = say_hi(server.url)
        assert x.error is not None and x.error.layer == 8
        assert "error" in str(x.error) and "unknown path" in str(x.error) and x.error.fix == f"use {server.url}/v1"
    with ScriptedServer().otherwise(json_answer({"status": "ok", "uptime": 5})) as other:
        x = ask(other)
        assert x.error is not None and x.error.check == "TT851"
        assert "status, uptime" in str(x.error)


@pytest.mark.parametrize("form", ["/v1", "/v1/", "/v1/chat/completions", "/v1/chat/completions/", "//v1"])
def test_url_forms_that_work(server: ScriptedServer, form: str) -> None:
    with server:
        x = say_hi(server.url + form)
        assert x.complete and x.text == "Hello"
        assert x.url == server.url + CHAT
        assert server.paths() == [CHAT]


def test_bare_host_suggests_v1(server: ScriptedServer) -> None:
    with server:
        for form in ("", "/"):
            x = say_hi(server.url + form)
            assert x.error is not None and x.error.check == "TT840"
            assert x.error.fix == f"use {server.url}/v1"
        assert not [p for p in server.paths() if "//" in p or p.count("/chat/completions") > 1]


def test_doubled_path_never_leaves(server: ScriptedServer) -> None:
    with server:
        with pytest.raises(ConfigError, match="doubled path") as caught:
            say_hi(server.url + "/v1/v1")
        assert caught.value.fix == f"use {server.url}/v1"
        assert server.connections == 0


KEEPALIVES = [b"id: 7\n" + chunk("He"), b": ping\n\n", b": \n\n", b"retry: 3000\n\n",
              b"id: 8\n" + chunk("llo", finish="stop"), usage_chunk(), DONE]  # fmt: skip


@pytest.mark.parametrize("crlf", [False, True])
def test_comments_and_dataless_events(server: ScriptedServer, crlf: bool) -> None:
    steps = [s.replace(b"\n", b"\r\n") for s in KEEPALIVES] if crlf else KEEPALIVES
    with server.on("POST", CHAT, sse(*steps)):
        x = ask(server)
    assert x.complete and x.error is None and x.text == "Hello"
    assert len(x.token_times_ns) == 2 and x.keepalives == 2
    assert (x.input_tokens, x.output_tokens) == (9, 2)


def test_ttft_is_the_first_content_not_the_first_comment(server: ScriptedServer) -> None:
    pings = [step for _ in range(5) for step in (b": ping\n\n", 0.2)]
    with server.on("POST", CHAT, sse(*pings, chunk(role="assistant"), *KEEPALIVES[:1], *KEEPALIVES[4:])):
        x = ask(server)
    assert x.keepalives == 5 and x.complete
    assert x.ttft_ns is not None and x.ttft_ns >= 200_000_000
    alive = [c.time_ns for c in x.chunks if c.kind == "keepalive"]
    assert alive == sorted(alive) and alive[0] < x.token_times_ns[0] - 150_000_000
    wait = next(p for p in x.phases if p.name == "wait")
    assert wait.end_ns == x.token_times_ns[0]


def test_character_split_over_two_writes(server: ScriptedServer) -> None:
    data = chunk("é😊", finish="stop")
    cut = data.index("😊".encode()) + 2
    with server.on("POST", CHAT, sse(data[:cut], 0.05, data[cut:], DONE)):
        assert ask(server).text == "é😊"


def test_stream_cut_by_a_reset(server: ScriptedServer) -> None:
    came = threading.Event()  # a reset throws away what was not read yet
    with server.on("POST", CHAT, sse(chunk("He"), Raw(b"400\r\n" + b"data: {" + b"x" * 11), came, 0.1, RESET)):
        x = ask(server, more={"on_text": lambda _: came.set()})
    assert x.error is not None and (x.error.layer, x.error.check) == (8, "TT860")
    assert re.search(r"connection broke after 1 chunk with text, \d+(\.\d+)? (s|ms)", str(x.error)), str(x.error)
    assert x.text == "He" and not x.complete
    assert all(x.start_ns <= p.start_ns <= p.end_ns <= x.end_ns for p in x.phases)
    assert len(server.requests) == 1  # nothing was sent a second time


def test_stream_ends_in_the_middle_of_a_chunk(server: ScriptedServer) -> None:
    with server.on("POST", CHAT, sse(chunk("He"), Raw(b"400\r\ndata: {"), CLOSE)):
        x = ask(server)
    assert x.error is not None and x.error.check == "TT860" and "middle of a chunk" in str(x.error)


def test_stream_without_finish_and_done_is_not_whole(server: ScriptedServer) -> None:
    with server.on("POST", CHAT, sse(chunk("He"), chunk("llo"))):
        x = ask(server)
    assert x.error is not None and x.error.check == "TT861" and not x.complete
    assert "after 2 chunks with text" in str(x.error) and "finish_reason and [DONE]" in str(x.error)
    assert x.text == "Hello"
    assert len(server.requests) == 1


def test_stream_without_done_is_whole_with_a_note(server: ScriptedServer) -> None:
    with server.on("POST", CHAT, sse(chunk("He"), chunk("llo", finish="stop"))):
        x = ask(server)
    assert x.error is None and x.complete
    assert any("without [DONE]" in n for n in x.notes)


KEY = "k-right-0123456789"


@pytest.fixture
def guarded() -> ScriptedServer:
    server = ScriptedServer()

    def only_with_key(answer: Answer):  # type: ignore[no-untyped-def]
        def handle(request: Request) -> Answer:
            right = request.headers.get("authorization") == f"Bearer {KEY}"
            return answer if right else json_answer({"error": "no"}, 401)

        return handle

    server.on("GET", "/health", json_answer({})).on("GET", "/metrics", json_answer({}))
    server.on("POST", CHAT, only_with_key(hello())).on("GET", "/v1/models", only_with_key(models("alpha")))
    return server


def resolved(server: ScriptedServer, env: dict[str, str]) -> dict[str, object]:
    found = resolve(server.url + "/v1", environ=env, folder="/")
    assert found is not None
    return {"api_key": found.api_key, "source": found.source, "key_problem": found.key_problem}


def test_no_key(guarded: ScriptedServer) -> None:
    with guarded:
        x = ask(guarded, **resolved(guarded, {}))
    assert "authorization" not in guarded.requests[0].headers
    assert x.error is not None and (x.error.layer, x.error.check) == (8, "TT830")
    assert "wants a key" in str(x.error) and "OPENAI_API_KEY" in x.error.fix


def test_no_key_names_another_variable_that_is_set(guarded: ScriptedServer) -> None:
    env = {"VLLM_API_KEY": "sk-of-the-server"}
    with guarded:
        x = ask(guarded, environ=env, **resolved(guarded, env))
    assert x.error is not None and "VLLM_API_KEY" in x.error.fix
    assert "sk-of-the-server" not in everything_said(x)


def test_the_word_none_as_key(guarded: ScriptedServer) -> None:
    with guarded:
        x = ask(guarded, **resolved(guarded, {"OPENAI_API_KEY": "None"}))
    assert "authorization" not in guarded.requests[0].headers
    assert x.error is not None and x.error.check == "TT832"
    assert "wants a key" in str(x.error) and "looks malformed" in str(x.error)


@pytest.mark.parametrize("key", [f"{KEY}\n", f'"{KEY}"', f"Bearer {KEY}"])
def test_malformed_key_is_not_sent(guarded: ScriptedServer, key: str) -> None:
    with guarded:
        with pytest.raises(ConfigError, match="looks malformed") as caught:
            resolved(guarded, {"OPENAI_API_KEY": key})
        assert KEY not in str(caught.value) + caught.value.fix
        assert guarded.connections == 0


def test_right_key_and_wrong_key(guarded: ScriptedServer) -> None:
    with guarded:
        x = ask(guarded, **resolved(guarded, {"OPENAI_API_KEY": KEY}))
        assert x.complete
        assert KEY not in everything_said(x)
        x = ask(guarded, **resolved(guarded, {"OPENAI_API_KEY": "sk-wrong-987654"}))
    assert x.error is not None and x.error.check == "TT831" and "from OPENAI_API_KEY" in str(x.error)
    assert "sk-wrong" not in everything_said(x)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "tokenizer carries no chat template", "type": "BadRequestError", "param": None,
                   "code": 400}},
        {"object": "error", "message": "tokenizer carries no chat template", "code": 400},
        {"object": "error", "message": "As of transformers v4.44, default chat template is no longer allowed, so you "
         "must provide a chat template if the tokenizer does not define one.", "code": 400},
        {"error": {"message": "Cannot use chat template functions because tokenizer.chat_template is not set"}},
    ],
)  # fmt: skip
def test_no_chat_template_is_the_tokenizer_s_fault(server: ScriptedServer, body: dict[str, object]) -> None:
    with server.on("POST", CHAT, json_answer(body, 400)):
        x = ask(server)
    assert x.error is not None and (x.error.layer, x.error.check) == (7, "TT701")
    assert "/v1/completions" in x.error.fix and "--chat-template" in x.error.fix
    assert "another model" not in x.error.fix
