"""Our request is found among others by what is sure, and by nothing else."""

from __future__ import annotations

import pytest
from support.answering import Answering, context

from tokentrace.exchange import prompt_of
from tokentrace.probe import Raw
from tokentrace.probes._request import our_id
from tokentrace.probes._text import quote

TRACE = f"00-{'ab' * 16}-00000000000000{{}}-{{}}"


@pytest.mark.parametrize("flags", ["01", "00"])
def test_the_request_that_carried_our_span_is_ours_whatever_a_proxy_made_of_the_flags(flags: str) -> None:
    arrived = (("theirs", TRACE.format("06", "01")), ("mine", TRACE.format("07", flags)))
    agent = Answering(raws=[Raw("http", "request", 1, 2, 3, "7", {"rid": r, "traceparent": t}) for r, t in arrived])
    ours = context(agent, end_ns=5, request="")
    assert ours.exchange is not None
    ours.exchange.traceparent = TRACE.format("07", "01")
    assert our_id(ours, ["theirs", "mine"]) == "mine"


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (["other", "r1"], "r1"),
        (["other", "r1-1a2b3c4d"], "r1-1a2b3c4d"),
        (["r1-1a2b3c4d", "r1-5e6f7a8b"], ""),
        (["other", "another"], ""),
        (["other"], "other"),
        ([], "r1"),
    ],
)
def test_an_id_that_the_server_lengthened_is_known_again(known: list[str], found: str) -> None:
    assert our_id(context(None), known) == found


@pytest.mark.parametrize(
    ("request_body", "prompt"),
    [
        ({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}, "Hi"),
        ({"messages": [{"role": "user", "content": [{"text": "one"}, {"type": "image"}, {"text": "two"}]}]}, "onetwo"),
        ({"messages": [{"role": "user", "content": None}]}, ""),
        ({"prompt": "Once"}, "Once"),
        ({"prompt": [1, 2]}, ""),
        ({}, ""),
    ],
)
def test_the_prompt_is_what_the_user_said_last(request_body: dict[str, object], prompt: str) -> None:
    assert prompt_of(request_body) == prompt


def test_a_text_is_shown_on_one_line_and_cut() -> None:
    assert quote("a\r\nb") == '"a\\r\\nb"'
    assert quote("x" * 60) == '"' + "x" * 60 + '"'
    assert quote("x" * 61) == '"' + "x" * 60 + '…"'
