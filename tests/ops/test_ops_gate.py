"""The profiler is started and stopped between two steps, or after a while regardless."""

from __future__ import annotations

import threading
import time

from tokentrace.agent.profile import Gate, OpsGroup


class Engine:
    """Steps in a thread, as an engine does: `inside` is true while a step runs."""

    def __init__(self, gate: Gate, pause_s: float = 0.0) -> None:
        self.inside = 0
        self.stop = False
        self.step = gate.wrap(self._step)
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run)

    def _step(self) -> None:
        with self._lock:
            self.inside += 1
        time.sleep(0.002)
        with self._lock:
            self.inside -= 1

    def _run(self) -> None:
        while not self.stop:
            self.step()
            time.sleep(self._pause_s)


def test_nothing_is_done_while_a_step_runs() -> None:
    gate = Gate()
    engine = Engine(gate)
    engine.thread.start()
    seen = []
    try:
        for _ in range(30):
            assert gate.run_between_steps(lambda: seen.append(engine.inside), 60.0)
    finally:
        engine.stop = True
        engine.thread.join()
    assert seen == [0] * 30
    assert gate.steps > 0


def test_an_idle_engine_does_not_have_to_come_by() -> None:
    gate = Gate()
    done: list[int] = []
    assert gate.run_between_steps(lambda: done.append(1), 0.01)
    assert done == [1]


def test_a_step_that_hangs_does_not_keep_it_waiting_for_ever() -> None:
    gate = Gate()
    release, entered = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        release.wait(100)

    thread = threading.Thread(target=gate.wrap(hang))
    thread.start()
    assert entered.wait(60)
    done: list[int] = []
    assert gate.run_between_steps(lambda: done.append(1), 0.05) is False
    assert done == [1]
    release.set()
    thread.join()


def test_steps_of_two_engines_overlap_and_still_leave_a_moment() -> None:
    gate = Gate()
    engines = [Engine(gate, 0.003), Engine(gate, 0.004)]
    for engine in engines:
        engine.thread.start()
    try:
        assert gate.run_between_steps(lambda: None, 60.0)
    finally:
        for engine in engines:
            engine.stop = True
            engine.thread.join()


def test_a_step_inside_a_step_is_one_step_and_errors_pass_through() -> None:
    gate = Gate()

    def fail() -> None:
        raise RuntimeError("out of memory")

    inner = gate.wrap(lambda: 7)
    assert gate.wrap(lambda: inner())() == 7
    assert gate.steps == 1
    try:
        gate.wrap(fail)()
    except RuntimeError as error:
        assert str(error) == "out of memory"
    else:
        raise AssertionError("the engine's own error was swallowed")
    assert gate.run_between_steps(lambda: None, 0.05), "the failed step still counts as running"


class Stepper:
    def step(self) -> str:
        return "stepped"


def test_a_wrapped_function_is_put_back() -> None:
    original = Stepper.__dict__["step"]
    group = OpsGroup()
    group._install([f"{__name__}:Stepper.step", f"{__name__}:Stepper.absent", "no.such.module:X.y"])
    assert Stepper.__dict__["step"] is not original
    assert Stepper().step() == "stepped"
    group._uninstall()
    assert Stepper.__dict__["step"] is original


def test_somebody_elses_wrapper_around_ours_is_left_alone() -> None:
    original = Stepper.__dict__["step"]
    group = OpsGroup()
    path = f"{__name__}:Stepper.step"
    group._install([path])
    ours = Stepper.__dict__["step"]

    def theirs(self: Stepper) -> str:
        return ours(self) + "!"

    Stepper.step = theirs  # type: ignore[method-assign]
    try:
        group._uninstall()
        assert Stepper().step() == "stepped!"
        group._install([path])  # not wrapped twice
        assert Stepper.__dict__["step"] is theirs
    finally:
        Stepper.step = original  # type: ignore[method-assign]
