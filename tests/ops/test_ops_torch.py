"""The group "ops" with the real torch.profiler: what another thread computes is recorded, quickly and completely."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from support.answering import Answering, context

from tokentrace.agent.core import GroupUnavailable
from tokentrace.agent.profile import OpsGroup
from tokentrace.probe import Columns
from tokentrace.probes.kernel import EAGER, KernelProbe
from tokentrace.probes.operator_profiler import OperatorProfilerProbe

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")


class Engine:
    """A thread that multiplies, as an engine's does. `step` is what the group is told about."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.SiLU(), torch.nn.Linear(128, 64))
        self.wanted = threading.Semaphore(0)
        self.steps: list[tuple[int, int]] = []
        self.stop = False
        self.thread = threading.Thread(target=self._run)
        self.native_id = 0

    def step(self) -> None:
        start = time.time_ns()
        with torch.inference_mode():
            self.model(torch.ones(3, 64))
        self.steps.append((start, time.time_ns()))

    def _run(self) -> None:
        self.native_id = threading.get_native_id()
        while True:
            self.wanted.acquire()
            if self.stop:
                return
            self.step()

    def run(self, steps: int) -> None:
        goal = len(self.steps) + steps
        for _ in range(steps):
            self.wanted.release()
        deadline = time.monotonic() + 60
        while len(self.steps) < goal and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(self.steps) == goal


@pytest.fixture
def engine() -> Any:
    engine = Engine()
    engine.thread.start()
    engine.run(2)
    yield engine
    engine.stop = True
    engine.wanted.release()
    engine.thread.join()


STEP = {"step_functions": [f"{__name__}:Engine.step"]}


def emit(*record: Any) -> None:
    raise AssertionError(f"the group writes columns, not records: {record}")


def as_columns(header: dict[str, Any], blobs: dict[str, tuple[str, bytes]]) -> Columns:
    return Columns(
        "ops", "7", header, {name: np.frombuffer(data, np.dtype(code)) for name, (code, data) in blobs.items()}
    )


def test_the_operators_of_the_engines_thread_are_recorded_with_shapes_and_times(
    engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    original = Engine.__dict__["step"]
    group = OpsGroup()
    group.enable(emit, STEP)
    del engine.steps[:]
    engine.run(5)
    group.disable()
    engine.run(1)
    assert Engine.__dict__["step"] is original
    ((header, blobs),) = group.bulk()
    assert group.bulk() == []
    recorded = as_columns(header, blobs)
    assert len({len(a) for a in recorded.arrays.values()}) == 1 and header["events"] == len(recorded.arrays["name"])
    linear = np.flatnonzero(recorded.arrays["name"] == header["names"].index("aten::linear"))
    assert len(linear) == 10  # two a step, none before or after
    assert {header["shapes"][s] for s in recorded.arrays["shape"][linear]} == {
        "[[3, 64], [128, 64], [128]]", "[[3, 128], [64, 128], [64]]"}  # fmt: skip
    assert set(recorded.arrays["thread"][linear].tolist()) == {engine.native_id}
    assert header["steps"] == 5 and header["started_between_steps"] and header["stopped_between_steps"]
    assert header["stop_cost_ns"] > 0 and header["read_cost_ns"] > 0 and header["problem"] == ""
    # Times are unix time: each product lies inside the step as the engine's own clock has it. The profiler's clock is
    # set against that one when it starts, and less well on a busy machine.
    for row in linear.tolist():
        start, end = int(recorded.arrays["start_ns"][row]), int(recorded.arrays["end_ns"][row])
        assert any(begin - 1_000_000 <= start <= end <= finish + 1_000_000 for begin, finish in engine.steps[:5])
    assert "USDT" not in "".join(capfd.readouterr()), "kineto talks on the engine's output"


def test_what_the_probes_show_of_it(engine: Engine) -> None:
    group = OpsGroup()
    group.enable(emit, STEP)
    engine.run(2)
    group.disable()
    agent = Answering([as_columns(*found) for found in group.bulk()])
    operators = list(OperatorProfilerProbe().collect(context(agent)))
    probe = KernelProbe()
    leaves = list(probe.collect(context(agent)))
    assert [r.name for r in operators].count("aten::linear") == 4
    assert [r.name for r in leaves].count("leaf aten::addmm") == 4
    assert [r.name for r in leaves].count("leaf aten::silu") == 2
    assert probe.state.reason == EAGER
    linear = next(r for r in operators if r.name == "aten::linear")
    addmm = next(r for r in leaves if r.name == "leaf aten::addmm")
    assert linear.start_ns <= addmm.start_ns <= addmm.end_ns <= linear.end_ns
    assert addmm.attributes["tokentrace.op.flops"] == 2 * 3 * 64 * 128


def test_recording_ends_after_the_steps_asked_for(engine: Engine) -> None:
    group = OpsGroup()
    group.enable(emit, {**STEP, "steps": 2})
    engine.run(6)
    group.disable()
    ((header, blobs),) = group.bulk()
    names = as_columns(header, blobs).arrays["name"]
    assert (header["steps"], header["recorded_steps"]) == (6, 2)
    assert header["limited"] == "the profiler recorded the first 2 steps only"
    assert int((names == header["names"].index("aten::linear")).sum()) == 4


def test_recording_ends_after_the_time_asked_for(engine: Engine) -> None:
    group = OpsGroup()
    group.enable(emit, {**STEP, "max_seconds": 2.0})
    engine.run(1)
    time.sleep(2.5)
    engine.run(3)
    group.disable()
    ((header, blobs),) = group.bulk()
    names = as_columns(header, blobs).arrays["name"]
    assert "2 s only" in header["limited"] and header["steps"] == 4
    assert int((names == header["names"].index("aten::linear")).sum()) == 2


def test_it_can_be_switched_on_again(engine: Engine) -> None:
    group = OpsGroup()
    for _ in range(3):
        group.enable(emit, STEP)
        engine.run(1)
        group.disable()
    assert [header["steps"] for header, _ in group.bulk()] == [1, 1, 1]


def test_another_profiler_in_the_process_is_respected(engine: Engine) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as theirs:
        group = OpsGroup()
        with pytest.raises(GroupUnavailable, match="another torch profiler") as caught:
            group.enable(emit, STEP)
        assert caught.value.fix
        torch.ones(3).add(1)
    assert any(e.name() == "aten::add" for e in theirs.profiler.kineto_results.events())
    group.enable(emit, STEP)  # and once it is gone ours runs
    group.disable()


def test_a_torch_with_another_interface_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["torch.autograd.profiler"].profile, "_start_trace")
    with pytest.raises(GroupUnavailable, match=r"torch 2\..*another profiler interface"):
        OpsGroup().enable(emit, STEP)


def test_a_process_without_torch_has_no_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(GroupUnavailable, match="not loaded"):
        OpsGroup().enable(emit, STEP)
