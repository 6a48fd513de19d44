"""Putting the agent into processes that do all sorts of things, and what they find afterwards: nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_support import Program

from tokentrace import attach
from tokentrace.attach import inject, payload, private
from tokentrace.attach.stub import CODE, PAGE
from tokentrace.errors import AttachError

#: Repeats of the tests that look for rare harm.
REPEATS = int(os.environ.get("TOKENTRACE_ATTACH_REPEATS", "50"))
STUB = Path(attach.__file__).with_name("stub.S")
Start = Callable[..., Program]


def another(program: Program, folder: Path, code: str, **more: Any) -> subprocess.Popen[str]:
    """Another tokentrace, that runs `code` with `a` the package and `found` the program as a server."""
    (folder / "found").write_bytes(pickle.dumps(program.found))
    begin = "import sys, time, pickle, tokentrace.attach as a; found = pickle.load(open(sys.argv[1], 'rb'))\n"
    command = [sys.executable, "-c", begin + code, str(folder / "found")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)


def unharmed(program: Program) -> None:
    said = program.end()
    assert program.process.returncode == 0
    assert said["rounds"] > 0 and said["wrong"] == 0
    assert said["modules"] == [] and said["finders"] and said["threads"] == 0 and said["names"] == []


def through(program: Program, times: int) -> None:
    """Attach, ask, detach."""
    for _ in range(times):
        with attach.open(program.found, method="borrow") as attached:
            assert attached.depth == "injected"
            assert attached.agents[0].facts()["pid"] == program.pid
            assert attached.notes == []
            left = attached.close()
        assert left == []


@pytest.mark.parametrize("mode", ["waiting", "sleeping", "extension"])
def test_a_process_is_as_it_was_after_attaching(program: Start, mode: str) -> None:
    running = program(mode)
    through(running, max(1, REPEATS // 5))
    unharmed(running)


def test_a_process_that_fights_for_its_lock_keeps_its_registers(program: Start) -> None:
    running = program("computing")
    through(running, REPEATS)
    unharmed(running)


@pytest.mark.model
def test_a_process_full_of_tensors_keeps_its_results(program: Start) -> None:
    running = program("tensors")
    through(running, REPEATS)
    unharmed(running)


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13", "3.14"])
def test_other_pythons_get_the_sources(program: Start, version: str) -> None:
    pyenv = Path(os.environ.get("HOME") or "/nonexistent").glob(".pyenv/versions/*/bin")
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *map(str, pyenv)]
    for folder in folders:
        python = Path(folder) / f"python{version}"
        if python.exists() and ".pyenv/shims" not in folder:
            break
    else:
        pytest.skip(f"there is no Python {version} here")
    running = program("computing", python=str(python))
    through(running, 3)
    unharmed(running)


def test_groups_are_off_and_hooks_gone_after_detaching(program: Start) -> None:
    running = program("waiting")
    with attach.open(running.found) as attached:
        attached.agents[0].enable("jit")  # puts an import hook into sys.meta_path
        assert attached.agents[0].facts()["on"] == ["jit"]
    unharmed(running)


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_the_debugger_gets_in_too(program: Start) -> None:
    running = program("computing")
    with attach.open(running.found, method="gdb") as attached:
        assert attached.inside[0].way == "gdb"
    unharmed(running)


def test_another_attach_is_refused_while_one_goes_on(program: Start) -> None:
    running = program("waiting")
    with attach.open(running.found), pytest.raises(AttachError, match=f"process {os.getpid()}.* is attached") as second:
        attach.open(running.found)
    assert second.value.fix
    through(running, 1)  # and goes again once the first has ended
    unharmed(running)


def test_two_attaches_in_two_runtime_folders_do_not_meet_in_one_process(program: Start, tmp_path: Path) -> None:
    running = program("waiting")
    code = "try: a.open(found, method='borrow')\nexcept Exception as error: print(error)"
    elsewhere = tmp_path / "run"
    elsewhere.mkdir(mode=0o700)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(elsewhere)}
    with attach.open(running.found), another(running, tmp_path, code, env=environment) as second:
        said, _ = second.communicate(timeout=240)
    assert "another tokentrace" in said
    unharmed(running)


def test_a_killed_tokentrace_leaves_nothing_behind(program: Start, tmp_path: Path) -> None:
    running = program("computing")
    code = (
        "attached = a.open(found); attached.agents[0].enable('jit')\n"
        "print(attached.inside[0].socket, flush=True); time.sleep(600)"
    )
    with another(running, tmp_path, code) as tokentrace:
        assert tokentrace.stdout is not None
        socket = Path(tokentrace.stdout.readline().strip())
        assert socket.exists()
        tokentrace.kill()
    deadline = time.monotonic() + 60
    while socket.exists():
        assert time.monotonic() < deadline, "the agent has not left"
        time.sleep(0.05)
    unharmed(running)


def test_a_tokentrace_killed_in_mid_injection_harms_nobody(program: Start, tmp_path: Path) -> None:
    running = program("computing")
    code = "from tokentrace.attach import inject; print('go', flush=True); a.open(found).close(); print('end')"
    for _ in range(5):
        with another(running, tmp_path, code) as tokentrace:
            assert tokentrace.stdout is not None
            tokentrace.stdout.readline()
            time.sleep(random.uniform(0.0, 0.4))
            tokentrace.kill()
    deadline = time.monotonic() + 120
    while True:
        try:
            through(running, 1)
            break
        except AttachError:  # what the last one put in is about to leave
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert [path.name for path in private.own_folder().iterdir() if path.suffix != ".log"] == []
    said = running.end()
    assert running.process.returncode == 0 and said["rounds"] > 0 and said["wrong"] == 0


#: Comes as far as the agent listens, and not to it. Such an agent would go by itself too, but not while a test waits.
NOT_ARRIVED = """
from tokentrace.attach import inject, payload
name = payload.PACKAGE + ".control"
payload.sources()[name] = payload.sources()[name].replace("ALONE_S = 30.0", "ALONE_S = 86400.0")
assert "86400" in payload.sources()[name]
def listening(process, socket, *_):
    while not socket.exists(): time.sleep(0.01)
    print(socket, flush=True)
    time.sleep(600)
