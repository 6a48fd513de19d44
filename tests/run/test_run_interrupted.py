"""A run that was cut short says so wherever it is looked at: on its root span, in the report, in the list."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.http_servers import DONE, WAIT, Answer, ScriptedServer, chunk, sse

from tokentrace import emit, session, workflow
from tokentrace.cli import cli
from tokentrace.client.settings import Endpoint
from tokentrace.fold import fold
from tokentrace.model import STATUS_ERROR

PASSES = (("cold", False), ("warm", False), ("deep", False))
WHOLE = sse(chunk("Hel"), chunk("lo", finish="stop"), DONE)


class StoppedAt(workflow.Quiet):
    """Ctrl-C when this pass begins, or with a word of the reply."""

    def __init__(self, sentence: str = "", word: str = "") -> None:
        self.sentence, self.word = sentence, word

    def progress(self, sentence: str, fraction: float | None = None) -> None:
        if sentence == self.sentence:
            raise KeyboardInterrupt

    def text(self, piece: str) -> None:
        if piece == self.word:
            raise KeyboardInterrupt


def run(ui: StoppedAt, answer: Answer = WHOLE, passes: tuple[tuple[str, bool], ...] = PASSES) -> session.Outcome:
    with ScriptedServer().on("POST", "/v1/chat/completions", answer) as server:
        endpoint = Endpoint(f"{server.url}/v1", model="m")
        return session.run_passes(session.Ask("Hi"), endpoint, mode="url", passes=passes, ui=ui)


@pytest.mark.parametrize(
    ("ui", "passes", "told"),
    [
        (StoppedAt("warm pass"), PASSES, "interrupted after the cold pass; the warm and deep passes were not run"),
        (StoppedAt("deep pass"), PASSES, "interrupted after the warm pass; the deep pass was not run"),
        (StoppedAt(word="He"), PASSES, "interrupted in the cold pass; the warm and deep passes were not run"),
        (StoppedAt(word="He"), PASSES[:1], "interrupted"),
        (StoppedAt(), PASSES, ""),
    ],
)
def test_where_a_run_was_interrupted_is_said_in_the_trace_the_report_and_the_list(
    ui: StoppedAt, passes: tuple[tuple[str, bool], ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    outcome = run(ui, sse(chunk("He"), WAIT) if ui.word else WHOLE, passes)
    assert outcome.interrupted is bool(told)
    done = workflow.conclude(outcome, workflow.Settings())
    assert done.folder is not None
    for trace in (outcome.trace, fold(outcome.trace, 4), emit.load(done.folder / "trace.jsonl")):
        assert trace.attributes(0).get("tokentrace.interrupted", "") == told
        assert trace.statuses.get(0, (0, "")) == ((STATUS_ERROR, told) if told else (0, ""))
        events = trace.events.get(0, [])
        assert [event.name for event in events] == (["tokentrace.interrupted"] if told else [])
        assert all(trace.start_ns[0] <= event.time_ns <= trace.end_ns[0] for event in events)
    assert done.report.interrupted == told
    shown = " ".join(CliRunner().invoke(cli, ["show"]).output.split())
    assert (told[:1].upper() + told[1:] + "." in shown) if told else "nterrupted" not in shown
    listed = CliRunner().invoke(cli, ["list"]).output
    assert ("(interrupted)" in listed) is bool(told)
    assert json.loads(CliRunner().invoke(cli, ["list", "--json"]).output)["runs"][0]["interrupted"] == told


def test_the_seconds_after_a_deep_reply_are_not_silent() -> None:
    told: list[str] = []

    class Listening(workflow.Quiet):
        def progress(self, sentence: str, fraction: float | None = None) -> None:
            told.append(sentence)

        def text(self, piece: str) -> None:
            told.append(piece)

    with ScriptedServer().on("POST", "/v1/chat/completions", WHOLE) as server:
        endpoint = Endpoint(f"{server.url}/v1", model="m")
        session.run_passes(session.Ask("Hi"), endpoint, mode="local", passes=(("once", True),), ui=Listening())
    assert told == ["sending the request", "Hel", "lo", "reading what was recorded"]


def test_ctrl_c_while_the_trace_is_put_together_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    together = session.stitch

    def stitch(*given: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return together(*given, **named)

    monkeypatch.setattr(session, "stitch", stitch)
    outcome = run(StoppedAt())
    assert outcome.interrupted and list(outcome.exchanges) == ["cold", "warm", "deep"]
    assert "tokentrace.interrupted" not in outcome.trace.attributes(0), "nothing is missing"


def test_a_second_ctrl_c_while_the_trace_is_put_together_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    def stitch(*given: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")

    monkeypatch.setattr(session, "stitch", stitch)
    with pytest.raises(KeyboardInterrupt):
        run(StoppedAt())


#: In the engine's process, which alone has the variable, torch takes until it is ended.
_NEVER_READY = """
import os, sys, time
class Waits:
    def find_spec(self, name, *rest):
        while name == "torch":
            time.sleep(0.05)
if "TOKENTRACE_AGENT_SOCKET" in os.environ:
    sys.meta_path.insert(0, Waits())
"""


@pytest.mark.model
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_before_the_request_leaves_nothing_behind(how: signal.Signals, tmp_path: Path) -> None:
    import psutil

    for name in ("data", "tmp", "patch"):
        (tmp_path / name).mkdir()
    (tmp_path / "patch" / "sitecustomize.py").write_text(_NEVER_READY)
    env = {**os.environ, "TOKENTRACE_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(tmp_path / "patch"),
           "TMPDIR": str(tmp_path / "tmp")}  # fmt: skip
    for name in ("OPENAI_BASE_URL", "TOKENTRACE_BASE_URL", "TOKENTRACE_PROFILE"):
        env.pop(name, None)
    process = subprocess.Popen([sys.executable, "-m", "tokentrace", "run", "Hi"], env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stderr is not None
    told = ""
    while "importing torch" not in told:
        line = process.stderr.readline()
        assert line, told
        told += line
    (engine,) = psutil.Process(process.pid).children()
    process.send_signal(how)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert not engine.is_running()
    assert not list((tmp_path / "data").rglob("*")) and not list((tmp_path / "tmp").glob("tokentrace-*"))


_INTERRUPTED_IMPORT = """
import os, runpy, signal, sys
class Interrupts:
    def find_spec(self, name, *rest):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["tokentrace", "layers"]
runpy.run_module("tokentrace", run_name="__main__")
"""


def test_ctrl_c_while_the_program_is_still_loading_prints_no_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", _INTERRUPTED_IMPORT], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")
