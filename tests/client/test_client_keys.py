"""A key that cannot be one is found before it is sent, and is never shown."""

from __future__ import annotations

import base64
import json

import pytest
from client_support import CHAT, ask, everything_said, say_hi
from hypothesis import given
from hypothesis import strategies as st
from support.http_servers import Answer, ScriptedServer, chunk, event, in_pieces, json_answer, sse

from tokentrace.client import keys
from tokentrace.client.server import HttpServer
from tokentrace.client.settings import Endpoint
from tokentrace.errors import ConfigError, EndpointError


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("sk-abc123\n", "line break"),
        ("sk-abc123 ", "space"),
        (" sk-abc123", "begins"),
        ('"sk-abc123"', "quotes"),
        ("'sk-abc123'", "quotes"),
        ("Bearer sk-abc123", "Bearer"),
        ("bearer sk-abc123", "Bearer"),
        ("sk-abc 123", "space"),
        ("sk-abc\r\nX-Evil: 1", "line break"),
        ("sk-\u00e4bc123", "characters"),
        ("$OPENAI_API_KEY", "variable"),
        ("OPENAI_API_KEY=sk-abc123", "begins with the name of a variable"),
        ("export OPENAI_API_KEY='sk-abc123'", "begins with the name of a variable"),
        ("${OPENAI_API_KEY}", "variable"),
    ],
)
def test_malformed_keys_are_refused(key: str, word: str) -> None:
    with pytest.raises(ConfigError, match="looks malformed") as caught:
        keys.examine(key, "OPENAI_API_KEY")
    said = str(caught.value)
    assert word in said and "OPENAI_API_KEY" in said
    assert "abc" not in said + caught.value.fix


@pytest.mark.parametrize("key", ["None", "null", "undefined", "NULL"])
def test_a_word_for_nothing_is_not_sent(key: str) -> None:
    found = keys.examine(key, "OPENAI_API_KEY")
    assert found.key == ""
    assert "no key was sent" in found.malformed


@pytest.mark.parametrize("key", ["EMPTY", "sk-abc123", "gsk_" + "a" * 40, "token-abc123"])
def test_usable_keys(key: str) -> None:
    assert keys.examine(key, "X") == keys.KeyReading(key)


def test_placeholder_is_sent_with_a_doubt() -> None:
    for key in ("your-api-key", "<YOUR_KEY>", "sk-your-key-here", "sk-..."):
        assert "placeholder" in keys.examine(key, "X").malformed


def token(claims: dict[str, object]) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part(claims)}.c2ln"


def test_hints_name_the_kind_of_credential() -> None:
    assert "expired 2 hours ago" in keys.hint(token({"exp": 1_000}), now_s=1_000 + 7_201)
    assert "OAuth token" in keys.hint(token({"exp": 2_000}), now_s=1_000)
    assert "OAuth" in keys.hint("sk-ant-oat01-abc")
    assert "stand-in" in keys.hint("EMPTY")
    assert keys.hint("sk-abc123") == "" == keys.hint("")


@given(st.text(min_size=1, max_size=40))
def test_what_is_sent_fits_into_a_header(key: str) -> None:
    try:
        sent = keys.examine(key, "X").key
    except ConfigError as error:
        # Longer values must not appear; short ones may be part of any sentence.
        assert len(key) < 8 or key not in str(error) + error.fix
        return
    assert sent.isascii() and not any(ord(c) < 33 for c in sent)
    keys.hint(sent)


KEY = "sk-secret-0123456789"
SAID = {"error": {"message": f"Incorrect API key provided: {KEY}"}}


@pytest.mark.parametrize(
    "answer",
    [
        json_answer(SAID, 401, server=f"gate {KEY}", x_request_id=KEY),
        json_answer({"detail": f"nobody knows Bearer {KEY}"}, 500),
        json_answer(SAID),
        Answer(401, {}, in_pieces(json.dumps(SAID).encode(), 7)),
        sse(chunk("a"), event(SAID)),
        sse(*in_pieces(chunk("a") + event(SAID), 5)),
        Answer(302, {"Location": f"http://elsewhere.example/{KEY}?key={KEY}"}, [], "length"),
    ],
)
def test_a_server_that_sends_the_key_back_is_not_quoted(answer: Answer) -> None:
    with ScriptedServer().on("POST", CHAT, answer) as server:
        for given_as in ({"api_key": KEY}, {"headers": {"X-Api-Key": KEY}}, {"query": f"?sig={KEY}"}):
            x = ask(server, **given_as)
            assert KEY in str(server.requests[-1]), "it was sent"
            assert x.error is not None and "secret" not in everything_said(x)


