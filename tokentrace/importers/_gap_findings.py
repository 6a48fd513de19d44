"""Findings about the stretches in which the device ran nothing: before its first work, and between its kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers import host, launch_cost
from tokentrace.importers._analysis import RECORDING, WORTH_SAYING, Analysis, inside
from tokentrace.importers.measures import Gap, Measures
from tokentrace.probe import Finding
from tokentrace.wording import duration, share


def before_the_first(found: Analysis) -> Iterator[Finding]:
    """Host work before the device had anything to do: no gap between kernels shows it."""
    events, joined, measures = found.events, found.joined, found.measures
    if not len(joined.all_launches) or measures.early_kernels or measures.captured or found.events.silent:
        return
    work, rows = np.concatenate((joined.kernels, joined.copies)), events.inside()
    if not len(work) or not len(rows):
        return
    begin, first = int(events.start[rows].min()), int(events.start[work].min())
    span = found.figures["span_ns"]
    if first - begin < launch_cost.LONG_START * span:
        return
    asked = np.concatenate((joined.call_of, joined.copy_call))
    asked = asked[asked >= 0]
    if not len(asked):
        return
    call = int(asked[events.start[asked].argmin()])
    queued = int(events.start[call])
    did = host.doing(events, found.tree, int(events.track[call]), begin, first)
    evidence = "host: " + (", ".join(f"{name} {duration(ns)}" for name, ns in did) or "nothing that was recorded")
    took = max(queued, int(events.end[call]))  # a first launch may itself load or compile what it launches
    if 2 * (first - took) > first - begin:
        yield Finding(
            3,
            f"No work of the GPU is recorded for the first {duration(first - begin)}, {share(first - begin, span)} of "
            f"{found.whole}, though the first was handed to it after {duration(queued - begin)}: it was still busy "
            f"with what came before {found.whole}, or waited for another stream.",
            f"{_name(found, call)} returned {duration(first - took)} before its work began; {evidence}",
            "do not read this time as idle; record the steps before as well",
            "unknown",
        )
        return
    # A part of a recording does not hold the kernel that was running when the part began.
    nothing = "The GPU ran nothing" if found.whole == RECORDING else "The GPU began nothing"
    yield Finding(
        3,
        f"{nothing} for the first {duration(first - begin)}, {share(first - begin, span)} of {found.whole}; "
        f"its first work was launched after {duration(queued - begin)}.",
        evidence,
        "look at what the host prepares before the first launch",
    )


def gaps(found: Analysis) -> Iterator[Finding]:
    measures = found.measures
    # While a graph is captured the device is meant to idle.
    if not measures.gaps or measures.early_kernels or measures.captured or found.events.silent:
        return
    gap = measures.gaps[0]
    if gap.length_ns < WORTH_SAYING * measures.window_ns and gap.length_ns < 1_000_000:
        return
    where = f"The longest gap on device {gap.device} is {duration(gap.length_ns)}"
    before = f"before {_name(found, gap.next_kernel)}" if gap.next_kernel >= 0 else "before a copy"
    if gap.starved is None:
        yield Finding(3, f"{where}, {before}; its cause is unknown, for the next launch is not in the recording.",
                      _gap_list(measures), "record runtime calls too", "unknown")  # fmt: skip
        return
    did = host.doing(found.events, found.tree, int(found.events.track[gap.launch]), gap.start_ns, gap.end_ns)
    shares = ", ".join(f"{name} {duration(ns)}" for name, ns in did)
    if gap.waiting_ns > gap.length_ns // 2:
        yield Finding(
            3,
            f"{where}, {before}; the host waited for a device then, for work that is not in {found.whole}.",
            f"host: {shares}; {_gap_list(measures)}",
            "record the steps before as well, or look at the other devices",
            "unknown",
        )
    elif not gap.starved:
        yield Finding(
            3,
            f"{where}, {before}, which had been launched already: it waited for another stream or an event.",
            (f"host: {shares}; " if shares else "") + _gap_list(measures),
            "look for stream waits and collectives that hold this stream back",
        )
    elif did:
        while_, advice = _meanwhile(found, gap, did)
        yield Finding(
            3,
            f"{where}, {before}, {while_}.",
            f"host: {shares}; {_gap_list(measures)}",
            advice,
            "warn" if gap.length_ns > WORTH_SAYING * measures.window_ns else "ok",
        )


def _meanwhile(found: Analysis, gap: Gap, did: list[tuple[str, int]]) -> tuple[str, str]:
    """What the launching thread did in a gap, as far as it fills it, and what to do about that."""
    name, most = did[0]
    events = found.events
    row = host.during(events, found.tree, int(events.track[gap.launch]), gap.start_ns, gap.end_ns)
    around = host.short(events.names[int(events.name[row])], 60) if row >= 0 else ""
    half = 2 * most >= gap.length_ns
    mark = row >= 0 and (events.kind[row] == gpu_events.ANNOTATION)
    if mark and (name == around or not half):
        return _in_mark(found, gap, around, [other for other, _ in did if other != around])
    if half:
        return f"while the host was in {name}", _advice(name)
    if row >= 0:
        return f"while the host was in {around} and what it called", _advice(name)
    if 2 * sum(ns for _, ns in did) >= gap.length_ns:
        return f"while the host went through several things, {name} the longest", _advice(name)
    return (
        "while the launching thread did nothing that was recorded",
        "record with with_stack=True to see its Python code",
    )


def _in_mark(found: Analysis, gap: Gap, around: str, others: list[str]) -> tuple[str, str]:
    """The same where an annotation or a step is all that fills the gap: how much of it lies in no operator."""
    working = inside(found, gap, found.events.rows(gpu_events.OPERATOR))
    if 2 * working > gap.length_ns and others:
        cause = around if "dataloader" in around.lower() else others[0]
        return f"while the host was in {around}, most of it in operators, {others[0]} the longest", _advice(cause)
    outside = f", for {duration(gap.length_ns - working)} of it" if working else ","
    return f"while the host was in {around}{outside} outside any operator", "record with with_stack=True to see in what"


def _advice(name: str) -> str:
    low = name.lower()
    if "malloc" in low or "free" in low or "hostalloc" in low:
        return "memory is asked of the driver between kernels: keep the caching allocator on, warm up before measuring"
    if "dataloader" in low:
        return "the data loader is too slow: more workers, pinned memory, prefetching"
    if "launch" in low:
        return "a launch this long usually loads or compiles its kernel: warm up before measuring"
    return "move that work off the launching thread or out of the step"


def _gap_list(measures: Measures) -> str:
    largest = ", ".join(duration(gap.length_ns) for gap in measures.gaps)
    return f"largest gaps: {largest}; {duration(measures.idle_ns)} in all"


def _name(found: Analysis, row: int) -> str:
    return host.short(found.events.names[int(found.events.name[row])], 70)
