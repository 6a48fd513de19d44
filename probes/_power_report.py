"""From readings to records: the energy of one request on one device, split over its steps, with its error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from tokentrace.exchange import Exchange
from tokentrace.model import Record
from tokentrace.probe import ProbeContext, Raw
from tokentrace.probes._cpu import CpuReading, CpuWatch
from tokentrace.probes._energy import (
    Attribution,
    CannotTell,
    EnergyCurve,
    Stretch,
    attribute,
    counter_curve,
    power_curve,
)
from tokentrace.probes._sensors import Log, SensorInfo

#: Values kept in a list attribute.
MAX_LIST = 64
#: Readings this long before the request describe the level before it.
BEFORE_NS = 2_000_000_000


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


def window_of(exchange: Exchange | None, armed_ns: int, disarmed_ns: int) -> Window:
    if exchange is not None and exchange.end_ns > exchange.start_ns > 0:
        return Window(exchange.start_ns, exchange.end_ns, "chat")
    return Window(armed_ns, max(disarmed_ns, armed_ns), "")


def split_of(context: ProbeContext) -> Split:
    """Steps from `context.options["steps"]`, else from the agent's engine records, else from arrivals of chunks.

    Each entry of the option: `start_ns`, `end_ns`, `phase` (prefill or decode), and where known `tokens` (this
    request's), `batch_tokens` (all requests') and `batch` (how many requests).
    """
    given = context.options.get("steps")
    if given:
        return Split(tuple(_stretch(entry) for entry in given), "steps")
    if context.agent is not None:
        steps = _agent_steps(context.agent.records("engine"), context)
        if steps:
            return Split(steps, "steps")
    exchange = context.exchange
    times = exchange.token_times_ns if exchange is not None else []
    if exchange is None or not times:
        return Split((), "")
    first = Stretch(exchange.start_ns, times[0], "prefill")
    later = [Stretch(a, b, "decode") for a, b in pairwise(times)]
    return Split((first, *later), "arrivals")


def _stretch(entry: Mapping[str, Any]) -> Stretch:
    ours, all_ = entry.get("tokens"), entry.get("batch_tokens")
    share = ours / all_ if ours and all_ else 1.0
    phase = "prefill" if entry.get("phase") == "prefill" else "decode"
    return Stretch(int(entry["start_ns"]), int(entry["end_ns"]), phase, share, int(entry.get("batch") or 1))


def _agent_steps(records: Sequence[Raw], context: ProbeContext) -> tuple[Stretch, ...]:
    steps = [r for r in records if r.name == "step" and isinstance(r.data.get("reqs"), Mapping)]
    rid = _our_id(steps, context)
    if not rid:
        return ()
    ours = [r for r in steps if rid in r.data["reqs"]]
    # Several ranks run the same step; one process is enough.
    by_process: dict[str, list[Raw]] = {}
    for record in ours:
        by_process.setdefault(record.process, []).append(record)
    prompt = context.exchange.input_tokens if context.exchange is not None else None
    result: list[Stretch] = []
    seen = 0
    longest: list[Raw] = max(by_process.values(), key=len)
    for record in sorted(longest, key=lambda r: r.start_ns):
        requests = record.data["reqs"]
        tokens = int(requests[rid] or 0)
        if not result:
            cached = record.data.get("cached_tokens")
            seen = int(cached.get(rid) or 0) if isinstance(cached, Mapping) else 0
        prefill = seen < prompt if prompt is not None else tokens > 1 or not result
        seen += tokens
        total = int(record.data.get("tokens") or sum(requests.values()) or 1)
        share = tokens / total if tokens else 1.0
        batch = int(record.data.get("batch") or len(requests))
        result.append(Stretch(record.start_ns, record.end_ns, "prefill" if prefill else "decode", share, batch))
    return tuple(result)


def _our_id(steps: Sequence[Raw], context: ProbeContext) -> str:
    """The engine's id of our request: the one asked for, one that begins with it, or the only one there is."""
    known = {str(rid) for record in steps for rid in record.data["reqs"]}
    response_id = context.exchange.response_id if context.exchange is not None else ""
    for wanted in filter(None, (context.request_id, response_id)):
        if wanted in known:
            return wanted
        longer = [rid for rid in known if rid.startswith(wanted)]
        if len(longer) == 1:
            return longer[0]
    return next(iter(known)) if len(known) == 1 else ""


