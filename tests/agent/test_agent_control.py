"""The control socket: who may connect, and in what pieces requests may arrive."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrace.agent.control import Server
from tokentrace.agent.core import AgentError
from tokentrace.agent.listening import listen
from tokentrace.agent_client import AgentClient
from tokentrace.errors import EngineError


def test_the_socket_is_private(server: Server) -> None:
    file = Path(server.path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_missing_folder_is_made_private(folder: Path) -> None:
    listen(str(folder / "sub" / "agent.sock")).close()
    assert stat.S_IMODE((folder / "sub").stat().st_mode) == 0o700


def test_a_folder_open_to_others_is_refused(folder: Path) -> None:
    folder.chmod(0o755)
    with pytest.raises(AgentError, match="open to other users") as refused:
        Server(str(folder / "agent.sock"))
    assert "chmod 700" in refused.value.fix


def test_a_file_or_a_living_agent_in_the_way_is_refused_and_a_dead_ones_socket_replaced(folder: Path) -> None:
    path = folder / "agent.sock"
    path.write_text("precious")
    with pytest.raises(AgentError, match="is no socket"):
        listen(str(path))
    assert path.read_text() == "precious"
    path.unlink()
    living = listen(str(path))
    with pytest.raises(AgentError, match="another process listens"):
        listen(str(path))
    living.close()
    listen(str(path)).close()


def test_a_path_too_long_is_refused_with_a_reason(folder: Path) -> None:
    with pytest.raises(AgentError, match="cannot be made") as refused:
        Server(str(folder / ("x" * 120)))
    assert "shorter path" in refused.value.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_user_is_refused_even_when_the_modes_let_him_in(server: Server) -> None:
    Path(server.path).parent.chmod(0o711)
    Path(server.path).chmod(0o666)
    code = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "print(s.recv(4096)[8:].decode())"
    )
    done = subprocess.run([sys.executable, "-c", code, server.path], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["refused"] == "this agent belongs to user 0, you are 65534" and "that user" in told["fix"]


def test_a_second_client_is_told_who_is_there_and_comes_in_afterwards(server: Server) -> None:
    with AgentClient.connect(server.path) as first:
        with pytest.raises(EngineError, match=rf"another tokentrace \(process {os.getpid()}\) is connected") as refused:
            AgentClient.connect(server.path)
        assert refused.value.fix
        first.begin_pass()
    AgentClient.connect(server.path).close()


def test_nobody_there_is_said_within_the_time_given(folder: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(EngineError, match="no agent listens"):
        AgentClient.connect(folder / "none.sock", timeout_s=0.2)
    assert time.monotonic() - begun < 60


def test_the_client_waits_for_a_socket_that_is_still_to_come(folder: Path) -> None:
    path = folder / "late.sock"
    threading.Timer(0.2, lambda: Server(str(path)).start()).start()
    AgentClient.connect(path, timeout_s=60.0).close()


def test_starting_twice_is_harmless_and_on_another_path_refused(folder: Path) -> None:
    code = (
        "import sys, threading; from tokentrace import agent; agent.start(sys.argv[1]); agent.start(sys.argv[1]);"
        "print(sum(t.name == 'tokentrace-agent' for t in threading.enumerate()));"
        "\ntry: agent.start(sys.argv[1] + 'x')\nexcept agent.AgentError as error: print(error)"
    )
    path = folder / "agent.sock"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1", f"the agent listens on {path} already"]
    assert not path.exists(), "a clean exit takes the socket away"


def test_the_agent_imports_the_standard_library_only(folder: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); from tokentrace import agent; agent.start(sys.argv[1]);"
        "from tokentrace.agent import local_hooks, batching_hooks, model_hooks, module_hooks;"
        "names = {n.partition('.')[0] for n in sys.modules};"
        "print(sorted(n for n in names if n not in sys.stdlib_module_names and not n.startswith('_')))"
    )
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-S", "-c", code, str(folder / "a.sock"), root]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['tokentrace']"


@pytest.fixture(scope="module")
def lasting() -> Iterator[Server]:
    """One agent for many examples."""
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        started = Server(f"{folder}/agent.sock")
        started.start()
        yield started


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(1, 40), max_size=12))
def test_requests_may_arrive_in_any_pieces(lasting: Server, cuts: list[int]) -> None:
    asked = [{"id": n, "cmd": cmd} for n, cmd in enumerate(("clock", "hello", "nonsense", "mark"))]
    frames = b"".join(
        struct.pack("!II", len(text), 0) + text for text in (json.dumps(request).encode() for request in asked)
    )
    answers = []
    with socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(60)
        ours.connect(lasting.path)
        at = 0
        for size in [*cuts, len(frames)]:
            ours.sendall(frames[at : at + size])
            at += size
        file = ours.makefile("rb")
        for _ in asked:
            size, blob = struct.unpack("!II", file.read(8))
            answers.append(json.loads(file.read(size)))
            assert blob == 0
    assert [(a["id"], a["ok"]) for a in answers] == [(0, True), (1, True), (2, False), (3, True)]
    assert "knows no command" in answers[2]["reason"]