def test_nor_is_it_by_the_other_routes() -> None:
    with ScriptedServer().otherwise(json_answer(SAID, 500)) as server:
        with pytest.raises(EndpointError) as caught:
            HttpServer(Endpoint.of(server.url + "/v1", api_key=KEY)).get_text("/metrics")
        assert "Incorrect API key" in str(caught.value)
        assert "secret" not in str(caught.value) + caught.value.fix + caught.value.detail


def test_words_that_stand_in_any_text_are_not_hidden() -> None:
    with ScriptedServer().on("POST", CHAT, sse(chunk("lm-studio is up, EMPTY", finish="stop"))) as server:
        assert ask(server, api_key="lm-studio").text == "lm-studio is up, EMPTY" == ask(server, api_key="EMPTY").text


@pytest.mark.parametrize("headers", [{"X-Key": f"{KEY}\nX-Evil: 1"}, {"X-Key": f" {KEY}"}, {"X-Kéy": KEY}])
def test_a_header_that_cannot_be_sent_is_named_and_not_shown(headers: dict[str, str]) -> None:
    with ScriptedServer() as server:
        x = ask(server, headers=headers)
        assert server.requests == []
    assert x.error is not None and x.error.check == "TT801" and "header" in str(x.error)
    assert "secret" not in everything_said(x)


def test_no_repr_shows_it() -> None:
    assert "secret" not in repr(keys.examine(KEY, "OPENAI_API_KEY"))


@pytest.mark.parametrize(
    "name",
    ["OPENAI_KEY", "OPENAI_APIKEY", "OPEN_AI_KEY", "OPEN_AI_API_KEY", "OPENAI_TOKEN", "openai_api_key"],
)
def test_a_key_under_nearly_the_right_name(name: str) -> None:
    value = "sk-canary-0123456789"
    with ScriptedServer().on("POST", CHAT, json_answer({"error": "no"}, 401)) as server:
        x = say_hi(server.url + "/v1", environ={name: value})
    assert x.error is not None and x.error.check == "TT830"
    assert f"{name} is set, which nobody reads: export OPENAI_API_KEY=${name}" in x.error.fix
    assert value not in everything_said(x)


def test_names_that_are_read_or_hold_no_key_are_no_near_ones() -> None:
    env = dict.fromkeys((*keys.KEY_VARIABLES, "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_API_VERSION"), "x")
    assert keys.near_names({**env, "OPENAI_KEY": ""}) == ()


@pytest.mark.parametrize(
    ("key", "host", "service"),
    [
        ("sk-ant-api03-abc", "api.openai.com", "Anthropic"),
        ("sk-ant-api03-abc", "api.anthropic.com", ""),
        ("hf_abcdef", "x.us-east-1.aws.endpoints.huggingface.cloud", ""),
        ("gsk_abc", "notgroq.com", "Groq"),
        ("sk-abcdef", "127.0.0.1", ""),
    ],
)
def test_whose_key_it_is(key: str, host: str, service: str) -> None:
    assert keys.of_another_service(key, host) == service


def test_a_refused_key_of_another_service_is_named_by_its_service() -> None:
    key = "sk-ant-api03-canary0123456789"
    with ScriptedServer().on("POST", CHAT, json_answer({"error": {"message": f"bad key {key}"}}, 401)) as server:
        x = say_hi(server.url + "/v1", api_key=key, source={"api_key": "OPENAI_API_KEY"})
    assert x.error is not None and x.error.check == "TT831"
    assert "a key of Anthropic, and 127.0.0.1 is another service" in str(x.error) and "OPENAI_API_KEY" in x.error.fix
    assert "canary" not in everything_said(x)
