"""Findings about the device: how busy it was, whether it lacked launches, who waited, which kernels took the time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokentrace.importers import host
from tokentrace.importers._analysis import WORTH_SAYING, Analysis, caveat, counted, inside
from tokentrace.importers.columns import Array
from tokentrace.importers.join import union_ns
from tokentrace.probe import Finding
from tokentrace.wording import duration, plural, share

_LAUNCH_BOUND = 0.3
_BUSY = 0.9
_ENOUGH = 10  # kernels, from which on a rate or a share means something
_WAIT_WORTH_SAYING = 0.005
_HIDDEN = 0.05  # of a collective's time: with no more than this in the open there is nothing to overlap


def busy(found: Analysis) -> Iterator[Finding]:
    figures, measures = found.figures, found.measures
    if not figures["kernels"]:
        return
    devices = figures["devices"]
    whole = figures["span_ns"] * len(devices)
    window = f"{duration(measures.window_ns)} from first to last kernel or copy"
    if len(devices) > 1:
        window += f", {len(devices)} devices together"
    if found.events.facts.get("gpus_by_number"):
        window += "; GPUs that several processes call by one number count as one"
    rows = found.joined.kernels  # streams of two devices may have the same number
    streams = len(np.unique(np.stack((found.events.device[rows], found.events.stream[rows])), axis=1).T)
    # rocprofv3's kernels name the hardware's queue; streams share those.
    lane = "queue" if "hip_calls_recorded" in found.events.facts else "stream"
    if found.events.silent:
        yield Finding(
            3,
            f"The GPU was busy for at least {duration(figures['busy_ns'])}; how long it was idle is unknown, for "
            f"{found.events.silent}.",
            f"{plural(figures['kernels'], 'kernel')} recorded",
            "record with 'nsys profile --cuda-graph-trace=node'"
            if found.events.facts.get("graph_traces")
            else "record again and let the profiler finish writing",
            "unknown",
        )
        return
    yield Finding(
        3,
        f"The GPU was busy {duration(figures['busy_ns'])} of {duration(whole)}, {share(figures['busy_ns'], whole)}.",
        f"{plural(figures['kernels'], 'kernel')} on {plural(streams, lane)}; {window}; "
        f"kernels add up to {duration(figures['kernel_sum_ns'])}"
        + (" (they overlap)" if figures["kernel_sum_ns"] > figures["busy_ns"] else ""),
    )


def launch_bound(found: Analysis) -> Iterator[Finding]:
    measures, figures = found.measures, found.figures
    if (
        measures.delay_median_ns is None
        or measures.window_ns <= 0
        or figures["kernels"] < _ENOUGH
        or measures.early_kernels
        or found.events.silent
    ):
        return
    starved = measures.starved_ns / measures.window_ns
    idle = measures.idle_ns / measures.window_ns
    unknown = measures.unknown_idle_ns / measures.window_ns
    rate = f"{measures.launch_rate_per_s:,.0f} launches a second; " if measures.launch_rate_per_s else ""
    single = measures.single_launches
    of = f" (over {single:,} of {figures['kernels']:,} kernels)" if single < figures["kernels"] else ""
    length = found.events.end - found.events.start
    memory = 2 * int(length[_under_way(found, measures.memory_calls)].sum()) >= measures.starved_ns
    evidence = (
        f"the device waited {duration(measures.starved_ns)} ({_below_limit(starved)}) "
        f"for kernels that had not been launched in time; {rate}launch to kernel start: "
        f"median {duration(measures.delay_median_ns)}, in sum (TKLQT) {duration(measures.tklqt_ns)}{of}"
    )
    long = sum(gap.length_ns - gap.waiting_ns for gap in measures.gaps if gap.starved)
    if starved >= _LAUNCH_BOUND and long * 2 > measures.starved_ns:
        launching = sum(inside(found, gap, found.joined.all_launches) for gap in measures.gaps if gap.starved)
        yield Finding(
            3,
            f"The GPU had nothing to do for {share(measures.starved_ns, measures.window_ns)} of the time, most of it "
            "in a few long gaps in which the host "
            + (
                "was inside launch calls."
                if 2 * launching > long
                else "launched hardly anything."
                if 20 * launching > long
                else "launched nothing."
            ),
            evidence
            + (f"; inside launch calls for {duration(launching)} of those gaps" if launching else "")
            + caveat(found),
            "a launch this long usually loads or compiles its kernel: warm up before measuring"
            if 2 * launching > long
            else "look at what the host did in them, before anything else",
            "warn",
        )
    elif starved >= _LAUNCH_BOUND:
        yield Finding(
            3,
            f"Launch-bound: for {share(measures.starved_ns, measures.window_ns)} of the time the GPU had nothing to do "
            "because the host had not launched the next kernel in time.",
            evidence + caveat(found),
            "first keep it from asking the driver for memory while it runs, see below"
            if memory
            else "replay CUDA/HIP graphs, compile (torch.compile), fuse small operators or enlarge the batch",
            "warn",
        )
    elif unknown >= _LAUNCH_BOUND:
        yield Finding(
            3,
            "Whether the GPU waited for launches cannot be told: for "
            f"{share(measures.unknown_idle_ns, measures.window_ns)} of the time the launch of what it ran next is not "
            "in the recording.",
            evidence,
            "start the profiler before, and stop it after, a synchronisation",
            "unknown",
        )
    elif starved < WORTH_SAYING and idle >= _LAUNCH_BOUND:
        yield Finding(
            3,
            f"Not launch-bound, though the GPU was idle for {share(measures.idle_ns, measures.window_ns)} of the time: "
            "what it ran next had been launched already, or the host was waiting for a device.",
            evidence,
            "look at what held the streams back: waits, collectives, copies",
        )
    elif starved < WORTH_SAYING or 1 - idle >= _BUSY:
        yield Finding(3, "Not launch-bound: the host launched work faster than the GPU finished it.", evidence,
                      "look at the copies instead" if 2 * measures.copy_alone_ns > measures.window_ns
                      else "look at the longest kernels instead")  # fmt: skip
    else:
        yield Finding(
            3,
            f"Partly launch-bound: the GPU lacked launched work for {_below_limit(starved)} of the time.",
            evidence + caveat(found),
            "look at the largest gaps and at what the host did in them",
        )


def _below_limit(starved: float) -> str:
    """The share in words, that does not round up to what would have been called launch-bound."""
    told = share(starved, 1)
    if starved < _LAUNCH_BOUND and told == share(_LAUNCH_BOUND, 1):
        return f"{min(100 * starved, 100 * _LAUNCH_BOUND - 0.1):.1f} %"
    return told


def clocks(found: Analysis) -> Iterator[Finding]:
    measures = found.measures
    if measures.early_kernels:
        yield Finding(
            3,
            f"{measures.early_kernels:,} kernels start before their launch: the clocks of host and device disagree.",
            f"by up to {duration(measures.early_worst_ns)}; queue delays and gaps are not judged",
            "times within the device and within the host hold; do not compare the two",
            "warn",
        )


def waits(found: Analysis) -> Iterator[Finding]:
    events, measures = found.events, found.measures
    length = events.end - events.start
    for rows, one, many, fix in (
        (host.own_syncs(events, found.joined, measures.sync_calls), "synchronisation", "synchronisations",
         "avoid .item(), .cpu(), print of tensors and torch.cuda.synchronize() inside the step"),
        (measures.wait_copies, "copy that made the host wait", "copies that made the host wait",
         "copy from pinned memory with non_blocking=True, and read results one step later"),
    ):  # fmt: skip
        if not len(rows):
            continue
        total, span = int(length[rows].sum()), found.figures["span_ns"]
        if total < _WAIT_WORTH_SAYING * span:
            continue
        # Threads and processes that wait at the same time share that time.
        waited = union_ns(events.start[rows], events.end[rows])
        threads = len(np.unique(events.track[rows]))
        beside = f" on {threads} threads side by side" if waited < total and threads > 1 else ""
        origin = _origin(found, rows)
        yield Finding(
            3,
            f"The host waited {duration(waited)} in {plural(len(rows), one, many)}{beside}"
            + (f", most of it in {origin}." if origin else "."),
            f"{share(waited, span)} of {duration(span)}; "
            + (f"added up over the threads {duration(total)}; " if beside else "") + counted(events, rows),
            fix,
            "warn" if waited > 0.1 * span else "ok",
        )  # fmt: skip


def _origin(found: Analysis, rows: Array) -> str:
    """The outermost operator in which most of this waiting happened."""
    top = host.outermost_operator(found.events, found.tree, rows)
    length = (found.events.end - found.events.start)[rows]
    inside = top >= 0
    if not bool(inside.any()):
        return ""
    total = np.zeros(len(found.events.names), np.int64)
    np.add.at(total, found.events.name[top[inside]], length[inside])
    best = int(total.argmax())
    return host.short(found.events.names[best], 60) if total[best] * 2 > length.sum() else ""


def memory(found: Analysis) -> Iterator[Finding]:
    """Memory taken from the driver while work was under way; before the first launch it is what a start needs."""
    rows = _under_way(found, found.measures.memory_calls)
    total, span = union_ns(found.events.start[rows], found.events.end[rows]), found.figures["span_ns"]
    if len(rows) and total >= 0.1 * span:
        yield Finding(
            3,
            f"The host spent {duration(total)} taking memory from the driver and giving it back.",
            f"{share(total, span)} of {duration(span)}; {counted(found.events, rows)}",
            "keep the caching allocator on, and warm up before measuring: each of these calls may stop the device",
            "warn",
        )


def _under_way(found: Analysis, rows: Array) -> Array:
    """Those that start after the first launch."""
    launches, start = found.joined.all_launches, found.events.start
    late: Array = rows[start[rows] > start[launches].min()] if len(launches) else rows[:0]
    return late


def copies(found: Analysis) -> Iterator[Finding]:
    """Copies that kept a device busy while no kernel ran."""
    alone, window = found.measures.copy_alone_ns, found.measures.window_ns
    if window <= 0 or alone < 0.1 * window or found.events.silent:
        return
    events, rows = found.events, found.joined.copies
    yield Finding(
        3,
        f"For {share(alone, window)} of the time the GPU only copied: {duration(alone)} without a kernel.",
        f"{plural(len(rows), 'copy', 'copies')}: {counted(events, rows)}",
        "copy less, or beside the kernels on a stream of its own; a copy from pageable memory is slower still",
        "warn",
    )


def graphs(found: Analysis) -> Iterator[Finding]:
    graphs, kernels = found.measures.graph_kernels, found.figures["kernels"]
    if not kernels or not found.figures["launches"] or found.events.silent:
        return
    if graphs:
        launches = found.figures["graph_launches"]
        yield Finding(
            3,
            f"{graphs:,} of {kernels:,} kernels ({share(graphs, kernels)}) ran inside a graph: host ops unknown there.",
            plural(launches, "graph launch", "graph launches"),
            "",
        )
    elif kernels >= _ENOUGH and found.measures.starved_ns > _LAUNCH_BOUND * max(1, found.measures.window_ns):
        phases = {step.attributes.get("tokentrace.step.phase") for step in found.steps.steps}
        if found.measures.captured or phases == {"prefill"}:  # engines replay graphs for decoding
            return
        engine = any(step.name.startswith("execute_") for step in found.steps.steps)
        yield Finding(3, "No kernel ran inside a graph.", f"{found.figures['launches']:,} launches one by one",
                      "replay CUDA/HIP graphs" + (" (vLLM: without --enforce-eager)" if engine else ""))  # fmt: skip


def collectives(found: Analysis) -> Iterator[Finding]:
    measures = found.measures
    if not measures.collective_ns:
        return
    busy = found.figures["busy_ns"]
    open_ns = measures.collective_ns - measures.collective_hidden_ns
    yield Finding(
        3,
        f"Collectives ran for {duration(measures.collective_ns)}, "
        f"{share(measures.collective_hidden_ns, measures.collective_ns)} of it hidden behind other kernels.",
        f"{plural(int(measures.collective.sum()), 'kernel')}; {share(measures.collective_ns, busy)} of busy time; "
        f"{duration(open_ns)} exposed (a collective's time includes waiting for the slowest rank)",
        "overlap them with computation, or compare the ranks: the last to arrive makes the others wait"
        if open_ns > _HIDDEN * measures.collective_ns
        else "",
        "warn" if open_ns > 0.2 * busy else "ok",
    )


def kernels(found: Analysis) -> Iterator[Finding]:
    top = found.figures["top_kernels"]
    if top:
        total = found.figures["kernel_sum_ns"]
        yield Finding(
            3,
            f"The kernel with the most time is {host.short(top[0]['name'], 80)}, {share(top[0]['total_ns'], total)} "
            f"of all kernel time in {plural(top[0]['count'], 'run')}.",
            "; ".join(f"{host.short(k['name'], 50)}: {duration(k['total_ns'])}, ×{k['count']:,}" for k in top[:3]),
            "",
        )