def tokens_of(exchange: Exchange | None, split: Split) -> Tokens:
    if exchange is not None and exchange.output_tokens:
        return Tokens(exchange.output_tokens, "usage")
    if split.source == "steps":
        decode = sum(1 for s in split.stretches if s.phase == "decode")
        return Tokens(decode + 1, "steps")  # the last prefill step samples the first token
    if exchange is not None and exchange.token_times_ns:
        return Tokens(len(exchange.token_times_ns), "chunks")
    return Tokens(None, "")


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
        )
    samples = [(r.time_ns, r.watts) for r in log.readings if r.watts is not None]
    return power_curve(
        [t for t, _ in samples],
        [w for _, w in samples],
        averaging_ns=info.averaging_ns,
        resolution_w=0.001,
        assumed_period_ns=info.assumed_period_ns,
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
    record = Record(
        name="power",
        layer=1,
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        attributes=attributes,
        parent_key=window.parent_key,
        join="time",
        flow=bool(window.parent_key),
    )
    return record, problem, parts


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


def cpu_record(watch: CpuWatch, window: Window, tokens: Tokens, reason: str) -> Record | None:
    """Processor use as what it is. None when nothing could be read."""
    readings = sorted(watch.readings, key=lambda r: r.time_ns)
    seconds = (window.end_ns - window.start_ns) / 1e9
    if len(readings) < 2 or seconds <= 0:
        return None
    import psutil

    cores = psutil.cpu_count() or 1
    attributes: dict[str, Any] = {
        "hw.id": "cpu",
        "hw.type": "cpu",
        "tokentrace.cpu.cores": cores,
        "tokentrace.cpu.tick_seconds": watch.tick_seconds,
    }
    used = _spent(readings, "process_seconds", window)
    if used is not None:
        attributes["tokentrace.cpu.seconds"] = used
        attributes["tokentrace.cpu.cores_busy"] = used / seconds
        attributes["tokentrace.cpu.processes"] = watch.processes[:MAX_LIST]
        if tokens.count:
            attributes["tokentrace.cpu.seconds_per_token"] = used / tokens.count
            attributes["tokentrace.cpu.tokens_source"] = tokens.source
    system = _spent(readings, "system_seconds", window)
    if system is not None:
        attributes["tokentrace.cpu.system_seconds"] = system
        attributes["tokentrace.cpu.utilization"] = min(1.0, system / seconds / cores)
    frequencies = [r.frequency_mhz for r in readings if r.frequency_mhz is not None]
    if frequencies:
        attributes["tokentrace.cpu.frequency_mhz"] = float(median(frequencies))
        attributes["tokentrace.cpu.frequency_min_mhz"] = float(min(frequencies))
    if watch.problems:
        attributes["tokentrace.cpu.problems"] = sorted(set(watch.problems))
    if reason:
        attributes["tokentrace.power.method"] = "unavailable"
        attributes["tokentrace.power.reason"] = reason
    if used is None and system is None:
        return None
    return Record(
        name="power cpu usage",
        layer=1,
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        attributes=attributes,
        parent_key=window.parent_key,
        join="time",
        flow=bool(window.parent_key),
    )


def _spent(readings: Sequence[CpuReading], name: str, window: Window) -> float | None:
    points = [(r.time_ns, getattr(r, name)) for r in readings if getattr(r, name) is not None]
    if len(points) < 2:
        return None
    origin = points[0][0]
    times = [t - origin for t, _ in points]
    values = [v for _, v in points]
    start, end = (float(np.interp(t - origin, times, values)) for t in (window.start_ns, window.end_ns))
    return max(0.0, end - start)
