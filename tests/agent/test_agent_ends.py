"""What is left behind when either side dies, stands still, talks nonsense or forks."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from tokentrace.agent import stock
from tokentrace.agent.control import Server
from tokentrace.agent_client import AgentClient
from tokentrace.errors import EngineError, ProbeUnavailable

Host = Callable[..., "subprocess.Popen[str]"]


def until(true: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def state(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("state\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


CLIENT = """
import sys, time
from tokentrace.agent_client import AgentClient
client = AgentClient.connect(sys.argv[1])
client.begin_pass()
client.enable("work")
print("on", flush=True)
time.sleep(60)
"""


def test_kill_9_of_the_client_puts_everything_back_and_frees_it(host: Host, folder: Path) -> None:
    process = host()
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(folder / "agent.sock")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert client.stdout is not None and client.stdout.readline() == "on\n"
        assert state(process).split()[0] == "wrapped"
        client.send_signal(signal.SIGKILL)
        client.wait()
        assert until(lambda: state(process) == "plain 0 0")
    finally:
        client.kill()
        client.wait()
    with AgentClient.connect(folder / "agent.sock") as again:
        again.begin_pass()
        again.enable("work")
        assert until(lambda: len(again.records("work")) > 3)


def test_what_was_not_handed_over_is_freed_when_the_client_goes(server: Server) -> None:
    class Thing:
        """Something that a record keeps alive."""

    with AgentClient.connect(server.path) as client:
        client.begin_pass()
        recorder, thing = server.recorder, Thing()
        emit = recorder.emitter("x")
        seen = weakref.ref(thing)
        for n in range(3 * stock.PIECE + 1):  # no group is on, so nothing is pushed
            emit("y", n, n, 0, {"thing": thing})
        del thing
        assert len(recorder) == 3 * stock.PIECE + 1 and seen() is not None
    assert until(lambda: len(recorder) == 0)
    assert until(lambda: seen() is None)
    emit("y", 1, 1, 0, {})
    assert len(recorder) == len(server.recorder) == 0, "a call that ends after the client has gone writes nothing"


def test_a_client_that_stands_still_is_given_up(host: Host, folder: Path) -> None:
    process = host()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        silent.connect(str(folder / "agent.sock"))
        text = json.dumps({"id": 1, "cmd": "enable", "group": "work"}).encode()
        silent.sendall(struct.pack("!II", len(text), 0) + text)
        assert until(lambda: state(process).startswith("wrapped"))
        assert until(lambda: state(process) == "plain 0 0", 200.0)


def test_a_tokentrace_that_stood_still_is_told_that_the_server_runs_on(host: Host, folder: Path) -> None:
    process = host()
    code = CLIENT.replace("time.sleep(60)", "while not client.lost: time.sleep(0.01)\nprint(client.lost, flush=True)")
    client = subprocess.Popen(
        [sys.executable, "-c", code, str(folder / "agent.sock")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert client.stdout is not None and client.stdout.readline() == "on\n"
        client.send_signal(signal.SIGSTOP)
        assert until(lambda: state(process) == "plain 0 0", 200.0)  # the agent has given it up
        client.send_signal(signal.SIGCONT)
        told = client.stdout.readline()
        assert "let go" in told and "the server runs on" in told and "has ended" not in told
    finally:
        client.kill()
        client.wait()
    assert process.poll() is None


def test_garbage_from_a_client_ends_that_client_only(host: Host, folder: Path) -> None:
    process = host()
    for garbage in (b"\xff" * 64, struct.pack("!II", 9, 0) + b"not json!", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as bad:
            bad.settimeout(60)
            bad.connect(str(folder / "agent.sock"))
            bad.sendall(garbage)
            assert bad.recv(100) == b""
    with AgentClient.connect(folder / "agent.sock") as client:
        assert client.facts()["pid"] == process.pid


def test_kill_9_of_the_server_leaves_what_had_arrived(host: Host, folder: Path) -> None:
    process = host()
    with AgentClient.connect(folder / "agent.sock") as client:
        client.begin_pass()
        client.enable("work")
        assert until(lambda: len(client.records("work")) > 20)
        process.send_signal(signal.SIGKILL)
        process.wait()
        client.end_pass()
        assert len(client.records("work")) > 20
        assert "has ended" in client.lost and client.facts()["pid"] == process.pid
        with pytest.raises(ProbeUnavailable, match="has ended"):
            client.enable("http")
        client.disable("work")
        with pytest.raises(EngineError, match="has ended"):
            client.begin_pass()


def test_a_server_that_dies_while_it_is_asked_does_not_hang_the_client(host: Host, folder: Path) -> None:
    process = host()
    with AgentClient.connect(folder / "agent.sock") as client:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # until it stands still
        threading.Timer(0.3, process.send_signal, (signal.SIGKILL,)).start()
        with pytest.raises(ProbeUnavailable):
            client.enable("work")


def test_a_process_that_somebody_has_stopped_is_not_waited_for_and_goes_on_later(host: Host, folder: Path) -> None:
    process = host()
    with AgentClient.connect(folder / "agent.sock") as client:
        client.begin_pass()
        client.enable("work")
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # until it stands still
        with pytest.raises(ProbeUnavailable, match="is stopped") as refused:
            client.functions()
        assert f"kill -CONT {process.pid}" in refused.value.fix
        assert client.facts()["pid"] == process.pid and not client.lost
        process.send_signal(signal.SIGCONT)
        assert client.functions() == {}  # the answers that came too late are nobody's
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        client.disable("work")
        client.end_pass()
        assert "is stopped" in client.lost and "kill -CONT" in client.lost_fix
        process.send_signal(signal.SIGCONT)
    assert until(lambda: state(process) == "plain 0 0")


@pytest.mark.parametrize("template", [False, True])
def test_a_forked_child_has_plain_functions_and_an_agent_only_if_it_gets_a_socket_of_its_own(
    host: Host, folder: Path, template: bool
) -> None:
    process = host(folder / "a-{pid}.sock" if template else folder / "a.sock")
    path = folder / f"a-{process.pid}.sock" if template else folder / "a.sock"
    with AgentClient.connect(path) as client:
        client.begin_pass()
        client.enable("work")
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("fork\n")
        process.stdin.flush()
        word, pid, where, functions, own_thread = process.stdout.readline().split()
        assert (word, functions) == ("child", "plain")
        assert own_thread == "True", "the child's records would bear the parent's thread"
        if template:
            assert where == str(folder / f"a-{pid}.sock")
            with AgentClient.connect(where) as child:
                assert child.facts()["pid"] == int(pid)
        else:
            assert where == "none"
        before = len(client.records("work"))
        assert until(lambda: len(client.records("work")) > before + 5), "the parent's agent goes on"
        assert {r.process for r in client.records("work")} == {str(process.pid)}
