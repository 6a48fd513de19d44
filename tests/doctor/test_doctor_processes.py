"""From a pid to the server that is meant, and the one sentence for a process that does not run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor_support import ids, look

from tokentrace.doctor import processes
from tokentrace.errors import UsageError
from tokentrace.host import proc

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

#: Listens and prints its port.
SERVER = """
import socket, sys, time
with socket.create_server(("127.0.0.1", 0)) as server:
    sys.stdout.write(f"{server.getsockname()[1]}\\n")  # in one piece: another one may write there too
    sys.stdout.flush()
    time.sleep(600)
"""
SIX = frozenset((6,))

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs in sessions of their own, which end with the test, children included."""
    with contextlib.ExitStack() as stack:

        def run(*command: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
            stack.callback(process.stdout.close)  # type: ignore[union-attr]
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
            return process

        yield run


def line(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while proc.status(pid).state != "T":
        time.sleep(0.01)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return path


def test_a_server_is_itself(start: Start, script: Path) -> None:
    server = start(sys.executable, str(script))
    port = line(server)
    assert processes.server_of(server.pid) == processes.Server(server.pid, f"http://127.0.0.1:{port}/v1")
    assert processes.listening("127.0.0.1", port) == processes.listening("localhost", port) == server.pid


def test_a_shell_leads_to_the_server_below_it_and_it_is_said(start: Start, script: Path) -> None:
    shell = start("sh", "-c", f"'{sys.executable}' '{script}'; true")
    port = line(shell)
    found = processes.server_of(shell.pid)
    assert found.pid != shell.pid and proc.status(found.pid).parent == shell.pid
    assert found.url == f"http://127.0.0.1:{port}/v1"
    assert found.why.startswith(f"process {shell.pid} (") and f"process {found.pid} (" in found.why
    told = look(None, pid=shell.pid, offline=True, layers=SIX)
    assert [r.detail for r in told.examination.results if r.id == "TT620"] == [found.why]


def test_several_servers_below_are_not_chosen_from(start: Start, script: Path) -> None:
    shell = start("sh", "-c", f"'{sys.executable}' '{script}' & '{sys.executable}' '{script}' & wait")
    ports = {line(shell), line(shell)}
    with pytest.raises(UsageError, match=f"process {shell.pid} .*below it there are 2 servers") as caught:
        processes.server_of(shell.pid)
    assert all(f"on port {port}" in str(caught.value) for port in ports)
    assert "tokentrace doctor --pid" in caught.value.fix


def test_of_several_the_only_engine_is_taken(start: Start, script: Path, tmp_path: Path) -> None:
    """Told by its command line, as every part of this program tells a server."""
    (tmp_path / "tokentrace").write_text(SERVER)
    engine = f"'{sys.executable}' '{tmp_path}/tokentrace' serve --api-key canary-key-1"
    shell = start("sh", "-c", f"'{sys.executable}' '{script}' & {engine} & wait")
    ports = {line(shell), line(shell)}
    found = processes.server_of(shell.pid)
    assert "the only engine among 2 servers below it" in found.why and "canary" not in found.why
    assert found.url in {f"http://127.0.0.1:{port}/v1" for port in ports}
    assert "serve" in proc.command_line(found.pid)


def test_a_child_leads_to_the_server_above_it(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "parent.py"
    path.write_text("import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
                    + SERVER)  # fmt: skip
    parent = start(sys.executable, str(path))
    line(parent)
    child = next(p for p in proc.all_pids() if _parent(p) == parent.pid)
    found = processes.server_of(child)
    assert found.pid == parent.pid and f"the one above it, {parent.pid}" in found.why


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return proc.status(pid).parent
    return -1


def test_a_process_that_serves_nothing_is_refused(start: Start) -> None:
    ended = subprocess.Popen(["true"])
    while proc.status(ended.pid).state != "Z":
        time.sleep(0.01)
    with pytest.raises(UsageError, match="zombie"):
        processes.server_of(ended.pid)
    ended.wait()
    with pytest.raises(UsageError, match=f"no process {ended.pid}"):
        processes.server_of(ended.pid)


def test_the_machines_first_process_is_named_or_refused() -> None:
    """It is everybody's parent: what is taken for it must be said."""
    try:
        found = processes.server_of(1)
    except UsageError as error:
        assert "process 1 (" in str(error) and error.fix
    else:
        assert found.pid == 1 or found.why.startswith("process 1 (")


@pytest.mark.parametrize("named", ["url", "pid"])
def test_a_stopped_server_is_told_without_asking_it(start: Start, script: Path, named: str) -> None:
    server = start(sys.executable, str(script))
    url = f"http://127.0.0.1:{line(server)}/v1"
    wishes: dict[str, Any] = {"pid": server.pid} if named == "pid" else {}
    before = look(url if named == "url" else None, offline=True, layers=SIX, **wishes)
    assert "TT620" in ids(before, "ok")
    stop(server.pid)
    found = look(url if named == "url" else None, offline=True, layers=SIX, **wishes)
    assert (found.verdict.check, found.verdict.layer, found.verdict.exit_code) == ("TT620", 6, 1)
    assert f"process {server.pid} (" in found.verdict.cause and "is stopped" in found.verdict.cause
    assert found.verdict.fix == f"kill -CONT {server.pid}"
    assert "" not in next(r for r in found.examination.results if r.id == "TT620").evidence


def test_a_stopped_child_stops_the_server_too(start: Start, script: Path) -> None:
    shell = start("sh", "-c", f"'{sys.executable}' '{script}'; true")
    line(shell)
    child = processes.server_of(shell.pid).pid
    stop(child)
    halted = processes.halted(shell.pid)
    assert halted is not None and halted.pid == child and halted.how == "stopped"


def test_servers_that_run_here_are_told_where_none_was_named(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokentrace").write_text(SERVER)
    server = start(sys.executable, f"{tmp_path}/tokentrace", "serve")
    port = line(server)
    monkeypatch.setattr(proc, "all_pids", lambda: [server.pid])  # others' servers may run on this machine
    found = look(None, offline=True, layers=SIX)
    told = next(r for r in found.examination.results if r.id == "TT620")
    assert told.status == "ok" and f"process {server.pid} (" in told.detail and f"port {port}" in told.detail
    stop(server.pid)
    found = look(None, offline=True, layers=SIX)
    told = next(r for r in found.examination.results if r.id == "TT620")
    assert (told.status, told.fix) == ("warn", f"kill -CONT {server.pid}") and found.verdict.exit_code == 0


def test_nothing_wrong_offline_says_what_was_not_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(proc, "all_pids", list)
    found = look(None, offline=True, layers=frozenset((8, 6)), environ={"TOKENTRACE_CACHE_DIR": str(tmp_path)})
    assert found.verdict.exit_code == 0 and found.verdict.status == "ok"
    assert "was not checked (--offline)" in found.verdict.cause
    assert found.verdict.fix == 'tokentrace run "Hi"' and "no model is here yet" in " ".join(found.verdict.also)
    named = look("http://127.0.0.1:9/v1", offline=True, layers=frozenset((8,)))
    assert named.verdict.exit_code == 0 and "--offline" in named.verdict.fix
