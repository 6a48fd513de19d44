"""Every way to write a base URL leads to one address, or to a sentence that says how to write it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrace.client.urls import is_loopback, normalise, server_root
from tokentrace.errors import ConfigError


@pytest.mark.parametrize(
    ("given_url", "root"),
    [
        ("http://h", "http://h"),
        ("http://h/", "http://h"),
        ("http://h/v1", "http://h/v1"),
        ("http://h/v1/", "http://h/v1"),
        ("http://h/v1//", "http://h/v1"),
        ("http://h//v1", "http://h/v1"),
        ("http://h/v1/chat/completions", "http://h/v1"),
        ("http://h/v1/chat/completions/", "http://h/v1"),
        ("http://h/v1/completions", "http://h/v1"),
        ("http://h/v1/models", "http://h/v1"),
        ("http://h/v1/chat", "http://h/v1"),
        ("HTTP://Host.Example:8000/v1", "http://host.example:8000/v1"),
        ("https://api.groq.com/openai/v1", "https://api.groq.com/openai/v1"),
        ("https://h:443/v1", "https://h/v1"),
        ("http://h:80", "http://h"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        (" 'http://h/v1'\n", "http://h/v1"),
        ("localhost:8000/v1", "http://localhost:8000/v1"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("gpu-box:8000/v1", "http://gpu-box:8000/v1"),
        ("192.168.1.5:8000/v1", "http://192.168.1.5:8000/v1"),
        ("api.groq.com/openai/v1", "https://api.groq.com/openai/v1"),
        ("http://bücher.example/v1", "http://xn--bcher-kva.example/v1"),
        ("http://h/a b/v1".replace(" ", "%20"), "http://h/a%20b/v1"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "https://generativelanguage.googleapis.com/v1beta/openai"),
    ],
)  # fmt: skip
def test_forms(given_url: str, root: str) -> None:
    assert normalise(given_url).url == root
    assert normalise(root).url == root


@pytest.mark.parametrize(
    ("given_url", "suggested"),
    [
        ("http://h/v1/v1", "http://h/v1"),
        ("http://h/v1/v1/chat/completions", "http://h/v1"),
        ("http://h/v1/chat/completions/chat/completions", "http://h/v1"),
        ("http://h/openai/v1/openai/v1", "http://h/openai/v1"),
        ("http://h/v1/v1/v1/", "http://h/v1"),
    ],
)
def test_doubled_path_is_refused_with_the_right_one(given_url: str, suggested: str) -> None:
    with pytest.raises(ConfigError, match="doubled path") as caught:
        normalise(given_url, "OPENAI_BASE_URL")
    assert caught.value.fix == f"use {suggested}"
    assert caught.value.layer == 8
    assert "OPENAI_BASE_URL" in str(caught.value)


@pytest.mark.parametrize(
    ("given_url", "word"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("ftp://h/v1", "ftp"),
        ("ws://h", "ws"),
        ("http:/h/v1", "slash"),
        ("http:h/v1", "slash"),
        ("http://", "host"),
        ("http://:8000", "host"),
        ("http://http://h", "host"),
        ("http://h:99999/v1", "port"),
        ("http://h:abc", "port"),
        ("http://h /v1", "space"),
        ("http://h\\v1", "backslash"),
        ("http://[::1/v1", "port"),
    ],
)
def test_unusable_urls(given_url: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        normalise(given_url)
    assert caught.value.fix


@pytest.mark.parametrize("given_url", ["${BASE_URL}/v1", "http://<your-host>:8000/v1", "http://{host}:8000/v1"])
def test_a_part_that_nothing_replaced_is_named(given_url: str) -> None:
    with pytest.raises(ConfigError, match="which nothing replaced"):
        normalise(given_url)


def test_a_key_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        normalise("https://user:sk-secret@h/v1?api-key=sk-other")
    assert "secret" not in str(caught.value) + caught.value.fix
    assert "sk-other" not in str(caught.value) + caught.value.fix


@pytest.mark.parametrize(
    "given_url",
    [
        "user:sk-secret@h/v1",
        "sk-secret@h",
        "https:/user:sk-secret@h",
        "https:user:sk-secret@h",
        "https://user:pass/sk-secret@h/v1",
        "https:/h?key=sk-secret",
        "ftp://h/v1?sk-secret",
        "ftp://h/v1#sk-secret",
        " 'ftp://user:sk-secret@h'",
    ],
)
def test_no_form_of_a_url_shows_its_key(given_url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        normalise(given_url)
    assert "secret" not in str(caught.value) + caught.value.fix


def test_query_is_kept_apart() -> None:
    found = normalise("https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=2024-02-01")
    assert found.url == "https://x.openai.azure.com/openai/deployments/d"
    assert found.query == "?api-version=2024-02-01"


def test_notes_say_what_was_changed() -> None:
    assert "https://" in normalise("api.example.com/v1").notes[0]
    assert "127.0.0.1" in normalise("http://0.0.0.0:8000").notes[0]
    assert "route" in normalise("http://h/v1/chat/completions").notes[0]
    assert normalise("http://h/v1").notes == ()


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_a_sentence(text: str) -> None:
    try:
        found = normalise(text)
    except ConfigError as error:
        assert error.fix and "\n" not in str(error).replace(repr(text[:200]), "")
        return
    url = found.url + "/chat/completions"
    assert "//" not in url.partition("://")[2]
    assert url.count("/chat/completions") == 1
    assert url.isascii() and not any(c.isspace() for c in url)
    assert normalise(found.url).url == found.url


@settings(max_examples=500)
@given(st.lists(st.sampled_from(["v1", "openai", "chat", "completions", "api", "", "models", "v1beta"]), max_size=7))
def test_no_path_leads_to_a_doubled_request(segments: list[str]) -> None:
    try:
        url = normalise("http://h/" + "/".join(segments)).url + "/chat/completions"
    except ConfigError:
        return
    assert "//chat" not in url
    assert "chat/completions/chat/completions" not in url
    assert "/v1/v1/" not in url


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.5.5.5", "::1", "[::1]", "a.localhost", "0.0.0.0"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "localhost.example.com", "fe80::1", "h"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_server_root() -> None:
    assert server_root("http://h/v1") == "http://h"
    assert server_root("http://h/prefix/v1") == "http://h/prefix"
    assert server_root("http://h") == "http://h"
    assert server_root("https://api.groq.com/openai/v1") == "https://api.groq.com/openai"


@pytest.mark.parametrize("text", ["None", "null", "undefined", "${OPENAI_BASE_URL}", "%URL%"])
def test_words_that_stand_for_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="no address"):
        normalise(text, "OPENAI_BASE_URL")


def test_a_key_in_the_place_of_the_address_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="looks like a key") as told:
        normalise("sk-proj-abcdefgh12345678", "OPENAI_BASE_URL")
    assert "abcdefgh" not in str(told.value) + told.value.fix
