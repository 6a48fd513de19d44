"""The engine as a process: it starts, says why it did not, ends at once when told to, and never outlives its parent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.model_folders import write_hollow_model

from tokentrace.agent_client import AgentClient
from tokentrace.engines.local.engine import Options
from tokentrace.engines.local.process import LocalEngine
from tokentrace.errors import EngineError


def refusal(*args: Any, **kwargs: Any) -> EngineError:
    with pytest.raises(EngineError) as caught:
        LocalEngine.start(*args, agent=False, **kwargs).stop()
    error = caught.value
    assert error.exit_code == 2 and error.fix and "\n" not in str(error) and "Traceback" not in str(error)
    return error


def gone(pid: int, within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


def test_a_taken_port_is_refused_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = refusal(None, port=port)
    assert f"port {port}" in str(error) and "--port" in error.fix


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "there is no model folder" in str(refusal(tmp_path / "no"))


def test_a_process_that_cannot_be_started_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tiny: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert "cannot be started" in str(refusal(tiny))
    assert not list(tmp_path.glob("tokentrace-engine-*"))


def test_compile_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    error = refusal(tiny, compile=True)
    assert "C++ compiler" in str(error) and "no-such-compiler" in str(error) and error.layer == 2


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_hollow_model(tmp_path / "broken")


@pytest.fixture
def copy(tiny_folder: Path, tmp_path: Path) -> Path:
    """Of the tiny model, for a test to spoil."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "copy"))


