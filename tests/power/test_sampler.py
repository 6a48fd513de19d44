"""The sampling thread: it sees the request's end, leaves broken sensors alone, drops zeros and ends by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tokentrace.energy.device import Condition, Reading, SensorInfo
from tokentrace.probes._sensors import MAX_FAILURES, Sampler, SensorError


class Counter:
    """A counter of 100 W that moves every `update_ms`."""

    def __init__(self, update_ms: int = 20, watts: float | None = None) -> None:
        self.info = SensorInfo(id="c", type="gpu", name="c", vendor="", interface="", poll_ns=5_000_000)
        self._update_ns, self._watts = update_ms * 1_000_000, watts

    def read(self) -> Reading:
        now = time.time_ns()
        return Reading(now, now // self._update_ns * self._update_ns / 1e7, self._watts)

    def condition(self) -> Condition:
        return Condition(time.time_ns())

    def history(self) -> list[tuple[int, float]]:
        return [(1, 2.0)]


class Broken(Counter):
    def read(self) -> Reading:
        raise SensorError("GPU is lost")


def run(sampler: Sampler, seconds: float) -> int:
    sampler.start()
    time.sleep(seconds)
    end = time.time_ns()
    sampler.stop()
    return end


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def ended(name: str = "tokentrace-power") -> bool:
    return not [t for t in threading.enumerate() if t.name == name]


def test_the_counter_is_seen_moving_past_the_end() -> None:
    sampler = Sampler([Counter()])
    end = run(sampler, 0.3)
    (log,) = sampler.finish()
    after = [r for r in log.readings if r.time_ns >= end]
    assert len(after) >= 2 and after[-1].joules != after[-2].joules
    assert log.conditions[0].time_ns < end < log.conditions[-1].time_ns and log.history == [(1, 2.0)]
    assert ended()


def test_a_counter_that_stopped_moving_is_not_waited_for_long() -> None:
    sampler = Sampler([Counter(update_ms=60_000)])
    run(sampler, 0.02)
    sampler.finish()
    assert ended()  # by itself: the bound is half a second, and finish waits for no more than 2 s


def test_a_broken_sensor_does_not_stop_the_others() -> None:
    calls: list[int] = []
    sampler = Sampler([Broken(), Counter()], beside=lambda: calls.append(1), at_end=lambda: calls.append(2))
    sampler.start()
    until(lambda: sampler.logs[0].dead and len(sampler.logs[1].readings) > 5 and calls.count(1) >= 2)
    broken, good = sampler.finish()
    assert broken.dead and broken.failures == MAX_FAILURES and broken.error == "GPU is lost" and not broken.readings
    assert len(good.readings) > 5 and not good.dead
    assert calls[-1] == 2 and calls.count(2) == 1 and calls.count(1) >= 2


def test_exact_zeros_are_dropped_and_counted() -> None:
    sampler = Sampler([Counter(watts=0.0)])
    run(sampler, 0.05)
    (log,) = sampler.finish()
    assert log.zeros == len(log.readings) and all(r.watts is None for r in log.readings)


def test_without_sensors_the_thread_still_ends() -> None:
    beside: list[int] = []
    tick: Callable[[], object] = lambda: beside.append(1)  # noqa: E731
    sampler = Sampler([], beside=tick)
    sampler.start()
    until(lambda: len(beside) >= 2)
    assert sampler.finish() == [] and ended() and len(beside) >= 2
