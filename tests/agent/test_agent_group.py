"""Several serving processes as one: switched on together, read together, each with what it alone can say."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tokentrace.agent import core
from tokentrace.agent.control import Server
from tokentrace.agent_client import AgentClient, AgentGroup
from tokentrace.attach.session import notes
from tokentrace.attach.watch import Watcher
from tokentrace.errors import EngineError, ProbeUnavailable

Host = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def two(host: Host, folder: Path) -> Iterator[tuple[AgentGroup, list[subprocess.Popen[str]]]]:
    paths = [folder / "a.sock", folder / "b.sock"]
    processes = [host(path) for path in paths]
    with AgentGroup.connect(paths) as group:
        yield group, processes


def until_each_has_sent(group: AgentGroup, *pids: int) -> None:
    """Until a record of each process has arrived."""
    deadline = time.monotonic() + 60
    while not set(map(str, pids)) <= {raw.process for raw in group.records("work")}:
        assert time.monotonic() < deadline, f"not every one of {pids} has sent a record"
        time.sleep(0.01)


def test_a_group_records_in_every_process_and_keeps_them_apart(two: tuple[AgentGroup, list[object]]) -> None:
    group, processes = two
    group.begin_pass()
    group.enable("work")
    until_each_has_sent(group, *(one.pid for one in processes))  # type: ignore[attr-defined]
    group.disable("work")
    group.end_pass()
    pids = {str(one.pid) for one in processes}  # type: ignore[attr-defined]
    raws = group.records("work")
    assert {raw.process for raw in raws} == pids
    assert [raw.end_ns for raw in raws] == sorted(raw.end_ns for raw in raws)
    assert {columns.process for columns in group.columns("work")} == pids
    assert set(map(str, group.facts()["pids"])) == pids and group.process in pids


def test_records_without_room_are_counted_while_the_pass_goes_on_and_by_request(server: Server) -> None:
    with AgentGroup.connect([server.path]) as group:
        group.begin_pass()
        emit = server.recorder.emitter("x")
        watcher = Watcher(group)

        def overflow(by: int) -> None:
            for n in range(core.LIMIT - len(server.recorder) + by):  # no group is on, so nothing is pushed
                emit("y", n, n, 0, {})

        watcher.look()
        before = time.time_ns()
        assert (group.dropped, watcher.dropped_since(before), notes(group, 0)) == (0, 0, [])
        overflow(5)
        watcher.look()
        assert (group.dropped, watcher.dropped_since(before)) == (5, 5)
        between = time.time_ns()
        overflow(7)
        group.facts()
        assert (watcher.dropped_since(before), watcher.dropped_since(between)) == (12, 7)
        assert "7 records found no room" in notes(group, 7)[0] and "12 records" in notes(group)[0]


def test_what_no_process_has_is_refused_with_the_advice(two: tuple[AgentGroup, list[object]]) -> None:
    group, _ = two
    with pytest.raises(ProbeUnavailable) as refused:
        group.enable("nothing of the kind")
    assert refused.value.fix
    group.disable("nothing of the kind")  # nothing was switched on; nothing happens


def test_a_process_that_joins_is_switched_on_like_the_others(host: Host, folder: Path) -> None:
    host(folder / "a.sock")
    late = host(folder / "b.sock")
    with AgentGroup.connect([folder / "a.sock"]) as group:
        group.begin_pass()
        group.enable("work")
        group.add(AgentClient.connect(folder / "b.sock"))
        until_each_has_sent(group, late.pid)
        group.disable("work")
        group.end_pass()
        assert str(late.pid) in {raw.process for raw in group.records("work")}
    with AgentClient.connect(folder / "b.sock") as again:
        assert again.facts()["on"] == []


def test_a_process_that_dies_leaves_what_it_had_sent(two: tuple[AgentGroup, list[subprocess.Popen[str]]]) -> None:
    group, processes = two
    group.begin_pass()
    group.enable("work")
    until_each_has_sent(group, *(one.pid for one in processes))
    processes[1].kill()
    processes[1].wait()
    deadline = time.monotonic() + 60
    while not group.lost and time.monotonic() < deadline:
        time.sleep(0.01)
    group.disable("work")
    group.end_pass()
    dead = str(processes[1].pid)
    assert dead in {raw.process for raw in group.records("work")}
    assert dead in group.lost and str(processes[0].pid) not in group.lost
    with pytest.raises(EngineError):
        group.begin_pass()


def test_a_group_of_none_is_refused_and_a_failed_connection_lets_go_of_the_others(host: Host, folder: Path) -> None:
    with pytest.raises(EngineError):
        AgentGroup([])
    host(folder / "a.sock")
    with pytest.raises(EngineError):
        AgentGroup.connect([folder / "a.sock", folder / "nobody.sock"], timeout_s=0.3)
    with AgentClient.connect(folder / "a.sock", timeout_s=60.0) as client:  # free again
        assert client.process != str(os.getpid())
