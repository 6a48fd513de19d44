"""One device with a power sensor: what it said, and its record of one request with joules and their error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tokentrace.energy.curve import (
    Attribution,
    CannotTell,
    EnergyCurve,
    Stretch,
    attribute,
    counter_curve,
    power_curve,
)
from tokentrace.model import Record

#: Values kept in a list attribute.
MAX_LIST = 64
#: Readings this long before the request describe the level before it.
BEFORE_NS = 2_000_000_000


@dataclass(slots=True)
class SensorInfo:
    """One device as its vendor's interface describes it. What could not be read is None or "", never 0."""

    id: str  # stable across restarts where the vendor offers that (UUID, PCI address, sysfs path)
    type: str  # hw.type of OpenTelemetry: gpu, cpu, memory, enclosure
    name: str
    vendor: str
    interface: str  # NVML, AMD SMI, hwmon, RAPL
    model: str = ""
    driver_version: str = ""
    method: str = "counter"  # counter or integration
    scope: str = "whole card"
    resolution_joules: float = 0.0
    wrap_joules: float | None = None
    assumed_period_ns: int = 100_000_000
    averaging_ns: int = 0
    poll_ns: int = 20_000_000
    cap_w: float | None = None  # the limit in force
    cap_requested_w: float | None = None  # the limit that was asked for, where it is kept apart
    max_clock_mhz: float | None = None
    part_of: str = ""  # id of the sensor whose energy includes this one's: never add the two
    mig: bool | None = None
    mig_slices: int | None = None
    pids: frozenset[int] | None = None  # processes that compute on it, None when the vendor does not say
    fields: dict[str, str] = field(default_factory=dict)  # what can be read: name -> "yes" or why not
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Reading:
    """One look at a sensor. `time_ns` is the middle of the call, on this process's clock, `read_ns` its length."""

    time_ns: int
    joules: float | None = None  # the total counter, since an arbitrary zero
    watts: float | None = None
    read_ns: int = 0

    @classmethod
    def within(cls, before_ns: int, after_ns: int, joules: float | None = None, watts: float | None = None) -> Reading:
        """What a call that began and ended then gave: it looked at some moment between."""
        return cls((before_ns + after_ns) // 2, joules, watts, max(0, after_ns - before_ns))


@dataclass(slots=True)
class Condition:
    """The device's state beside its power, read less often."""

    time_ns: int
    temperature_c: float | None = None
    clock_mhz: float | None = None
    utilization: float | None = None  # 0..1: share of the vendor's own window with any kernel resident, not work done
    throttle: tuple[str, ...] | None = None  # None: not known; (): not held back
    throttled_ns: dict[str, int] = field(default_factory=dict)  # counters by cause, since an arbitrary zero


@dataclass(slots=True)
class Log:
    """Everything one sensor said during one request."""

    info: SensorInfo
    readings: list[Reading] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    history: list[tuple[int, float]] = field(default_factory=list)
    failures: int = 0
    zeros: int = 0  # readings of exactly 0 W: a busy sensor's answer, not a measurement
    error: str = ""
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """The request, or where there is no exchange the time between arm and disarm."""

    start_ns: int
    end_ns: int
    parent_key: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """How many tokens were put out, and who counted: usage (the server), steps, chunks (a lower bound) or ""."""

    count: int | None
    source: str


@dataclass(frozen=True, slots=True)
class Split:
    """The request's steps and where they come from: steps, arrivals (of chunks at the client) or ""."""

    stretches: tuple[Stretch, ...]
    source: str


def curve_of(log: Log) -> EnergyCurve:
    """The energy curve of what a sensor said. Raises CannotTell."""
    info = log.info
    if info.method == "counter":
        readings = [r for r in log.readings if r.joules is not None]
        return counter_curve(
            [r.time_ns for r in readings],
            [r.joules for r in readings if r.joules is not None],
            resolution_joules=info.resolution_joules,
            assumed_period_ns=info.assumed_period_ns,
            wrap_joules=info.wrap_joules,
            reads_ns=[r.read_ns for r in readings],
        )
    samples = [(r.time_ns, r.watts, r.read_ns) for r in log.readings if r.watts is not None]
    return power_curve(
        [t for t, _, _ in samples],
        [w for _, w, _ in samples],
        averaging_ns=info.averaging_ns,
        resolution_w=0.001,
        assumed_period_ns=info.assumed_period_ns,
        reads_ns=[length for _, _, length in samples],
    )


def device_record(
    log: Log, window: Window, split: Split, tokens: Tokens, serves: bool | None
) -> tuple[Record, str, Attribution | None]:
    """The record of one device, why its joules are unavailable ("" when they are not), and their split."""
    attributes = _identity(log.info)
    attributes["tokentrace.power.sample_count"] = len(log.readings)
    problem = ""
    parts: Attribution | None = None
    curve: EnergyCurve | None = None
    try:
        curve = curve_of(log)
        parts = attribute(curve, window.start_ns, window.end_ns, split.stretches)
    except CannotTell as error:
        problem = str(error) + (f" (the sensor's last error: {log.error})" if log.error else "")
    attributes["tokentrace.power.method"] = curve.method if curve is not None and not problem else "unavailable"
    if problem:
        attributes["tokentrace.power.reason"] = problem
    if curve is not None:
        attributes["tokentrace.power.period_ms"] = round(curve.period_ns / 1e6, 3)
        attributes["tokentrace.power.period_source"] = "measured" if curve.period_measured else "assumed"
        if curve.averaging_ns:
            attributes["tokentrace.power.averaging_ms"] = round(curve.averaging_ns / 1e6, 3)
    if parts is not None:
        attributes.update(_energy(parts, window, split, tokens))
    attributes.update(_level(log, curve, window))
    attributes.update(_condition(log, window))
    if serves is not None:
        attributes["tokentrace.power.serves"] = serves
    if log.zeros:
        attributes["tokentrace.power.zero_samples_dropped"] = log.zeros
    return record_over(window, "power", attributes), problem, parts


def record_over(window: Window, name: str, attributes: dict[str, Any]) -> Record:
    """A record of layer 1 over the whole window."""
    return Record(
        name=name,
        layer=1,
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        attributes=attributes,
        parent_key=window.parent_key,
        join="time",
        flow=bool(window.parent_key),
    )


def _identity(info: SensorInfo) -> dict[str, Any]:
    named: dict[str, Any] = {
        "hw.id": info.id,
        "hw.type": info.type,
        "hw.name": info.name,
        "hw.vendor": info.vendor,
        "hw.model": info.model,
        "hw.driver_version": info.driver_version,
        "tokentrace.power.interface": info.interface,
        "tokentrace.power.scope": info.scope,
        "tokentrace.power.part_of": info.part_of,
        "tokentrace.power.cap_w": info.cap_w,
        "tokentrace.power.cap_requested_w": info.cap_requested_w,
        "tokentrace.power.max_clock_mhz": info.max_clock_mhz,
        "tokentrace.power.mig": info.mig,
        "tokentrace.power.notes": info.notes,
    }
    return {key: value for key, value in named.items() if value not in (None, "", [])}


def _energy(parts: Attribution, window: Window, split: Split, tokens: Tokens) -> dict[str, Any]:
    total = parts.total
    seconds = (window.end_ns - window.start_ns) / 1e9
    result: dict[str, Any] = {
        "hw.energy": total.joules,
        "hw.power": total.joules / seconds,
        "tokentrace.power.joules": total.joules,
        "tokentrace.power.error_joules": total.error_joules,
        "tokentrace.form.in": "kernel",
        "tokentrace.form.out": f"{total.joules:.3g} J",
    }
    ours = total.joules - parts.others
    if tokens.count:
        result["tokentrace.power.tokens"] = tokens.count
        result["tokentrace.power.tokens_source"] = tokens.source
        result["tokentrace.power.joules_per_token"] = ours / tokens.count
        result["tokentrace.power.joules_per_token_error"] = total.error_joules / tokens.count
    if not split.source:
        return result
    result["tokentrace.power.attribution"] = {
        "steps": "engine steps, each shared by tokens scheduled",
        "arrivals": "arrival of chunks at the client; other requests on the device are not told apart",
    }[split.source]
    result["tokentrace.power.prefill_joules"] = parts.prefill.joules
    result["tokentrace.power.prefill_error_joules"] = parts.prefill.error_joules
    result["tokentrace.power.outside_steps_joules"] = parts.outside
    if parts.shared_by > 1:
        result["tokentrace.power.shared_by"] = parts.shared_by
        result["tokentrace.power.other_requests_joules"] = parts.others
    if parts.tokens:
        result["tokentrace.power.decode_joules"] = parts.decode.joules
        result["tokentrace.power.decode_error_joules"] = parts.decode.error_joules
        result["tokentrace.power.decode_joules_per_token"] = parts.decode.joules / len(parts.tokens)
        result["tokentrace.power.token_joules"] = parts.tokens[:MAX_LIST]
        result["tokentrace.power.token_resolved"] = parts.token_resolved
    return result


def _level(log: Log, curve: EnergyCurve | None, window: Window) -> dict[str, Any]:
    """Power before and during the request, and a bounded list of samples; from the counter where power is missing."""
    import numpy as np

    samples = [(r.time_ns, r.watts) for r in log.readings if r.watts is not None]
    if not samples and curve is not None:
        middle = (curve.times_ns[1:] + curve.times_ns[:-1]) // 2
        power = np.diff(curve.joules) / np.diff(curve.times_ns) * 1e9
        samples = [(int(t), float(w)) for t, w in zip(middle, power, strict=True)]
    early = [(t, w) for t, w in [*log.history, *samples] if window.start_ns - BEFORE_NS <= t < window.start_ns]
    during = [(t, w) for t, w in samples if window.start_ns <= t <= window.end_ns]
    result: dict[str, Any] = {}
    if early:
        result["tokentrace.power.before_w"] = float(median(w for _, w in early))
        result["tokentrace.power.before_ms"] = round((window.start_ns - min(t for t, _ in early)) / 1e6, 3)
    if during:
        result["tokentrace.power.mean_sample_w"] = float(np.mean([w for _, w in during]))
        result["tokentrace.power.peak_w"] = float(max(w for _, w in during))
        kept = _thin(during)
        result["tokentrace.power.samples_w"] = [round(float(w), 3) for _, w in kept]
        result["tokentrace.power.samples_ms"] = [round((t - window.start_ns) / 1e6, 3) for t, _ in kept]
    return result


def _thin(items: Sequence[Any]) -> list[Any]:
    if len(items) <= MAX_LIST:
        return list(items)
    return [items[round(i * (len(items) - 1) / (MAX_LIST - 1))] for i in range(MAX_LIST)]


def _condition(log: Log, window: Window) -> dict[str, Any]:
    """Temperature, clock, utilization and what held the device back while the request ran."""
    before = [c for c in log.conditions if c.time_ns < window.start_ns]
    during = [c for c in log.conditions if window.start_ns <= c.time_ns <= window.end_ns] or log.conditions[-1:]
    result: dict[str, Any] = {}
    if before and before[-1].temperature_c is not None:
        result["tokentrace.power.temperature_before_c"] = before[-1].temperature_c
    temperatures = [c.temperature_c for c in during if c.temperature_c is not None]
    if temperatures:
        result["tokentrace.power.temperature_c"] = max(temperatures)
    clocks = [c.clock_mhz for c in during if c.clock_mhz is not None]
    if clocks:
        result["tokentrace.power.clock_mhz"] = median(clocks)
        result["tokentrace.power.clock_min_mhz"] = min(clocks)
    busy = [c.utilization for c in during if c.utilization is not None]
    if busy:
        result["tokentrace.power.utilization"] = max(busy)
    told = [c.throttle for c in during if c.throttle is not None]
    if told:
        result["tokentrace.power.throttle_reasons"] = sorted({reason for reasons in told for reason in reasons})
    if before and log.conditions[-1] is not before[-1]:
        for cause, first in before[-1].throttled_ns.items():
            last = log.conditions[-1].throttled_ns.get(cause)
            if last is not None and last >= first:
                result[f"tokentrace.power.held_back_by_{cause}_ms"] = (last - first) / 1e6
    return result
