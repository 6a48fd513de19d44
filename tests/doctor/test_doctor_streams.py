"""How replies stream: what is no fault, what is a warning. Recorded streams of real services are the controls."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from doctor_support import CHAT, detail, healthy, ids, look, reply
from support.http_servers import DONE, Answer, Request, chunk, event, in_pieces, json_answer, sse, usage_chunk

from tokentrace.doctor.check import Live, Situation
from tokentrace.doctor.stream import CHECKS
from tokentrace.exchange import Chunk, Exchange

ROOT = Path(os.environ.get("TOKENTRACE_RECORDINGS", "/nonexistent"))
LISTED = ROOT / "sse" / "sse_facts.json"
FACTS: dict[str, Any] = json.loads(LISTED.read_text()) if LISTED.exists() else {}


def test_a_healthy_server_has_nothing_wrong() -> None:
    with healthy() as server:
        found = look(server.url + "/v1")
        sent = [r.json for r in server.requests if r.method == "POST" and r.path == CHAT]
    assert (found.verdict.status, found.verdict.exit_code) == ("ok", 0), found.examination.results
    assert "nothing wrong" in found.verdict.cause and "real request was answered" in found.verdict.cause
    assert [s["max_tokens"] for s in sent] == [1, 16] and sent[0]["messages"] == [{"role": "user", "content": "Hi"}]
    assert {"TT800", "TT870", "TT872", "TT873", "TT874", "TT875", "TT617"} <= ids(found, "ok")


def _with(answer: object) -> Any:
    with healthy() as server:
        server.on("POST", CHAT, answer)  # type: ignore[arg-type]
        return look(server.url + "/v1")


def test_a_stream_that_is_held_back() -> None:
    pieces = b"".join(chunk(f" w{n}") for n in range(15)) + chunk(" end", finish="length") + usage_chunk(9, 16) + DONE
    found = _with(sse(0.5, pieces))
    assert "TT870" in ids(found, "warn") and "proxy_buffering" in found.verdict.fix


def test_text_that_comes_at_once_behind_keepalives_is_not_the_gateways_buffer() -> None:
    pieces = b"".join(chunk(f" w{n}") for n in range(15)) + chunk(" end", finish="length") + usage_chunk(9, 16) + DONE
    alive = b": keep-alive\n\n"
    found = _with(sse(0.1, alive, 0.2, alive, 0.2, alive, 0.1, pieces))
    said = detail(found, "TT870")
    assert "TT870" in ids(found, "warn") and "the text is held back, not the stream" in said
    assert "proxy_buffering" not in found.verdict.fix


def _streamed(*arrivals: tuple[float, str]) -> Any:
    """What the check says of a reply whose pieces came at these milliseconds."""
    x = Exchange("http://x", "m", 1, "", complete=True, streamed=True, start_ns=10**18)
    x.chunks = [Chunk(x.start_ns + int(at * 1e6), kind, "w" * (kind == "content")) for at, kind in arrivals]
    (result,) = next(c for c in CHECKS if c.id == "TT870").run(Situation("endpoint", {}, 0.0, live=Live(first=x)))
    return result


def test_silence_is_what_nothing_at_all_came_in() -> None:
    words = [(2000.0 + 40 * n, "content") for n in range(16)]
    found = _streamed((102, "role"), (603, "keepalive"), *words)
    assert found.status == "ok" and "after 1.40 s of silence; 2 pieces without text came before" in found.evidence[0]
    assert "after 2.00 s of silence" in _streamed((2000, "role"), *words).evidence[0]
    at_once = [(2540 + 0.05 * n, "content") for n in range(8)]
    assert "proxy_buffering" in _streamed((2540, "role"), *at_once).fix, "the role was held with the rest"


def test_no_streaming_at_all() -> None:
    whole = {"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]}
    found = _with(json_answer({**whole, "usage": {"prompt_tokens": 9, "completion_tokens": 1}}))
    assert "TT870" in ids(found, "warn") and "one piece" in detail(found, "TT870")
    assert found.verdict.exit_code == 0


def test_no_usage() -> None:
    found = _with(sse(*[chunk(f" w{n}", finish="length" if n == 15 else None) for n in range(16)], DONE))
    assert "TT872" in ids(found, "warn") and "no usage" in detail(found, "TT872")


def test_a_field_that_is_refused() -> None:
    def picky(request: Request) -> Answer:
        if "stream_options" in request.json:
            return json_answer({"error": {"message": "unknown field stream_options"}}, 400)
        return reply(request)

    found = _with(picky)
    assert "TT874" in ids(found, "warn") and "stream_options" in detail(found, "TT874")
    assert "leave stream_options out" in next(r.fix for r in found.examination.results if r.id == "TT874")


def test_limits_that_are_not_kept() -> None:
    assert "TT617" in ids(_with(sse(chunk("Hi"), chunk(" there", finish="stop"), usage_chunk(9, 40), DONE)), "warn")
    found = _with(sse(chunk("Hi", finish="length"), usage_chunk(9, 1), DONE))
    assert "TT617" in ids(found, "warn") and "limits replies to one token" in detail(found, "TT617")


def test_a_service_that_wants_more_than_one_token() -> None:
    def picky(request: Request) -> Answer:
        if request.json["max_tokens"] < 16:
            said = "Could not finish the message because max_tokens or model output limit was reached."
            return json_answer({"error": {"message": said, "type": "invalid_request_error"}}, 400)
        return reply(request)

    found = _with(picky)
    assert found.verdict.status == "ok", found.verdict


def test_a_reasoning_model_that_shows_nothing_of_one_token() -> None:
    def hiding(request: Request) -> Answer:
        if request.json["max_tokens"] == 1:
            return sse(chunk(role="assistant"), chunk(finish="length"), usage_chunk(9, 1), DONE)
        return reply(request)

    assert _with(hiding).verdict.status == "ok"
    found = _with(sse(chunk(role="assistant"), chunk(finish="length"), usage_chunk(9, 16), DONE))
    assert "TT875" in ids(found, "warn") and "counts 16 tokens of reply, and no text came" in detail(found, "TT875")
    whole = _with(sse(chunk(role="assistant"), chunk(finish="stop"), usage_chunk(9, 1), DONE))
    assert "counts 1 token of reply" in detail(whole, "TT875")


def test_odd_events_that_are_legal() -> None:
    first = event({"choices": [], "prompt_filter_results": []})
    found = _with(sse(first, chunk("He"), chunk("llo", finish="stop"), usage_chunk(9, 1), DONE))
    assert found.verdict.status != "fail"


TOO_LONG = (
    "This model's maximum context length is 6048 tokens. However, you requested 6616 tokens (568 in the messages, 6048 "
    "in the completion)."
)


@pytest.mark.parametrize(
    ("answer", "check"),
    [
        (sse(b"data: not json\n\n", DONE), "TT862"),
        (sse(chunk("He"), b"data: {broken\n\n", chunk("llo", finish="stop"), DONE), "TT862"),
        (sse(DONE), "TT854"),
        (sse(event({"error": {"message": "boom", "code": 500}}), DONE), "TT852"),
        (json_answer({"error": {"message": "boom"}}), "TT852"),
        (json_answer({"choices": []}), "TT851"),
        (json_answer({"id": 1, "object": "chat.completion"}), "TT851"),
        (json_answer([1, 2]), "TT851"),
        (json_answer({"error": {"message": TOO_LONG}}, 400), "TT601"),
        (json_answer({"error": {"message": "EngineDeadError: EngineCore encountered an issue"}}, 500), "TT602"),
        (json_answer({"error": {"message": "Loading model", "code": 503}}, 503), "TT603"),
        (json_answer({"error": {"message": "CUDA out of memory"}}, 500), "TT604"),
    ],
)  # fmt: skip
def test_answers_that_are_none(answer: Answer, check: str) -> None:
    found = _with(answer)
    assert (found.verdict.status, found.verdict.check) == ("fail", check), found.verdict
    assert found.verdict.fix and found.verdict.layer == int(check[2])


@pytest.mark.skipif(not FACTS, reason="TOKENTRACE_RECORDINGS is not set")
@pytest.mark.parametrize("name", sorted(FACTS))
def test_recorded_streams_give_no_false_alarm(name: str) -> None:
    facts = FACTS[name]
    steps = in_pieces((ROOT / name).read_bytes(), 997)
    kind = {"Content-Type": facts.get("content_type") or "text/event-stream"}
    found = _with(Answer(200, kind, steps))
    if facts["error_at"]:
        assert found.verdict.check == "TT852"
    elif not facts["choice_indexes"]:
        assert found.verdict.check == "TT853"
    else:
        assert found.verdict.status != "fail", found.verdict
        assert "TT800" in ids(found, "ok")
        assert ("TT873" in ids(found, "warn")) == (not facts["done"] or not facts["finish"])
        assert ("TT872" in ids(found, "ok")) == (
            bool(facts["usage_last"]) and isinstance(facts["usage_last"].get("completion_tokens"), int)
        )
