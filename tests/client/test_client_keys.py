"""A key that cannot be one is found before it is sent, and is never shown."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentrace.client import keys
from tokentrace.errors import ConfigError


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
