"""How fast the tokens after the first came: one rule, and "at most" or "not known" where it cannot be told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from client_support import CHAT, ask
from support.http_servers import DONE, Request, ScriptedServer, chunk, event, sse, usage_chunk

from tokentrace.exchange import IN_ONE_READ, SEVERAL_A_CHUNK, Chunk, Exchange, Pace

HIDDEN = "tokens of reasoning are counted that were not sent"
TOGETHER = "the tokens of several replies are counted together"
S, MS = 1_000_000_000, 1_000_000


def streamed(*chunks: Chunk, tokens: int | None, finish: str = "length", details: dict[str, int] | None = None) -> Pace:
    x = Exchange("http://h/v1", "m", 1, "", streamed=True, chunks=list(chunks), finish_reason=finish)
    if tokens is not None:
        x.usage = {"completion_tokens": tokens, "completion_tokens_details": details}
    assert x.latencies.tokens_per_s == (x.pace.tokens_per_s if x.pace.exact else None)
    return x.pace


def at(*times_ms: float, counted: tuple[int | None, ...] = ()) -> list[Chunk]:
    counts = counted or (None,) * len(times_ms)
    return [Chunk(S + int(t * MS), "content", "a", counted=n) for t, n in zip(times_ms, counts, strict=True)]


def test_one_token_a_chunk_is_the_mean_gap() -> None:
    found = streamed(*at(0, 50, 100, 150), tokens=4)
    assert found == Pace(150 * MS, 3, True)
    assert found.per_token_ns == 50 * MS and found.tokens_per_s == pytest.approx(20)
    # The end mark is counted, and has no chunk and no time.
    assert streamed(*at(0, 50, 100, 150), tokens=5, finish="stop") == found
    # What follows the last text is nothing's time.
    late = [Chunk(9 * S, "finish", "stop"), Chunk(9 * S, "usage"), Chunk(9 * S, "done")]
    assert streamed(*at(0, 50, 100, 150), *late, tokens=4) == found


def test_several_tokens_a_chunk_are_at_most_so_many_unless_each_chunk_is_counted() -> None:
    found = streamed(*at(0, 1000), tokens=100)
    assert not found.exact and found.tokens == 99 and found.why == SEVERAL_A_CHUNK
    counted = streamed(*at(0, 1000, counted=(50, 100)), tokens=100)
    assert counted == Pace(S, 50, True) and counted.tokens_per_s == 50
    eight = at(*range(0, 1600, 200), counted=tuple(range(4, 33, 4)))
    assert streamed(*eight, tokens=32).tokens_per_s == pytest.approx(20)


def test_what_came_with_the_first_arrival_is_in_the_first_tokens_time() -> None:
    together = streamed(*at(0, 0, 0, 0, 200, 200, 200, 200), tokens=8)
    assert together == Pace(200 * MS, 4, True)


@pytest.mark.parametrize(
    ("chunks", "more", "why"),
    [
        (at(0, 0, 0), {"tokens": 3}, IN_ONE_READ),
        (at(0), {"tokens": 7}, "its text came in one chunk"),
        ([], {"tokens": 7}, "no text came"),
        (at(0, 50), {"tokens": None}, "the server did not count the tokens"),
        (at(0, 50, 100), {"tokens": 2}, "the server counted fewer tokens (2) than chunks with text came (3)"),
        (at(0, 50), {"tokens": 76, "details": {"reasoning_tokens": 64}}, HIDDEN),
        ([*at(0, 50), Chunk(S, "content", "b", 1)], {"tokens": 3}, TOGETHER),
    ],
)  # fmt: skip
def test_unknown_is_unknown_because(chunks: list[Chunk], more: dict[str, Any], why: str) -> None:
    found = streamed(*chunks, **more)
    assert found.tokens is None and found.tokens_per_s is None and found.per_token_ns is None and not found.exact
    assert found.why == why


def test_a_reply_that_was_not_streamed_has_none() -> None:
    whole = Exchange("http://h/v1", "m", 1, "", chunks=at(0, 50), usage={"completion_tokens": 2})
    assert whole.pace == Pace(why="the reply was not streamed")


def step_by_step(*chunks: bytes) -> tuple[Callable[[Request], Any], Callable[[str], None]]:
    """An answer that sends the next chunk 50 ms after the client has the last one, and what tells it that it has."""
    came = [threading.Event() for _ in chunks]
    seen = iter(came)
    steps: list[Any] = []
    for one, event_ in zip(chunks, came, strict=True):
        steps += [one, event_, 0.05]
    return (lambda _: sse(*steps, 0.5, usage_chunk(9, len(chunks)), 0.5, DONE)), lambda _: next(seen).set()


def test_silence_before_the_end_slows_no_token() -> None:
    answer, tell = step_by_step(*[chunk("a")] * 5, chunk("b", finish="length"))
    with ScriptedServer() as server:
        x = ask(server.on("POST", CHAT, answer), more={"on_text": tell})
    assert x.end_ns - x.token_times_ns[-1] >= 950 * MS
    assert x.pace == Pace(x.token_times_ns[-1] - x.token_times_ns[0], 5, True)


def test_a_server_that_counts_in_every_chunk_is_believed() -> None:
    def counting(text: str, count: int) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        usage = {"prompt_tokens": 9, "completion_tokens": count, "total_tokens": 9 + count}
        return event({"id": "c", "model": "alpha", "choices": [choice], "usage": usage})

    came = threading.Event()
    steps = [counting("one two", 50), came, 0.05, counting(" three", 100), chunk(finish="length"), DONE]
    with ScriptedServer() as server:
        x = ask(server.on("POST", CHAT, sse(*steps)), more={"on_text": lambda _: came.set()})
    assert x.output_tokens == 100 and x.pace == Pace(x.token_times_ns[1] - x.token_times_ns[0], 50, True)
