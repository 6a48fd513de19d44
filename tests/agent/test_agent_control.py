"""The control socket: who may connect, what arrives, and what is left behind when either side dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import agent_host
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrace.agent import control, core
from tokentrace.agent.control import Server
from tokentrace.agent.core import AgentError, register_group
from tokentrace.agent_client import AgentClient
from tokentrace.clock import ClockOffset
from tokentrace.errors import EngineError, ProbeUnavailable

Host = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    """An agent in this process, with the group "work"."""
    register_group("work", agent_host.WorkGroup)
    started = Server(str(folder / "agent.sock"))
    started.start()
    yield started
    with AgentClient.connect(started.path) as client:  # waits until the last one's things are put away
        client.begin_pass()
    core._factories.pop("work", None)


def until(true: Callable[[], bool], seconds: float = 5.0) -> bool:
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


def test_the_socket_is_private(server: Server) -> None:
    file = Path(server.path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_missing_folder_is_made_private(folder: Path) -> None:
    control._listen(str(folder / "sub" / "agent.sock")).close()
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
        control._listen(str(path))
    assert path.read_text() == "precious"
    path.unlink()
    living = control._listen(str(path))
    with pytest.raises(AgentError, match="another process listens"):
        control._listen(str(path))
    living.close()
    control._listen(str(path)).close()


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


def test_records_columns_and_facts_arrive(server: Server) -> None:
    with AgentClient.connect(server.path) as client:
        assert client.facts()["pid"] == os.getpid() and client.process == str(os.getpid())
        client.begin_pass()
        client.enable("work")
        before = time.time_ns()
        assert [agent_host.work(n) for n in range(3)] == [1, 2, 3]
        client.disable("work")
        agent_host.work(100)
        client.end_pass()
        records = client.records("work")
        assert [r.data for r in records] == [{"number": n, "result": n + 1} for n in range(3)]
        assert all(before <= r.start_ns < r.end_ns <= time.time_ns() for r in records)
        assert {r.thread for r in records} == {threading.get_native_id()}
        assert {r.process for r in records} == {str(os.getpid())}
        (columns,) = client.columns("work")
        assert columns.header == {"what": "numbers"}
        assert columns.arrays["start_ns"].tolist() == columns.arrays["small"].tolist() == [0, 1, 2]
        assert (columns.arrays["start_ns"].dtype, columns.arrays["small"].dtype) == ("int64", "int32")
        assert client.records("work") == records, "reading consumes nothing"


def test_a_pass_holds_its_own_records_only(server: Server) -> None:
    with AgentClient.connect(server.path) as client:
        client.enable("work")
        agent_host.work(1)
        client.begin_pass()
        agent_host.work(2)
        client.end_pass()
        assert [r.data["number"] for r in client.records("work")] == [2]
        assert client.columns("work")[0].arrays["small"].tolist() == [2]
        client.begin_pass()
        client.end_pass()
        assert list(client.records("work")) == [] and client.columns("work")[0].arrays["small"].tolist() == []


def test_a_group_stays_on_until_its_last_user_lets_go(server: Server) -> None:
    plain = agent_host.work
    with AgentClient.connect(server.path) as client:
        client.enable("work")
        client.enable("work")
        client.disable("work")
        assert agent_host.work is not plain
        client.disable("work")
        assert agent_host.work is plain
        client.disable("work")


def test_times_are_moved_to_our_clock(server: Server) -> None:
    with AgentClient.connect(server.path) as client:
        assert client.clock.offset_ns == 0 and client.clock.bound_ns > 0
        client.begin_pass()
        client.enable("work")
        agent_host.work(5)
        client.end_pass()
        client.clock = ClockOffset(10**15, 7)
        assert client.records("work")[0].start_ns > time.time_ns() + 10**14
        assert client.columns("work")[0].arrays["start_ns"].tolist() == [10**15 + 5]
        assert client.columns("work")[0].arrays["small"].tolist() == [5]


def test_an_unknown_group_and_one_for_another_process_are_refused_with_reasons(server: Server) -> None:
    with AgentClient.connect(server.path) as client:
        with pytest.raises(ProbeUnavailable, match="knows no group 'nonsense'") as unknown:
            client.enable("nonsense")
        assert "engine" in unknown.value.fix
        if "tokentrace.engines.local.api" not in sys.modules:
            with pytest.raises(ProbeUnavailable, match=r"has not loaded tokentrace\.engines\.local\.api"):
                client.enable("http")
        client.enable("work")


def test_a_group_that_fails_leaves_the_others_alone(server: Server) -> None:
    class Broken(agent_host.WorkGroup):
        def enable(self, recorder: Any, options: Any = None) -> None:
            raise KeyError("unforeseen")

    register_group("broken", Broken)
    try:
        with AgentClient.connect(server.path) as client:
            with pytest.raises(ProbeUnavailable, match="KeyError: 'unforeseen'"):
                client.enable("broken")
            client.begin_pass()
            client.enable("work")
            agent_host.work(1)
            client.end_pass()
            assert len(client.records("work")) == 1
    finally:
        core._factories.pop("broken")


def test_what_a_hook_did_wrong_is_told(server: Server) -> None:
    class Faulty(agent_host.WorkGroup):
        def _worked(self, *args: Any) -> None:
            raise RuntimeError("ours")

    register_group("work", Faulty)
    plain = agent_host.work
    with AgentClient.connect(server.path) as client:
        client.begin_pass()
        client.enable("work")
        for n in range(4):
            assert agent_host.work(n) == n + 1
        client.end_pass()
        assert agent_host.work is plain
        assert [fault["off"] for fault in client.faults] == [False, False, True]


def test_values_that_json_does_not_know_arrive_as_text_or_numbers(server: Server) -> None:
    class Index:
        def __index__(self) -> int:
            return 41

    with AgentClient.connect(server.path) as client:
        client.begin_pass()
        server.recorder.rec(
            "x", "y", 1, 2, 3, {"set": {2, 1}, "path": Path("/a"), "n": Index(), "b": b"\xff", "u": "\ud800"}
        )
        client.end_pass()
        assert client.records("x")[0].data == {"set": [1, 2], "path": "/a", "n": 41, "b": "\ufffd", "u": "\ud800"}


def test_what_did_not_fit_is_counted(server: Server) -> None:
    server.recorder.limit = 50
    with AgentClient.connect(server.path) as client:
        client.begin_pass()
        emit = server.recorder.emitter("x")
        for n in range(80):  # quicker than the agent's pushes, which have not begun: no group is on
            emit("y", n, n, 0, {})
        client.end_pass()
        assert len(client.records("x")) == 50 and client.dropped == 30
        client.begin_pass()
        client.end_pass()
        assert client.dropped == 0
    server.recorder.limit = core.LIMIT


def test_the_end_of_a_pass_waits_for_what_is_under_way_but_not_for_ever(server: Server) -> None:
    with AgentClient.connect(server.path) as client:
        client.begin_pass()
        client.enable("work")
        group = server.groups["work"]
        assert isinstance(group, agent_host.WorkGroup)
        group.under_way.append("a call")

        def finish() -> None:
            time.sleep(0.1)
            server.recorder.rec("work", "late", 1, 2, 3, {})
            group.under_way.clear()

        thread = threading.Thread(target=finish)
        thread.start()
        client.end_pass(settle_s=5.0)
        thread.join()
        assert [r.name for r in client.records("work")] == ["late"]
        group.under_way.append("endless")
        begun = time.monotonic()
        client.end_pass(settle_s=0.2)
        assert 0.15 < time.monotonic() - begun < 3


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
    assert time.monotonic() - begun < 3


def test_the_client_waits_for_a_socket_that_is_still_to_come(folder: Path) -> None:
    path = folder / "late.sock"
    threading.Timer(0.2, lambda: Server(str(path)).start()).start()
    AgentClient.connect(path, timeout_s=5.0).close()


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
        killed = time.monotonic()
        assert until(lambda: state(process) == "plain 0 0", 3.0)
        assert time.monotonic() - killed < 2.0
    finally:
        client.kill()
        client.wait()
    with AgentClient.connect(folder / "agent.sock") as again:
        again.begin_pass()
        again.enable("work")
        assert until(lambda: len(again.records("work")) > 3)


def test_a_client_that_stands_still_is_given_up(host: Host, folder: Path) -> None:
    process = host()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        silent.connect(str(folder / "agent.sock"))
        text = json.dumps({"id": 1, "cmd": "enable", "group": "work"}).encode()
        silent.sendall(struct.pack("!II", len(text), 0) + text)
        assert until(lambda: state(process).startswith("wrapped"))
        assert until(lambda: state(process) == "plain 0 0", 20.0)


def test_garbage_from_a_client_ends_that_client_only(host: Host, folder: Path) -> None:
    process = host()
    for garbage in (b"\xff" * 64, struct.pack("!II", 9, 0) + b"not json!", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as bad:
            bad.settimeout(5)
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
        threading.Timer(0.3, process.send_signal, (signal.SIGKILL,)).start()
        begun = time.monotonic()
        with pytest.raises(ProbeUnavailable):
            client.enable("work")
        assert time.monotonic() - begun < 10


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
        word, pid, where, functions = process.stdout.readline().split()
        assert (word, functions) == ("child", "plain")
        if template:
            assert where == str(folder / f"a-{pid}.sock")
            with AgentClient.connect(where) as child:
                assert child.facts()["pid"] == int(pid)
        else:
            assert where == "none"
        before = len(client.records("work"))
        assert until(lambda: len(client.records("work")) > before + 5), "the parent's agent goes on"
        assert {r.process for r in client.records("work")} == {str(process.pid)}


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


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(1, 40), max_size=12))
def test_requests_may_arrive_in_any_pieces(cuts: list[int]) -> None:
    asked = [{"id": n, "cmd": cmd} for n, cmd in enumerate(("clock", "hello", "nonsense", "mark"))]
    frames = b"".join(
        struct.pack("!II", len(text), 0) + text for text in (json.dumps(request).encode() for request in asked)
    )
    answers = []
    with socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(5)
        ours.connect(_shared().path)
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


_made: list[Server] = []


def _shared() -> Server:
    if not _made:
        import tempfile

        _made.append(Server(f"{tempfile.mkdtemp(prefix='tt-')}/agent.sock"))
        _made[0].start()
    return _made[0]
