"""Findings about the host: where its time goes, what was compiled, which operators lead."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers import columns, host
from tokentrace.importers._analysis import WORTH_SAYING, Analysis, caveat, counted
from tokentrace.importers.join import merged, overlap_ns
from tokentrace.importers.launch_cost import Split
from tokentrace.probe import Finding
from tokentrace.wording import duration, plural, share

#: Collectives of backends that use the CPU. NCCL's names stand on the host too, but only hand work to the device.
_ON_HOST = re.compile(r"^(gloo|mpi|ucc):")


def host_time(found: Analysis) -> Iterator[Finding]:
    split = found.measures.split
    if split is None or split.working_ns <= 0 or split.calls < 10 or found.measures.captured or found.events.silent:
        return
    parts = {"framework": split.framework_ns, "library": split.library_ns, "launch": split.launch_ns,
             "driver's memory calls": split.memory_ns}  # fmt: skip
    most = max(parts, key=lambda key: parts[key])
    part = "most of it" if 2 * parts[most] > split.working_ns else "the largest part of it"
    # Where the device always had work, less of it on the host would change nothing.
    matters = found.measures.starved_ns > WORTH_SAYING * max(1, found.measures.window_ns)
    length = found.events.end - found.events.start
    longest = int(length[found.joined.all_launches].max())
    lone = most == "launch" and 2 * longest > split.launch_ns
    memory = f"memory calls {share(split.memory_ns, split.total_ns)}, " if split.memory_ns else ""
    yield Finding(
        4,
        f"The launching threads spent {duration(split.working_ns / split.calls)} of work on each launch, {part} in the "
        f"{most}.",
        f"framework (Python, dispatch) {share(split.framework_ns, split.total_ns)}, library (kernel choice and set-up, "
        f"other runtime calls) {share(split.library_ns, split.total_ns)}, {memory}launch calls "
        f"{share(split.launch_ns, split.total_ns)}, waiting {share(split.blocked_ns, split.total_ns)}{_waited(split)} "
        f"of {duration(split.total_ns)}" + (f"; one launch took {duration(longest)}" if lone else "") + caveat(found),
        "a launch this long usually loads or compiles its kernel: warm up before measuring" if lone else
        {"framework": "graphs and torch.compile remove this part",
         "library": "warm up, and keep shapes stable so that libraries reuse their choices",
         "launch": "fewer, larger kernels; graphs",
         "driver's memory calls": "keep the caching allocator on, and warm up before measuring"}[most]
        if matters else "",
    )  # fmt: skip


def _waited(split: Split) -> str:
    """What the threads waited for, beside synchronisations and copies."""
    told = [
        f"{duration(ns)} {where}"
        for ns, where in (
            (split.backward_ns, "in backward() for autograd's own thread"),
            (split.full_queue_ns, "in calls whose queue was full"),
        )
        if ns >= 0.001 * split.total_ns
    ]
    return f" ({', '.join(told)})" if told else ""


def collectives(found: Analysis) -> Iterator[Finding]:
    """Collectives that the host itself carries out (gloo, MPI, UCC), on threads of their own."""
    events, span = found.events, found.figures["span_ns"]
    rows = np.flatnonzero(np.isin(events.kind, columns.HOST_KINDS))
    rows = rows[events.names_matching(_ON_HOST)[events.name[rows]]]
    talk = merged(events.start[rows], events.end[rows])
    total = int((talk[1] - talk[0]).sum())
    if not len(rows) or total < WORTH_SAYING * span:
        return
    work = events.rows(gpu_events.OPERATOR)
    work = work[~np.isin(events.track[work], np.unique(events.track[rows]))]
    hidden = overlap_ns(talk, merged(events.start[work], events.end[work]))
    threads = len(np.unique(events.track[rows]))
    yield Finding(
        4,
        f"Collectives on the host ran for {duration(total)}, {share(total, span)} of {found.whole}; "
        f"{share(hidden, total)} of that beside operators of other threads.",
        f"{plural(len(rows), 'call')} on {plural(threads, 'thread')}: {counted(events, rows)} (a collective's time "
        "includes waiting for the slowest rank)",
        "overlap them with computation, or compare the ranks: the last to arrive makes the others wait"
        if hidden < total else "",
        "warn" if total - hidden > 0.2 * span else "ok",
    )  # fmt: skip


def jit(found: Analysis) -> Iterator[Finding]:
    events, measures = found.events, found.measures
    length = events.end - events.start
    if len(measures.compiles):
        total = int(length[measures.compiles].sum())
        yield Finding(2, f"Code was compiled for {duration(total)} during {found.whole}.",
                      f"{plural(len(measures.compiles), 'event')}: {counted(events, measures.compiles)}",
                      "warm up before measuring, and keep the compile caches between starts", "warn")  # fmt: skip
    if len(measures.loads):
        total = int(length[measures.loads].sum())
        yield Finding(2, f"Device code was loaded for {duration(total)} during {found.whole}.",
                      f"{plural(len(measures.loads), 'event')}: {counted(events, measures.loads)}",
                      "warm up before measuring (first use loads; CUDA_MODULE_LOADING=EAGER loads at start)",
                      "warn" if total > WORTH_SAYING * found.figures["span_ns"] else "ok")  # fmt: skip
    if len(measures.compiled_calls) and not len(measures.compiles):
        yield Finding(2, f"{plural(len(measures.compiled_calls), 'call')} of compiled graphs; nothing was compiled.",
                      counted(events, measures.compiled_calls), "")  # fmt: skip


def operators(found: Analysis) -> Iterator[Finding]:
    operators = found.operators
    if not operators:
        return
    total = found.figures["kernel_sum_ns"]
    # Inside a graph no operator is known to have launched anything; a small rest would be named the leader.
    if operators[0]["device_ns"] * 20 > total > 0:
        best = operators[0]
        yield Finding(
            4,
            f"{host.short(best['name'], 60)} launched {share(best['device_ns'], total)} of "
            + ("the kernel time that was recorded." if found.events.silent else "all kernel time."),
            "by kernel time: "
            + "; ".join(f"{host.short(e['name'], 50)}: {duration(e['device_ns'])} on the device, "
                        f"{duration(e['own_ns'])} own host time, {plural(e['calls'], 'call')}" for e in operators[:3]),
            "",
        )  # fmt: skip
    else:
        slowest = sorted(operators, key=lambda entry: -entry["own_ns"])[:3]
        best = slowest[0]
        own = sum(entry["own_ns"] for entry in operators)
        sentence = (
            f"{host.short(best['name'], 60)} took the most own time, {share(best['own_ns'], own)} of all operators'."
        )
        told = [f"{host.short(e['name'], 50)}: {duration(e['own_ns'])} own, {plural(e['calls'], 'call')}"
                for e in slowest]  # fmt: skip
        yield Finding(4, sentence, "by own host time: " + "; ".join(told), "")
