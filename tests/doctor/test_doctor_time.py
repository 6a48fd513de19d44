"""Always an answer, and within the timeout and three seconds, whatever the server does with the time."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from doctor_support import CHAT, healthy, json_answer, look
from support.loopback import Loopback
from support.together import together

from tokentrace.client.chat import chat
from tokentrace.client.settings import Endpoint
from tokentrace.doctor import Diagnosis
from tokentrace.doctor.check import Check, Live, Result, Situation, fail
from tokentrace.doctor.examine import examine
from tokentrace.doctor.jobs import within
from tokentrace.doctor.refine import after_failure
from tokentrace.errors import EndpointError
from tokentrace.exchange import Exchange

#: Generous, so that a slow machine has the time for what is no waiting.
TIMEOUT_S = 10.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Long: " + b"a" * 500 + b"\r\n\r\n"


class Dripping(Loopback):
    """Answers every request with `at_once` and then one byte a second, for ever."""

    def __init__(self, at_once: bytes, then: bytes) -> None:
        super().__init__()
        self.url += "/v1"
        self._at_once, self._then = at_once, then

    def handle(self, connection: socket.socket) -> None:
        connection.sendall(self._at_once)
        for byte in iter(lambda: self._then, b""):
            for one in byte:
                if self.closing.wait(1.0):
                    return
                connection.sendall(bytes([one]))


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    began = time.monotonic()
    yield
    # Three seconds are the promise; a busy machine adds its own, and these servers would go on for minutes.
    assert time.monotonic() - began < TIMEOUT_S + 35


DRIPS = {
    "the head": (b"", HEAD),
    "the body": (HEAD, b"data: {"),
    "the body of an error": (b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\n\r\n", b'{"detail": "No"'),
    "a page": (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>", b"<p>waiting"),
    "nothing": (b"", b""),
}


def _look_at_drips(name: str) -> Diagnosis:
    with Dripping(*DRIPS[name]) as server, in_time():
        return look(server.url, timeout_s=TIMEOUT_S, model="alpha")


def _run_on_drips() -> tuple[Exchange, Exception]:
    """A request, and what the command that made it says of its failure."""
    with Dripping(b"", HEAD) as server:
        endpoint = Endpoint.of(server.url, model="alpha", timeout_s=2.0)
        x = chat(endpoint, [{"role": "user", "content": "Hi"}], trace_id=1, span_id=1, environ={})
        assert x.error is not None
        return x, after_failure(x.error, endpoint, {})


@pytest.fixture(scope="module")
def looks() -> Iterator[dict[str, Future[Any]]]:
    """All at once: each waits for a server of its own."""
    with together({"a run": _run_on_drips, **{name: partial(_look_at_drips, name) for name in DRIPS}}) as looks:
        yield looks


@pytest.mark.parametrize("name", DRIPS)
def test_one_byte_a_second_on_every_route(name: str, looks: dict[str, Future[Any]]) -> None:
    found: Diagnosis = looks[name].result()
    assert found.verdict.status == "fail" and found.verdict.layer == 8, found.verdict
    assert found.verdict.fix


def test_a_run_ends_although_the_head_of_the_answer_drips(looks: dict[str, Future[Any]]) -> None:
    # One byte a second is never silent for two: without a limit for the whole head this took ten minutes.
    x, said = looks["a run"].result()
    assert x.error.check == "TT825" and not x.complete
    assert isinstance(said, EndpointError) and said.check == "TT825"


def test_a_name_that_is_never_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: (asleep.wait(120), [])[1])
    with in_time():
        found = look("http://slow.example/v1", timeout_s=TIMEOUT_S / 2)
    asleep.set()
    assert found.verdict.check == "TT802", found.verdict


def test_a_server_that_wants_to_be_asked_again_is_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    with healthy() as server:
        file.write_text(f'base_url = "{server.url}/v1"\nmodel = "alpha"\nmax_retries = 5\n')
        server.on("POST", CHAT, json_answer({"error": {"message": "slow down"}}, 429, Retry_After="50"))
        with in_time():
            found = look(None, config=str(file), timeout_s=TIMEOUT_S)
        assert found.verdict.check == "TT845" and "50 s" in found.verdict.fix
        assert len([r for r in server.requests if r.method == "POST"]) == 1


def test_a_second_look_that_hangs_leaves_the_requests_own_sentence() -> None:
    """Whatever a check waits for: what is known without it is said."""

    def hangs(_: Situation) -> list[Result]:
        time.sleep(60)
        return []

    def at_once(s: Situation) -> list[Result]:
        return [fail("TT800", "known already", "mend it")]

    situation = Situation("endpoint", {}, time.monotonic() + 0.5, 0.5, offline=False)
    situation.live = Live()
    done = examine(situation, [Check("TT800", "t", "m", "l", "f", hangs, seconds=0.5, hurried=at_once)], [])
    assert [(r.id, r.status, r.detail) for r in done.results] == [("TT800", "fail", "known already")]


def test_work_that_hangs_is_left_behind() -> None:
    assert within(0.1, "hangs", lambda: time.sleep(60) or "late", "without") == "without"
    assert within(60, "quick", lambda: "found", "without") == "found"
    assert within(60, "breaks", lambda: str(1 / 0), "without") == "without"