inject._listening = listening
a.open(found, method="borrow")
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_agent_whose_tokentrace_was_ended_before_it_came_to_it_leaves(
    program: Start, tmp_path: Path, number: signal.Signals
) -> None:
    running = program("waiting")
    with another(running, tmp_path, NOT_ARRIVED, stderr=subprocess.DEVNULL) as tokentrace:
        assert tokentrace.stdout is not None
        socket = Path(tokentrace.stdout.readline().strip())
        assert socket.exists()
        tokentrace.send_signal(number)
    deadline = time.monotonic() + 120
    while socket.exists() or socket.with_suffix(".permit").exists():
        assert time.monotonic() < deadline, "the agent has not left"
        time.sleep(0.02)
    through(running, 1)
    unharmed(running)


def test_a_target_that_dies_on_the_way_is_one_sentence(program: Start) -> None:
    for delay in (0.0, 0.05, 0.1, 0.2, 0.3):
        running = program("computing")
        found = running.found
        threading.Timer(delay, running.process.kill).start()
        try:
            with attach.open(found, method="borrow") as attached:
                running.process.wait(60)
            assert attached.close() == []
        except AttachError as error:
            assert str(running.pid) in str(error) and error.fix
        running.process.wait(60)


def test_an_agent_left_with_its_process_though_its_parent_has_not_taken_notice(program: Start) -> None:
    running = program("waiting")
    with attach.open(running.found, method="borrow") as attached:
        socket = Path(attached.inside[0].socket)
        running.process.kill()
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
        assert socket.exists()  # it had no time to remove it
        assert attached.close() == []


def test_a_stalled_process_is_left_alone_in_time(program: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    running = program("stalled")
    monkeypatch.setattr(inject, "RUN_S", 0.3)
    told = []
    for _ in range(4):
        try:
            attach.open(running.found, method="borrow").close()
        except AttachError as error:
            told.append(str(error))
            assert error.fix
        time.sleep(0.1)
    # The first one borrows the thread that reads; while that one waits for the lock there is none left to borrow.
    assert any("interpreter's lock" in one for one in told), told
    assert all("interpreter's lock" in one or "no thread" in one for one in told), told
    time.sleep(3.0)  # the strings that were left run now, and must not start anything
    said = running.end()
    assert said["modules"] == [] and said["threads"] == 0


def test_each_injection_is_noted_with_the_code_s_hash(program: Start, runtime: Path) -> None:
    running = program("waiting")
    through(running, 1)
    line = (runtime / "tokentrace" / private.AUDIT).read_text()
    assert re.fullmatch(
        rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ uid={os.geteuid()} user=\S+ pid={running.pid} title='live_program' "
        rf"how=borrow code=sha256:{payload.code_hash()}\n",
        line,
    )
    left = sorted(path.name for path in (runtime / "tokentrace").iterdir())
    assert left == [private.AUDIT]
    assert (runtime / "tokentrace").stat().st_mode & 0o777 == 0o700


def test_what_is_sent_asks_for_no_tokentrace() -> None:
    for name, text in payload.sources().items():
        assert name.split(".")[0] == payload.PACKAGE
        assert not re.search(r"^\s*(from|import) tokentrace\b", text, re.MULTILINE), name


@pytest.mark.skipif(not all(map(shutil.which, ("as", "ld", "objcopy"))), reason="no binutils here")
def test_the_machine_code_is_its_source(tmp_path: Path) -> None:
    made = tmp_path / "stub"
    for command in (
        ["as", "--64", "-o", f"{made}.o", str(STUB)],
        ["ld", "-Ttext=0", "-o", f"{made}.elf", f"{made}.o"],
        ["objcopy", "-O", "binary", "-j", ".text", f"{made}.elf", f"{made}.bin"],
    ):
        subprocess.run(command, check=True, capture_output=True)
    data = Path(f"{made}.bin").read_bytes()
    assert data[: len(CODE)] == CODE
    assert not any(data[len(CODE) : PAGE]), "the source has more code than the bytes"


def test_a_signal_that_comes_meanwhile_arrives(program: Start) -> None:
    running = program("sleeping")
    for _ in range(5):
        threading.Timer(random.uniform(0.05, 0.3), os.kill, (running.pid, signal.SIGCONT)).start()
        through(running, 1)
    # The one that ends it may come before, while or after its thread is borrowed: it always arrives.
    threading.Timer(random.uniform(0.05, 0.4), os.kill, (running.pid, signal.SIGTERM)).start()
    with contextlib.suppress(AttachError):
        attach.open(running.found, method="borrow").close()
    text, _ = running.process.communicate(timeout=200)
    assert json.loads(text.splitlines()[-1])["rounds"] > 0
    assert running.process.returncode == 0
