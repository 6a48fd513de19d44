"""Layer 1: what the devices drew before and during the live call, or why a call this short cannot be told.

The joules come from the same arithmetic as a trace's, with the same refusals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from tokentrace.doctor.check import Check, Live, Reader, Result, Sample, Sampler, Situation, ok, skip, unknown, warn
from tokentrace.energy.device import Condition, Log, Reading, SensorInfo, Split, Tokens, Window, device_record
from tokentrace.probes._sensors import Found, SensorError
from tokentrace.probes.power import close_all, find_all
from tokentrace.wording import duration, listed

NAME = "power"
PERIOD_S = 0.05


class Devices:
    """Every power sensor of this machine, open. `read` gives {id: (info, reading, condition)}."""

    def __init__(self, found: Sequence[Found]) -> None:
        self._found = found
        self._sensors = [s for f in found for s in f.sensors]

    @property
    def empty(self) -> bool:
        return not self._sensors

    def read(self) -> Mapping[str, Any]:
        values: dict[str, tuple[SensorInfo, Reading | None, Condition | None]] = {}
        for sensor in self._sensors:
            reading: Reading | None = None
            condition: Condition | None = None
            # One device that fails for a moment does not end the others.
            try:
                reading = sensor.read()
                condition = sensor.condition()
            except (OSError, SensorError):
                pass
            values[sensor.info.id] = (sensor.info, reading, condition)
        return values

    def close(self) -> None:
        close_all(self._found)


def _open(situation: Situation) -> Reader | None:
    if not situation.here:
        return None
    devices = Devices(find_all())
    if devices.empty:
        devices.close()
        return None
    return devices


SAMPLERS = (Sampler(NAME, _open, period_s=PERIOD_S),)


def run(situation: Situation) -> Iterable[Result]:
    """TT107."""
    live = situation.live
    if live is None or not live.answered:
        return [skip("TT107", "no live call was answered")]
    if not situation.here:
        return [skip("TT107", "the server runs on another machine, its power cannot be seen from here")]
    logs = logs_of(live.of(NAME))
    if not logs:
        why = live.errors.get(NAME)
        return [unknown("TT107", f"the sensors ended: {why}") if why else skip("TT107", "no power sensor is here")]
    return [judge(log, live) for log in logs]


def logs_of(samples: Sequence[Sample]) -> list[Log]:
    """What each sensor said, in order of time."""
    logs: dict[str, Log] = {}
    for sample in samples:
        for key, (info, reading, condition) in sample.values.items():
            log = logs.setdefault(key, Log(info))
            if reading is not None:
                log.readings.append(reading)
            if condition is not None:
                log.conditions.append(condition)
    return list(logs.values())


def judge(log: Log, live: Live) -> Result:
    """Idle against load, and the joules of the call; refused where the sensor is slower than the call."""
    info = log.info
    took = live.end_ns - live.start_ns
    period = max(info.averaging_ns, info.assumed_period_ns)
    idle = _watts(log, 0, live.start_ns)
    load = _watts(log, live.start_ns + info.averaging_ns, live.end_ns)
    held = sorted({r for c in log.conditions if live.start_ns <= c.time_ns <= live.end_ns for r in c.throttle or ()})
    facts = _facts(log, live, idle, load)
    if took < period:
        return unknown("TT107", f"{info.name}: too short: {duration(took)} < {duration(period)}, so no watts and no "
                       "joules are told", "ask for a longer reply", *facts)  # fmt: skip
    _, problem, parts = device_record(
        log, Window(live.start_ns, live.end_ns, ""), Split((), ""), Tokens(None, ""), None
    )
    joules = (
        "" if parts is None else f", {parts.total.joules:.3g} ± {parts.total.error_joules:.2g} J in {duration(took)}"
    )
    known = [
        f"{value:.3g} W {word}" for value, word in ((idle, "before"), (load, "during the call")) if value is not None
    ]
    if not known and parts is None:
        return unknown("TT107", f"{info.name}: {problem}", "", *facts)
    detail = f"{info.name}: {', '.join(known) or 'power not told'}{joules}"
    if held:
        return warn("TT107", f"{detail}; its clocks were held down by {listed(held)}",
                    "look at cooling, power supply and power limit", *facts)  # fmt: skip
    return ok("TT107", detail, *facts, *([problem] if problem else []))


def _watts(log: Log, start_ns: int, end_ns: int) -> float | None:
    """Median of the power told between two times; else the counter's slope; None when it cannot be told."""
    inside = [r for r in log.readings if start_ns <= r.time_ns <= end_ns]
    told = [r.watts for r in inside if r.watts]  # 0 W is a busy sensor's answer
    if told:
        return median(told)
    counted = [r for r in inside if r.joules is not None]
    if len(counted) < 2 or counted[-1].time_ns - counted[0].time_ns < 2 * log.info.assumed_period_ns:
        return None
    first, last = counted[0], counted[-1]
    assert first.joules is not None and last.joules is not None
    if last.joules <= first.joules:
        return None  # it stood still, or wrapped
    return (last.joules - first.joules) / ((last.time_ns - first.time_ns) / 1e9)


def _facts(log: Log, live: Live, idle: float | None, load: float | None) -> list[str]:
    lines = [f"{len(log.readings)} readings through {log.info.interface}"]
    during = [c for c in log.conditions if live.start_ns <= c.time_ns <= live.end_ns]
    clocks = [c.clock_mhz for c in during if c.clock_mhz]
    if clocks:
        of = f" of {log.info.max_clock_mhz:.0f}" if log.info.max_clock_mhz else ""
        lines.append(f"clock {median(clocks):.0f}{of} MHz during the call")
    used = [c.utilization for c in during if c.utilization is not None]
    if used:
        lines.append(f"utilization {max(used):.0%} at most: it counts any kernel that is there, not work done")
    if load is not None and log.info.cap_w:
        lines.append(f"{load / log.info.cap_w:.0%} of the power limit of {log.info.cap_w:.0f} W")
    if idle is not None and load is not None and load < idle * 1.05:
        lines.append("it drew no more than before: the work may lie elsewhere")
    return lines


CHECKS = (
    Check(
        "TT107", "power of the call",
        "A sensor renews its value every 20 to 100 ms or tells a mean of the last second; a call that is shorter is "
        "refused, not printed.",
        "every sensor before, during and after the live call; joules with their error as in a trace",
        "Ask for a longer reply.",
        run, live=True,
    ),
)  # fmt: skip
