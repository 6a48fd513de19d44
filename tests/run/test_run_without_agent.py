"""The local engine answers although its agent cannot be had: what can be seen is, the other layers say why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from tokentrace import session, workflow
from tokentrace.agent_client import AgentClient
from tokentrace.client.settings import Endpoint
from tokentrace.engines.local.process import LocalEngine

pytestmark = pytest.mark.model
COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]
#: Imported by Python before anything else; only the engine's process has the variable.
IN_THE_ENGINE = """
import os, socket
if "TOKENTRACE_AGENT_SOCKET" in os.environ:
    plain = socket.socket
    class Socket(plain):
        def {method}(self, *given):
            if self.family == socket.AF_UNIX:
                {instead}
            return plain.{method}(self, *given)
    socket.socket = Socket
"""
FAILURES = {
    "no socket": ("bind", 'raise PermissionError(13, "sockets are forbidden here")', "sockets are forbidden here"),
    "nobody listens": ("listen", "return None", "no agent listens on"),
    "it breaks": ("bind", 'raise RuntimeError("out of order")', "out of order"),
}


@pytest.mark.parametrize("how", FAILURES)
def test_the_run_goes_on_with_what_can_be_seen(how: str, tmp_path: Path) -> None:
    method, instead, said = FAILURES[how]
    (tmp_path / "sitecustomize.py").write_text(IN_THE_ENGINE.format(method=method, instead=instead))
    drop = ("OTEL_", "OPENAI_", "TOKENTRACE_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop) or k == "TOKENTRACE_CACHE_DIR"}
    env |= {"TOKENTRACE_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*COMMAND, "run", "Hi", "--max-tokens", "4", "--json"], capture_output=True, text=True,
                          env=env, timeout=240, check=False)  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    report = orjson.loads(done.stdout)
    rows = {row["layer"]: row for row in report["layers"]}
    assert report["reply"].startswith("Hello") and not report["error"]
    assert [rows[n]["status"] for n in (8, 7, 6)] == ["seen"] * 3, "the client, /tokenize and /metrics"
    assert rows[7]["form_out"].startswith("31 ids [1, 9690"), rows[7]
    for number in (5, 4, 3, 2):
        assert rows[number]["status"] == "unseen" and said in rows[number]["reason"], rows[number]
        assert rows[number]["fix"]
    assert rows[1]["facts"].get("tokentrace.cpu.seconds", 0) > 0, "of the engine, which is still known"


def test_an_agent_that_goes_away_between_two_passes_ends_no_run(tmp_path: Path) -> None:
    class Ends(workflow.Quiet):
        def progress(self, sentence: str, fraction: float | None = None) -> None:
            if sentence == "warm pass":
                agent.close()

    with LocalEngine.start() as engine:
        assert engine.agent_socket is not None and not engine.agent_problem
        agent = AgentClient.connect(engine.agent_socket)
        endpoint = Endpoint(engine.base_url, model=engine.model_name)
        outcome = session.run_passes(session.Ask("Hi", max_tokens=4), endpoint, mode="local",
                                     passes=session.THREE_PASSES, ui=Ends(), agent=agent,
                                     failure=engine.failure)  # fmt: skip
    assert outcome.error is None and list(outcome.exchanges) == ["cold", "warm", "deep"]
    states: dict[str, Any] = {name: {s["layer"]: s for s in one["states"]}
                              for name, one in outcome.trace.meta["passes"].items()}  # fmt: skip
    assert states["cold"][6]["status"] == "seen" and "steps" in states["cold"][6]["facts"]
    assert "agent in the engine is gone" in states["warm"][5]["reason"]
    assert states["deep"][8]["status"] == "seen"
