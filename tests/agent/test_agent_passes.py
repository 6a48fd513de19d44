"""What the client gets of a pass: records, columns, facts, refusals and what went wrong."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import agent_host
import pytest

from tokentrace.agent import core
from tokentrace.agent.control import Server
from tokentrace.agent.core import Recorder, register_group
from tokentrace.agent_client import AgentClient
from tokentrace.clock import ClockOffset
from tokentrace.errors import ProbeUnavailable


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


def test_an_unknown_group_and_one_for_another_process_are_refused_with_reasons(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AgentClient.connect(server.path) as client:
        with pytest.raises(ProbeUnavailable, match="knows no group 'nonsense'") as unknown:
            client.enable("nonsense")
        assert "engine" in unknown.value.fix
        monkeypatch.delitem(sys.modules, "tokentrace.engines.local.api", raising=False)  # what other tests loaded
        with pytest.raises(ProbeUnavailable, match=r"has not loaded .*tokentrace\.engines\.local\.api"):
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
        server.recorder.emitter("x")(
            "y", 1, 2, 3, {"set": {2, 1}, "path": Path("/a"), "n": Index(), "b": b"\xff", "u": "\ud800"}
        )
        client.end_pass()
        assert client.records("x")[0].data == {"set": [1, 2], "path": "/a", "n": 41, "b": "\ufffd", "u": "\ud800"}


def test_what_did_not_fit_is_counted(server: Server) -> None:
    with AgentClient.connect(server.path) as client:
        server.recorder = Recorder(50)
        client.begin_pass()
        emit = server.recorder.emitter("x")
        for n in range(80):  # quicker than the agent's pushes, which have not begun: no group is on
            emit("y", n, n, 0, {})
        client.end_pass()
        assert len(client.records("x")) == 50 and client.dropped == 30
        client.begin_pass()
        client.end_pass()
        assert client.dropped == 0


def test_the_end_of_a_pass_waits_for_what_is_under_way_but_not_for_ever(server: Server) -> None:
    with AgentClient.connect(server.path) as client:
        client.begin_pass()
        client.enable("work")
        group = server.groups["work"]
        assert isinstance(group, agent_host.WorkGroup)
        group.under_way.append("a call")

        def finish() -> None:
            time.sleep(0.1)
            server.recorder.emitter("work")("late", 1, 2, 3, {})
            group.under_way.clear()

        thread = threading.Thread(target=finish)
        thread.start()
        client.end_pass(settle_s=60.0)
        thread.join()
        assert [r.name for r in client.records("work")] == ["late"]
        group.under_way.append("endless")
        begun = time.monotonic()
        client.end_pass(settle_s=0.2)
        assert 0.15 < time.monotonic() - begun < 60
