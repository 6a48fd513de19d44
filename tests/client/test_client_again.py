"""What is sent again, and what never is: refused fields, busy servers, redirects."""

from __future__ import annotations

import pytest
from client_support import CHAT, ask
from support.http_servers import (
    RESET,
    Answer,
    Request,
    ScriptedServer,
    chunk,
    hello,
    json_answer,
    sse,
)


def test_field_the_server_refuses_is_left_out_once(server: ScriptedServer) -> None:
    def strict(request: Request) -> Answer:
        if "stream_options" in request.json:
            return json_answer(
                {"detail": [{"loc": ["body", "stream_options"], "msg": "extra fields not permitted"}]}, 422
            )
        return hello()

    with server.on("POST", CHAT, strict):
        x = ask(server)
    assert x.complete and x.text == "Hello" and len(server.requests) == 2 == x.attempts
    assert "stream_options" not in x.request and "stream_options" in x.notes[0]
    assert [p.attributes["tokentrace.attempt"] for p in x.phases] == [1, 1, 1, 2, 2, 2, 2]
    assert x.start_ns <= x.phases[0].start_ns


def test_max_completion_tokens(server: ScriptedServer) -> None:
    said = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."

    def strict(request: Request) -> Answer:
        return json_answer({"error": {"message": said}}, 400) if "max_tokens" in request.json else hello()

    with server.on("POST", CHAT, strict):
        x = ask(server, more={"max_tokens": 7})
    assert x.complete and server.requests[1].json["max_completion_tokens"] == 7


def test_a_refusal_for_another_reason_is_not_sent_again(server: ScriptedServer) -> None:
    with server.on("POST", CHAT, json_answer({"error": {"message": "temperature must be below 2"}}, 400)):
        assert ask(server).error is not None
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_no_retry_unless_asked_for(server: ScriptedServer, status: int) -> None:
    busy = json_answer({"error": {"message": "busy"}}, status, retry_after="0")
    with server.on("POST", CHAT, busy, busy, hello()):
        assert ask(server).error is not None
        assert len(server.requests) == 1
        x = ask(server, max_retries=2)
    assert x.complete and x.attempts == 2 and "retry 1 of 2" in x.notes[0] and str(status) in x.notes[0]
    assert x.ttft_ns is not None and x.ttft_ns > x.phases[0].end_ns - x.start_ns  # from the first attempt's start


def test_retries_run_out(server: ScriptedServer) -> None:
    with server.on("POST", CHAT, json_answer({}, 503, retry_after="0")):
        x = ask(server, max_retries=2)
    assert len(server.requests) == 3 and x.error is not None and x.attempts == 3


@pytest.mark.parametrize("answer", [json_answer({}, 500), json_answer({}, 401), sse(chunk("a"), RESET), sse(RESET)])
def test_what_may_have_been_billed_is_never_sent_again(server: ScriptedServer, answer: Answer) -> None:
    with server.on("POST", CHAT, answer):
        assert ask(server, max_retries=3).error is not None
    assert len(server.requests) == 1


def test_redirect_on_the_same_host_is_followed(server: ScriptedServer) -> None:
    server.on("POST", CHAT, Answer(307, {"Location": CHAT + "/"}, [], "length")).on("POST", CHAT + "/", hello())
    with server:
        x = ask(server, api_key="sk-1")
    assert x.complete and server.paths() == [CHAT, CHAT + "/"] and "redirected" in x.notes[0]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirect_to_another_host_is_told_and_not_followed(server: ScriptedServer, status: int) -> None:
    with ScriptedServer().on("POST", CHAT, hello()) as elsewhere:
        target = elsewhere.url.replace("127.0.0.1", "localhost") + CHAT
        with server.on("POST", CHAT, Answer(status, {"Location": target}, [], "length")):
            x = ask(server, api_key="sk-1")
        assert elsewhere.connections == 0
    assert x.error is not None and x.error.check == "TT849"
    assert x.error.fix == f"use http://localhost:{elsewhere.port}/v1"


@pytest.mark.parametrize("location", ["//[", "http://[::1", "http://h:99999/", "/v1/ch\u00e9", "/v1/a b"])
def test_redirect_to_no_address_is_told(server: ScriptedServer, location: str) -> None:
    with server.on("POST", CHAT, Answer(307, {"Location": location}, [], "length")):
        x = ask(server)
    assert x.error is not None and x.error.check == "TT849" and len(server.requests) == 1


def test_redirects_do_not_go_round_for_ever(server: ScriptedServer) -> None:
    with server.on("POST", CHAT, Answer(307, {"Location": "/v1/other"}, [], "length")):
        server.on("POST", "/v1/other", Answer(307, {"Location": CHAT}, [], "length"))
        x = ask(server)
    assert x.error is not None and x.error.check == "TT849" and len(server.requests) <= 4
