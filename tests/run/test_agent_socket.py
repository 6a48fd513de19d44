"""The agent's socket: private, one at a time, and everything is put back when the peer goes."""

from __future__ import annotations

import os
import stat
import sys
import time
import types
from pathlib import Path

import pytest

from tokentrace.agent import control, core, wire
from tokentrace.agent.wrap import MAX_ERRORS, Patches
from tokentrace.agent_client import AgentClient
from tokentrace.errors import ProbeUnavailable


class Thing:
    def double(self, n: int) -> int:
        return 2 * n


@pytest.fixture
def module() -> types.ModuleType:
    made = types.ModuleType("agent_test_module")
    made.Thing = Thing  # type: ignore[attr-defined]
    sys.modules[made.__name__] = made
    return made


class DoubleGroup:
    """A group that watches Thing.double."""

    def __init__(self) -> None:
        self.patches = Patches()

    def enable(self, emit: core.Emit, options: object) -> None:
        self.patches.around(
            "agent_test_module",
            "Thing",
            "double",
            lambda a, b, args, result: emit("double", a, b, 1, {"result": result}),
        )

    def disable(self) -> None:
        self.patches.restore()


def test_restores_the_identical_function(module: types.ModuleType) -> None:
    original = vars(Thing)["double"]
    patches = Patches()
    assert patches.around("agent_test_module", "Thing", "double", lambda *_: None)
    assert vars(Thing)["double"] is not original
    patches.restore()
    assert vars(Thing)["double"] is original


def test_a_failing_hook_never_reaches_the_host_and_stops(module: types.ModuleType) -> None:
    calls = []

    def broken(*_: object) -> None:
        calls.append(1)
        raise RuntimeError("hook")

    patches = Patches()
    patches.around("agent_test_module", "Thing", "double", broken)
    try:
        assert [Thing().double(n) for n in range(10)] == [2 * n for n in range(10)]
    finally:
        patches.restore()
    assert len(calls) == MAX_ERRORS == len(patches.errors)


def test_records_arrive_and_death_of_the_peer_restores(
    module: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(core.GROUPS, "double", "test_agent_socket:DoubleGroup")
    monkeypatch.setitem(sys.modules, "test_agent_socket", sys.modules[__name__])
    original = vars(Thing)["double"]
    path = tmp_path / "agent.sock"
    control.Control(str(path)).start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    client = AgentClient.connect(path)
    with pytest.raises(ProbeUnavailable, match="another tokentrace"):
        AgentClient.connect(path)
    with pytest.raises(ProbeUnavailable, match="no group"):
        client.enable("nothing")
    client.enable("double")
    client.begin_pass()
    Thing().double(4)
    client.end_pass()
    [raw] = client.records("double")
    assert raw.data == {"result": 8} and raw.process == str(os.getpid()) and raw.end_ns >= raw.start_ns
    client.close()
    deadline = time.monotonic() + 5
    while vars(Thing)["double"] is not original and time.monotonic() < deadline:
        time.sleep(0.01)
    assert vars(Thing)["double"] is original


def test_the_buffer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MAX_RECORDS", 3)
    recorder = core.Recorder()
    emit = recorder.emitter("g")
    for n in range(5):
        emit("x", n, n, 0, {})
    assert len(recorder.take()) == 3
    assert recorder.dropped == 2


def test_wire_refuses_what_is_no_frame() -> None:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(wire.Closed):
            wire.receive(ours)