@pytest.mark.model
def test_death_at_start_shows_why_and_the_last_log_lines(tiny: Path, tiny_folder: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    small = json.loads((tiny_folder / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps({**small, **config}))
    error = refusal(tiny)
    assert "lack" in str(error) and "tensors" in str(error)
    assert "MISSING" in error.detail, "the loader's own report is among the last log lines"


@pytest.mark.model
def test_a_broken_tokenizer_at_start(copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{}")
    assert "the tokenizer in" in str(refusal(copy))


@pytest.mark.model
def test_an_unknown_model_type(copy: Path) -> None:
    (copy / "config.json").write_text('{"architectures": ["NewForCausalLM"], "model_type": "new-kind"}')
    assert "cannot be loaded" in str(refusal(copy))


@pytest.mark.model
def test_context_that_the_model_does_not_know(tiny_folder: Path) -> None:
    assert "knows 512 tokens" in str(refusal(tiny_folder, options=Options(max_model_len=1000)))


@pytest.mark.model
def test_the_agent_answers_where_temporary_files_lie_too_deep_for_a_socket(
    monkeypatch: pytest.MonkeyPatch, tiny_folder: Path, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with LocalEngine.start(tiny_folder) as engine:
        assert engine.agent_socket is not None
        with AgentClient.connect(engine.agent_socket) as agent:
            assert agent.process == str(engine.pid)
        run_folder = engine.agent_socket.parent
        assert run_folder.stat().st_mode & 0o777 == 0o700
    assert not run_folder.exists() and not list(deep.iterdir())


@pytest.mark.model
def test_progress_names_the_phases(tiny_folder: Path) -> None:
    phases: list[str] = []
    with LocalEngine.start(tiny_folder, agent=False, progress=lambda sentence, fraction: phases.append(sentence)):
        assert phases == ["importing torch", "importing transformers", "loading weights", "starting"]


@pytest.mark.model
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_signal_ends_it_cleanly_and_quickly(smol: Any, number: int, streaming: bool) -> None:
    with LocalEngine.start(smol, agent=False) as engine:
        lines: list[str] = []
        begun = threading.Event()

        def read() -> None:
            body = {"messages": [{"role": "user", "content": "Count."}], "stream": True, "ignore_eos": True}
            with httpx.stream("POST", engine.base_url + "/chat/completions", json=body, timeout=60) as answer:
                for line in answer.iter_lines():
                    lines.append(line)
                    begun.set()

        reader = threading.Thread(target=read)
        if streaming:
            reader.start()
            assert begun.wait(120)
        os.kill(engine.pid, number)
        assert engine._process.wait(60) == 0
        if streaming:
            reader.join(60)
            assert "the engine is stopping" in "".join(lines[-4:]), "the client is told, not cut off"


@pytest.mark.model
def test_death_in_the_middle_of_a_stream_is_explained(smol: Any) -> None:
    """With the real model, whose reply is not over before a slow reader has read its beginning."""
    with LocalEngine.start(smol, agent=False) as engine:
        assert engine.failure(0) is None
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "ignore_eos": True}
        with (
            pytest.raises(httpx.HTTPError),
            httpx.stream("POST", engine.base_url + "/chat/completions", json=body, timeout=120) as answer,
        ):
            for index, _ in enumerate(answer.iter_lines()):
                if index == 6:
                    os.kill(engine.pid, signal.SIGKILL)
        error = engine.failure()
        assert error is not None and error.exit_code == 2
        assert "was killed by SIGKILL while it served" in str(error)
        assert "memory" in error.fix and "ready" in error.detail
    assert engine.failure() is None, "stopped on purpose is no failure"


@pytest.mark.model
def test_the_excerpt_of_the_log_leaves_out_what_the_profiler_says_for_nothing(tiny_folder: Path) -> None:
    """What torch writes when a profile runs on another thread than the one that loaded it; with and without a date."""
    with LocalEngine.start(tiny_folder, agent=False) as engine:
        with engine.log_path.open("ab") as log:
            log.write(b"first\nERROR: External init callback must run in same thread as registerClient (7 != 9)\n")
            log.write(b"ERROR:2026-01-01 00:00:00 7:9 init.cpp:1] External init callback must run in same thread as "
                      b"registerClient (7 != 9)\nERROR: out of memory\n")  # fmt: skip
        os.kill(engine.pid, signal.SIGKILL)
        error = engine.failure(60)
        assert error is not None and error.detail.endswith("first\nERROR: out of memory"), error.detail
        assert b"External init" in engine.log_path.read_bytes(), "only the excerpt leaves it out"


@pytest.mark.model
def test_it_does_not_outlive_its_parent(tiny_folder: Path) -> None:
    code = f"""
import os, signal
from tokentrace.engines.local.process import LocalEngine
engine = LocalEngine.start({str(tiny_folder)!r}, agent=False)
print(engine.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == -signal.SIGKILL
    assert gone(int(done.stdout))


@pytest.mark.model
def test_ctrl_c_in_the_terminal_does_not_reach_it(tiny_folder: Path) -> None:
    with LocalEngine.start(tiny_folder, agent=False) as engine:
        assert os.getsid(engine.pid) == engine.pid != os.getsid(0)
        assert os.getpgid(engine.pid) != os.getpgid(0)


@pytest.mark.model
def test_stop_leaves_nothing_behind(tiny_folder: Path) -> None:
    engine = LocalEngine.start(tiny_folder, agent=False)
    pid, folder = engine.pid, engine._run_folder
    engine.stop()
    engine.stop()
    assert gone(pid) and not folder.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(engine.base_url + "/models")


@pytest.mark.model
def test_modules_in_the_users_folder_are_not_imported(tiny_folder: Path, tmp_path: Path) -> None:
    """Someone runs tokentrace in a folder that holds a torch.py."""
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")
    code = f"""
import os, sys
sys.path[:] = [p for p in sys.path if p]
os.chdir({str(tmp_path)!r})
from tokentrace.engines.local.process import LocalEngine
with LocalEngine.start({str(tiny_folder)!r}, agent=False) as engine:
    print(engine.facts["device"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip().partition(":")[0] in ("cpu", "cuda"), done.stderr


@pytest.mark.model
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serving_in_the_foreground_ends_with_exit_code_0(tiny_folder: Path, number: int) -> None:
    code = f"""
from pathlib import Path
from tokentrace.engines.local.engine import Options
from tokentrace.engines.local.folder import inspect
from tokentrace.engines.local.server import serve
serve(inspect(Path({str(tiny_folder)!r})), port=0, options=Options(),
      ready=lambda url: print(url, flush=True), progress=lambda sentence, fraction: None)
print("after")
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert httpx.get(url + "/models").json()["data"][0]["id"] == "tiny"
    process.send_signal(number)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out, errors) == (0, "after\n", "")


@pytest.mark.model
def test_ctrl_c_while_loading_leaves_no_process(tiny_folder: Path) -> None:
    """The user gives up during the imports: LocalEngine.start raises KeyboardInterrupt and the child is gone."""
    pids: list[int] = []
    spawned = subprocess.Popen

    class Watched(spawned):  # type: ignore[type-arg, valid-type, misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            pids.append(self.pid)

    def interrupt(sentence: str, fraction: float | None) -> None:
        if sentence == "importing torch":
            raise KeyboardInterrupt

    subprocess.Popen = Watched  # type: ignore[misc]
    try:
        with pytest.raises(KeyboardInterrupt):
            LocalEngine.start(tiny_folder, agent=False, progress=interrupt)
    finally:
        subprocess.Popen = spawned  # type: ignore[misc]
    assert len(pids) == 1 and gone(pids[0])


@pytest.mark.model
def test_graphs_without_a_gpu_are_refused_by_name(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(EngineError) as refused:
        LocalEngine.start(str(tiny_folder), agent=False, cuda_graphs=True)
    assert "--cuda-graphs needs a CUDA GPU" in str(refused.value) + refused.value.detail
