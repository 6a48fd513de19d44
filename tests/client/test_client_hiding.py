"""No key comes out of what a server writes, however it writes it; and no ordinary text is spoiled for that."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest
from client_support import CHAT, ask
from hypothesis import assume, given
from hypothesis import strategies as st
from support.http_servers import DONE, ScriptedServer, event, hello, json_answer, sse

from tokentrace.client.hiding import HIDDEN, Hider

KEY = "sk-Proj+a/b=1234"
#: How servers, gateways and frameworks write a key into a text.
WAYS: dict[str, Callable[[str], str]] = {
    "as it is": lambda key: key,
    "capitals": str.upper,
    "small letters": str.lower,
    "json of php": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "json of .net": lambda key: "".join(c if c.isalnum() else f"\\u{ord(c):04X}" for c in key),
    "json, all of it": lambda key: "".join(f"\\u{ord(c):04x}" for c in key),
    "json in json": lambda key: json.dumps("".join(f"\\u{ord(c):04x}" for c in key))[1:-1],
    "percent": lambda key: quote(key, safe=""),
    "percent, all of it": lambda key: "".join(f"%{ord(c):02x}" for c in key),
    "percent twice": lambda key: quote(quote(key, safe=""), safe=""),
    "html": lambda key: "".join(c if c.isalnum() else f"&#{ord(c)};" for c in key),
    "hex": lambda key: key.encode().hex(),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of user:key": lambda key: base64.b64encode(f"user:{key}".encode()).decode(),
    "base64 of a header": lambda key: base64.b64encode(f"x: Bearer {key}, y".encode()).decode(),
    "base64 for addresses": lambda key: base64.urlsafe_b64encode(f"{{{key}}}".encode()).decode(),
}
LONG_WAYS = {
    "over a line break": lambda key: f"{key[:5]}\n    {key[5:]}",
    "over a line break in JSON": lambda key: f"{key[:5]}\\r\\n{key[5:]}",
    "cut off": lambda key: key[:-2],
}
KEYS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=4, max_size=60)


@pytest.mark.parametrize("way", [*WAYS, *LONG_WAYS])
def test_a_key_is_hidden_however_it_is_written(way: str) -> None:
    written = {**WAYS, **LONG_WAYS}[way](KEY)
    end = "…" if way == "cut off" else " as key."
    for hide in (Hider([KEY]).text, Hider([KEY]).reply):
        assert hide(f"You sent {written}{end}") == f"You sent {HIDDEN}{end}"


@given(KEYS, st.sampled_from(sorted(WAYS)), st.booleans())
def test_any_key_is_hidden_in_any_way(key: str, way: str, in_reply: bool) -> None:
    written = WAYS[way](key)
    hider = Hider([key])
    shown = (hider.reply if in_reply else hider.text)(f"You sent '{written}' <")
    assert written not in shown and key.lower() not in shown.lower()
    assert shown.startswith("You sent") and HIDDEN in shown


@given(KEYS, st.sampled_from(sorted(WAYS)), st.data())
def test_any_key_is_hidden_however_it_is_cut_into_pieces(key: str, way: str, data: st.DataObject) -> None:
    """What is shown while it comes, what is kept of each piece and what is kept of the whole."""
    written = WAYS[way](key)
    whole = f"You sent '{written}' <"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    hider = Hider([key])
    shown: list[str] = []
    live = hider.live(shown.append)
    assert live is not None
    for piece in pieces:
        live.add(piece)
    live.end()
    kept = hider.pieces(pieces)
    assert len(kept) == len(pieces) and "".join(kept) == hider.reply(whole)
    for said in ("".join(shown), "".join(kept)):
        assert written not in said and key.lower() not in said.lower() and HIDDEN in said


BASIC = base64.b64encode(b"user:hunter2hunter2").decode()


@pytest.mark.parametrize(
    ("secrets", "said"),
    [
        (["sk-12345678", "sk-12345678-abcdefgh"], "sk-12345678-abcdefgh"),
        (["abc123", "abc123def456"], "abc123def456"),
        (["hunter2hunter2", "hunter2hunter2/4"], "hunter2hunter2/4"),
        ([BASIC, "user:hunter2hunter2", "hunter2hunter2"], "user:hunter2hunter2"),
        ([BASIC, "user:hunter2hunter2", "hunter2hunter2"], BASIC),
    ],
)
def test_of_two_keys_that_begin_alike_the_longer_is_hidden_whole(secrets: list[str], said: str) -> None:
    """However many reads it comes in: what follows the shorter one is a part of a key too."""
    whole = f"You sent '{said}' <"
    hider = Hider(secrets)
    assert hider.reply(whole) == f"You sent '{HIDDEN}' <"
    for first in range(len(whole) + 1):
        for second in range(first, len(whole) + 1):
            shown: list[str] = []
            live = hider.live(shown.append)
            assert live is not None
            for piece in (whole[:first], whole[first:second], whole[second:]):
                live.add(piece)
            live.end()
            assert "".join(shown) == f"You sent '{HIDDEN}' <", (first, second)


@given(st.lists(st.text(), max_size=8), KEYS)
def test_what_holds_no_key_is_shown_as_it_came(pieces: list[str], key: str) -> None:
    whole = "".join(pieces)
    assume(Hider([key]).reply(whole) == whole)
    shown: list[str] = []
    live = Hider([key]).live(shown.append)
    assert live is not None
    for piece in pieces:
        live.add(piece)
    live.end()
    assert "".join(shown) == whole
    assert Hider([key]).pieces(pieces) == pieces


def test_what_cannot_be_the_beginning_of_a_key_is_shown_at_once() -> None:
    shown: list[str] = []
    live = Hider(["sk-12345678"]).live(shown.append)
    assert live is not None
    live.add("Hello!\n")
    assert shown == ["Hello!\n"]
    live.add("a task")  # an s might go on as a key, and k is its second letter
    live.add("!")
    assert "".join(shown) == "Hello!\na task!"
    live.add("you sent sk-12")
    assert "".join(shown) == "Hello!\na task!you sent "
    live.add("345678.")
    assert "".join(shown) == f"Hello!\na task!you sent {HIDDEN}."


def test_nothing_waits_where_no_key_was_sent() -> None:
    assert Hider().live(print) is None
    assert Hider(["ab"]).live(print) is None  # in a reply, two characters stand by chance


@pytest.mark.parametrize(
    ("key", "text", "shown"),
    [
        ("pass", "The password is in the passage; pass on.", f"The password is in the passage; {HIDDEN} on."),
        ("1234", "It took 12345 ms, key 1234.", f"It took 12345 ms, key {HIDDEN}."),
        ("hunter2", "xhunter2x", f"x{HIDDEN}x"),
        ("abc", "abcd abc", f"abcd {HIDDEN}"),
        ("1", "12 tokens of 1", f"12 tokens of {HIDDEN}"),
    ],
)
def test_a_short_key_spoils_no_ordinary_words(key: str, text: str, shown: str) -> None:
    assert Hider([key]).text(text) == shown
    assert Hider([key]).reply(text) == (shown if len(key) > 2 else text)


@pytest.mark.parametrize("key", ["sk-" + "A1b2" * 6, "gsk_" + "a1B2" * 6, "hf_" + "a1B2" * 6])
def test_what_looks_like_a_key_is_hidden_in_an_error_and_left_in_a_reply(key: str) -> None:
    """Another request's key in an error is a key. A model may explain what a key looks like."""
    assert Hider().text(f"the upstream's key {key} expired") == f"the upstream's key {HIDDEN} expired"
    assert Hider().reply(f"such as {key}") == f"such as {key}"


