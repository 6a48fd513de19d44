"""What a request tells the energy arithmetic: its window, its steps and its tokens; and the record of processor use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from tokentrace.energy.curve import Stretch
from tokentrace.energy.device import MAX_LIST, Split, Tokens, Window, record_over
from tokentrace.exchange import Exchange
from tokentrace.model import Record
from tokentrace.probe import ProbeContext, Raw
from tokentrace.probes._cpu import CpuReading, CpuWatch


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
    return record_over(window, "power cpu usage", attributes)


def _spent(readings: Sequence[CpuReading], name: str, window: Window) -> float | None:
    import numpy as np

    points = [(r.time_ns, getattr(r, name)) for r in readings if getattr(r, name) is not None]
    if len(points) < 2:
        return None
    origin = points[0][0]
    times = [t - origin for t, _ in points]
    values = [v for _, v in points]
    start, end = (float(np.interp(t - origin, times, values)) for t in (window.start_ns, window.end_ns))
    return max(0.0, end - start)
