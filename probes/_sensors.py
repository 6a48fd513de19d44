"""What a power sensor is to this tool, and the thread that reads several of them while a request runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tokentrace.energy.device import Condition, Log, Reading, SensorInfo

#: Readings kept per sensor; at 20 ms each this is more than an hour. Beyond it every second one is dropped.
MAX_READINGS = 200_000
#: Where the kernel shows hardware monitors.
HWMON = Path("/sys/class/hwmon")
#: Failures in a row after which a sensor is left alone for the rest of the request.
MAX_FAILURES = 10


class Sensor(Protocol):
    """A device. Its methods may raise OSError or SensorError; they are called from one thread only."""

    info: SensorInfo

    def read(self) -> Reading: ...

    def condition(self) -> Condition:
        """Here for sensors that tell nothing beside their power."""
        return Condition(now_ns())

    def history(self) -> list[tuple[int, float]]:
        """Samples (time_ns, watts) the driver kept by itself, oldest first; empty where there is no such buffer."""
        return []


class SensorError(Exception):
    """A reading failed; the message is the vendor's, in words."""


@dataclass(slots=True)
class Tried:
    """A way to power that was looked for and does not work here."""

    what: str
    problem: str
    fix: str = ""
    absent: bool = True  # simply not there, as opposed to there but not usable


@dataclass(slots=True)
class Found:
    """What one interface offers: its sensors, and what was tried in vain."""

    sensors: list[Sensor] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    close: Callable[[], None] | None = None


def now_ns() -> int:
    return time.time_ns()


def text_in(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()


def number_in(path: Path) -> float:
    """The number in a sysfs file. Raises OSError, or SensorError when it holds something else."""
    text = text_in(path)
    try:
        return float(text)
    except ValueError as error:
        raise SensorError(f"{path} holds {text[:40]!r}, not a number") from error


def number_if_any(path: Path) -> float | None:
    try:
        return number_in(path)
    except (OSError, SensorError):
        return None


class Sampler:
    """Reads sensors at their own pace in one daemon thread.

    `start` reads each sensor once before it returns, so that there is a value from before the request. `stop`
    returns at once; the thread ends by itself after the first movement of each counter past that moment, at the
    latest two periods (and at most half a second) later, so that the end of the request lies inside the readings.
    `finish` waits for that. `beside` is called at the pace of the conditions, `at_end` once when the thread ends.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        *,
        beside: Callable[[], object] | None = None,
        at_end: Callable[[], None] | None = None,
        condition_every_ns: int = 100_000_000,
    ) -> None:
        self.logs = [Log(s.info) for s in sensors]
        self._sensors = list(sensors)
        self._beside = beside or (lambda: None)
        self._at_end = at_end or (lambda: None)
        self._condition_every_ns = condition_every_ns
        self._stop_ns = 0
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        #: Processor seconds the thread itself used: what watching cost.
        self.cost_seconds = 0.0

    def start(self) -> None:
        for sensor, log in zip(self._sensors, self.logs, strict=True):
            self._condition(sensor, log)
            self._read(sensor, log)
        self._beside()
        self._thread = threading.Thread(target=self._run, name="tokentrace-power", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if not self._stop_ns:
            self._stop_ns = now_ns()
        self._wake.set()

    def finish(self) -> list[Log]:
        self.stop()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
        return self.logs

    def _run(self) -> None:
        try:
            self._watch()
            for sensor, log in zip(self._sensors, self.logs, strict=True):
                if not log.dead:
                    self._condition(sensor, log)
                    self._history(sensor, log)
        finally:
            self._at_end()
        self.cost_seconds = time.thread_time()

    def _watch(self) -> None:
        due = [now_ns() + s.info.poll_ns for s in self._sensors]
        condition_due = now_ns() + self._condition_every_ns
        while True:
            live = [i for i, log in enumerate(self.logs) if not log.dead]
            if self._stop_ns and all(self._done(i) for i in live):
                return
            wait_ns = min([condition_due, *(due[i] for i in live)]) - now_ns()
            if wait_ns > 0:
                # After stop() the event stays set; then plain sleep keeps the pace.
                if self._stop_ns:
                    time.sleep(wait_ns / 1e9)
                else:
                    self._wake.wait(wait_ns / 1e9)
            now = now_ns()
            for i in live:
                if due[i] <= now:
                    self._read(self._sensors[i], self.logs[i])
                    due[i] = now + self._sensors[i].info.poll_ns
            if condition_due <= now:
                for i in live:
                    self._condition(self._sensors[i], self.logs[i])
                self._beside()
                condition_due = now + self._condition_every_ns

    def _done(self, i: int) -> bool:
        """The readings reach past the end of the request, or waiting longer would cost the user more than it helps."""
        log = self.logs[i]
        patience_ns = min(500_000_000, 2 * max(log.info.assumed_period_ns, log.info.poll_ns))
        if now_ns() - self._stop_ns >= patience_ns:
            return True
        if len(log.readings) < 2:
            return False
        last, before = log.readings[-1], log.readings[-2]
        return before.time_ns >= self._stop_ns and (log.info.method != "counter" or last.joules != before.joules)

    def _read(self, sensor: Sensor, log: Log) -> None:
        try:
            reading = sensor.read()
        except (OSError, SensorError) as error:
            self._failed(log, str(error))
            return
        if reading.watts == 0.0:
            log.zeros += 1
            reading.watts = None
        log.readings.append(reading)
        log.failures = 0
        if len(log.readings) > MAX_READINGS:
            del log.readings[1 : MAX_READINGS // 2 : 2]

    def _condition(self, sensor: Sensor, log: Log) -> None:
        try:
            log.conditions.append(sensor.condition())
        except (OSError, SensorError) as error:
            self._failed(log, str(error))

    def _history(self, sensor: Sensor, log: Log) -> None:
        try:
            log.history = sensor.history()
        except (OSError, SensorError) as error:
            log.error = str(error)

    @staticmethod
    def _failed(log: Log, problem: str) -> None:
        log.failures += 1
        log.error = problem
        log.dead = log.failures >= MAX_FAILURES
