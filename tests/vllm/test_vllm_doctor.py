"""The doctor before a real vLLM: healthy, with its engine stopped behind green routes, and with its engine killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from vllm_server import MODEL, VllmServer

from tokentrace.client.chat import chat
from tokentrace.client.settings import Endpoint
from tokentrace.doctor import Diagnosis, Wishes, after_failure, diagnose, processes

pytestmark = pytest.mark.vllm
OUTSIDE = frozenset((8, 7, 6))


def look(server: VllmServer, timeout_s: float = 60.0) -> Diagnosis:
    return diagnose(Wishes(server.url, timeout_s=timeout_s, layers=OUTSIDE), environ={}, folder=Path("/nonexistent"))


def engine(server: VllmServer) -> int:
    """The process of the engine, which is not the one that speaks HTTP."""
    return next(p for p in server.pids if "EngineCore" in " ".join(psutil.Process(p).cmdline()))


@pytest.fixture
def stopped(server: VllmServer) -> Iterator[VllmServer]:
    core = engine(server)
    os.kill(core, signal.SIGSTOP)
    while psutil.Process(core).status() != psutil.STATUS_STOPPED:
        time.sleep(0.05)
    yield server
    os.kill(core, signal.SIGCONT)


def test_nothing_is_wrong_with_a_healthy_server(server: VllmServer) -> None:
    found = look(server)
    assert found.verdict.exit_code == 0 and found.verdict.status == "ok", found.verdict
    assert not [r for r in found.examination.results if r.status == "fail"]


def test_a_stopped_engine_is_named_with_what_lets_it_go_on(stopped: VllmServer) -> None:
    found = look(stopped, 20.0)
    verdict = found.verdict
    assert (verdict.status, verdict.layer, verdict.check) == ("fail", 6, "TT605"), verdict
    assert verdict.fix.startswith(f"kill -CONT {engine(stopped)}")
    assert found.examination.situation.look is not None and "health" in found.examination.situation.look.alive


def test_a_stopped_engine_elsewhere_is_told_by_its_figures(
    stopped: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from another machine, where no process is to be seen."""
    monkeypatch.setattr(processes, "listening", lambda port: None)
    verdict = look(stopped, 20.0).verdict
    assert (verdict.status, verdict.layer, verdict.check) == ("fail", 6, "TT605"), verdict
    assert "is stalled" in verdict.cause and "the web server before it lives" in verdict.cause


def test_it_is_healthy_again_when_it_goes_on(server: VllmServer) -> None:
    assert look(server).verdict.exit_code == 0


def test_an_engine_that_is_killed_during_a_request(server: VllmServer) -> None:
    core, endpoint = engine(server), Endpoint.of(server.url, model=MODEL, timeout_s=120.0)

    def kill(_: str) -> None:
        if psutil.pid_exists(core):
            os.kill(core, signal.SIGKILL)

    x = chat(endpoint, [{"role": "user", "content": "A long story"}], trace_id=1, span_id=1, environ={},
             max_tokens=900, body={"ignore_eos": True}, on_text=kill)  # fmt: skip
    assert x.error is not None and not x.complete
    error = after_failure(x.error, endpoint, {})
    # vLLM tells of it in the stream, or ends with its engine before it can.
    assert getattr(error, "check", "") in ("TT602", "TT828", "TT860", "TT861"), error
    server.process.wait(120)
    gone = look(server).verdict
    assert gone.check == "TT803" and "nothing listens" in gone.cause
