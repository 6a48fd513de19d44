"""How a request ends: limits, silence, resets, Ctrl-C, answers without an end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from client_support import CHAT, ask, phases_of
from support.http_servers import (
    DONE,
    RESET,
    WAIT,
    Answer,
    ScriptedServer,
    chunk,
    sse,
)
from support.together import together

from tokentrace.client.wire import Timeouts
from tokentrace.exchange import Exchange


def timed(server: ScriptedServer, **more: Any) -> tuple[Exchange, float]:
    start = time.monotonic()
    x = ask(server, **more)
    return x, time.monotonic() - start


SILENT = {
    "no head": (Answer(before=30), "TT825", "wait"),
    "a head": (sse(WAIT), "TT825", "wait"),
    "a comment": (sse(b": ping\n\n", WAIT), "TT825", "wait"),
    "a piece": (sse(chunk("a"), WAIT), "TT826", "stream"),
    "half a body": (
        Answer(200, {"Content-Type": "application/json"}, [b'{"choices"', WAIT]), "TT826", "wait",
    ),
}  # fmt: skip


def _fall_silent(answer: Answer) -> tuple[Exchange, float]:
    with ScriptedServer().on("POST", CHAT, answer) as server:
        return timed(server, timeout_s=1.5)


@pytest.fixture(scope="module")
def silences() -> Iterator[dict[str, Future[tuple[Exchange, float]]]]:
    with together({name: partial(_fall_silent, answer) for name, (answer, _, _) in SILENT.items()}) as exchanges:
        yield exchanges


@pytest.mark.parametrize("after", SILENT)
def test_silence_ends_with_the_limit(after: str, silences: dict[str, Future[tuple[Exchange, float]]]) -> None:
    _, check, phase = SILENT[after]
    x, seconds = silences[after].result()
    assert seconds < 25
    assert x.error is not None and x.error.check == check
    assert x.phases[-1].name == phase and x.phases[-1].attributes["error.type"].startswith("timeout")
    assert x.wall_ns >= 1_450_000_000


def test_each_limit_is_its_own(server: ScriptedServer) -> None:
    slow = [step for _ in range(40) for step in (chunk("a"), 0.1)]
    with server.on("POST", CHAT, sse(0.2, *slow, chunk(finish="stop"), DONE)):
        each = {"connect_s": 60.0, "first_byte_s": 60.0, "between_s": 3.0}
        work = {
            total_s: partial(ask, server, more={"timeouts": Timeouts(**each, total_s=total_s)})
            for total_s in (None, 2.0)
        }
        with together(work) as exchanges:
            assert exchanges[None].result().complete
            x = exchanges[2.0].result()
    assert x.error is not None and x.error.check == "TT827" and x.text


def test_connection_left_open_after_done(server: ScriptedServer) -> None:
    with server.on("POST", CHAT, sse(chunk("Hi", finish="stop"), DONE, WAIT)):
        x, seconds = timed(server, timeout_s=50)
    assert x.complete and seconds < 40 and "after [DONE]" in x.notes[0]
    assert x.wall_ns < (seconds - 0.9) * 1e9  # the wait for the end, of one second, is not the reply's time


def test_reset_after_done_is_no_fault(server: ScriptedServer) -> None:
    with server.on("POST", CHAT, sse(chunk("Hi", finish="stop"), DONE, 1.0, RESET)):
        assert ask(server).complete


def test_should_stop(server: ScriptedServer) -> None:
    stop = threading.Event()
    with server.on("POST", CHAT, sse(chunk("a"), WAIT)):
        x, seconds = timed(server, more={"should_stop": stop.is_set, "on_text": lambda _: stop.set()}, timeout_s=50)
    assert seconds < 40 and x.interrupted and not x.complete and x.text == "a"
    assert "interrupted" in x.notes and x.error is None and x.error_type == "interrupted"
    assert phases_of(x)[-1] == "stream" and x.phases[-1].end_ns == x.end_ns


def test_keyboard_interrupt_keeps_what_had_come(server: ScriptedServer) -> None:
    def interrupt(text: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with server.on("POST", CHAT, sse(chunk("a"), WAIT)):
        x, seconds = timed(server, more={"on_text": interrupt}, timeout_s=50)
    assert seconds < 40 and x.interrupted and not x.complete and x.text == "a"
    assert all(p.end_ns >= p.start_ns for p in x.phases)


def test_an_endless_answer_is_given_up(server: ScriptedServer) -> None:
    mib = b" " * (1 << 20)
    with server.on("POST", CHAT, Answer(200, {"Content-Type": "application/json"}, [b"{", *[mib] * 40])):
        x = ask(server)
    assert x.error is not None and x.error.check == "TT851" and "longer than" in str(x.error)
    with ScriptedServer().on("POST", CHAT, sse(b"data: ", *[b"x" * (1 << 20)] * 20)) as other:
        x = ask(other)
    assert x.error is not None and "longer than" in str(x.error)