def test_json_stays_json_when_its_bytes_are_hidden() -> None:
    """Before it is read: the escapes of what is beside the key are not touched."""
    key = "/abc+defghij0123456="
    for way in ("as it is", "json of php", "json of .net", "json, all of it", "base64", "hex"):
        body = json.dumps({"message": "\n@\n"}).replace("@", WAYS[way](key)).encode()
        for size in (1, 2, 7, len(body)):
            reads = [body[at : at + size] for at in range(0, len(body), size)]
            assert (
                json.loads(b"".join(Hider([key]).raw(iter(reads)))) == {"message": f"\n{HIDDEN}\n"} or way == "base64"
            )


def test_hiding_takes_time_in_proportion_to_the_text() -> None:
    """No text makes it look at everything again and again; a text of eight times the length tells."""
    hider = Hider(["sk-" + "a" * 200])
    for unit in (" ", "\\", "a", "%25", "&#0", "\n ", "QUFB", "sk-"):
        spent = []
        for count in (20_000, 160_000):
            text = unit * (count // len(unit))
            began = time.thread_time()
            hider.text(text)
            spent.append(time.thread_time() - began)
        assert spent[1] < 40 * max(spent[0], 0.005), (unit, spent)


def test_a_model_that_is_named_like_the_key_is_not_taken() -> None:
    """It would be sent in a request, and shown in every trace."""
    key = "hunter2"
    listed = json_answer({"data": [{"id": key}, {"id": f"m-{key}"}, {"id": "beta"}]})
    with ScriptedServer().on("POST", CHAT, hello()).on("GET", "/v1/models", listed) as server:
        x = ask(server, model="", api_key=key)
        assert x.complete and server.requests[-1].json["model"] == x.model == "beta"
    assert not Hider(["alpha"]).holds("alpha-7b")  # a word of the language, and of names


def test_a_key_that_is_a_word_renames_no_field_and_no_model() -> None:
    said = sse(
        event({"model": "tokens-7b", "choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}),
        event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2, "tokens": 11}}),
        DONE,
    )
    with ScriptedServer().on("POST", CHAT, said) as server:
        x = ask(server, api_key="tokens", model="tokens-7b")
    assert x.complete and (x.input_tokens, x.output_tokens) == (9, 2) and x.response_model == "tokens-7b"
    # A key that is none stands in no name.
    key = "sk-12345678"
    assert Hider([key]).value({f"of {key}": key}) == {f"of {HIDDEN}": HIDDEN}
    assert Hider([key]).name(f"m-{key}") == f"m-{HIDDEN}"
