"""Numbers behind the findings, in all and per step: queue delays, gaps, waits, collectives, graphs, compiles."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers import columns, host, launch_cost
from tokentrace.importers.columns import Array, Events
from tokentrace.importers.host import Host
from tokentrace.importers.join import Joined, covered, merged, overlap_ns, union_ns
from tokentrace.importers.steps import Steps

COLLECTIVE = re.compile(
    r"nccl(Dev)?Kernel|rccl|oneccl|multimem_all|cross_device_reduce|(all|reduce)_?(reduce|gather|scatter)(?!.*(index|elementwise))"
    r"|all_?to_?all|AllReduce|ReduceScatter|AllGather|SendRecv|one_?shot_?all|two_?shot_?all",
    re.IGNORECASE,
)
#: Clocks of host and device are compared to the microsecond at best in recordings that hold whole microseconds.
_CLOCK_SLACK_NS = 1_000
#: A kernel that starts within twice the shortest delay after its launch found an empty queue; no launch takes longer.
_LONGEST_LATENCY_NS = 50_000


@dataclass(slots=True)
class Gap:
    """A stretch in which a device ran nothing. `starved`: its next kernel was launched only after the gap had begun,
    or so shortly before that it began as soon as a launch can take effect.
    None: that kernel's launch is not in the recording. `waiting_ns`: for so long the host was inside a call that
    waits for a device, so the device it waited for was busy with something the recording does not hold."""

    start_ns: int
    end_ns: int
    device: str
    next_kernel: int
    launch: int
    starved: bool | None
    waiting_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(slots=True)
class Measures:
    """See the attributes' names; all times ns. Along `joined.kernels`: `delay` (launch to start, -1 unknown) and
    `collective`; along the kernels and then the copies: `starved` and `gap_before` (of the gap that it ended)."""

    delay: Array
    starved: Array
    gap_before: Array
    tklqt_ns: int = 0
    delay_median_ns: int | None = None
    early_kernels: int = 0
    early_worst_ns: int = 0
    window_ns: int = 0
    idle_ns: int = 0
    copy_alone_ns: int = 0  # copies ran and no kernel did
    starved_ns: int = 0
    unknown_idle_ns: int = 0  # gaps whose next launch is not in the recording
    single_launches: int = 0  # kernels launched one by one, over which queue delays are taken
    gaps: list[Gap] = field(default_factory=list)
    launch_rate_per_s: float | None = None
    graph_kernels: int = 0
    captured: bool = False
    sync_calls: Array = field(default_factory=lambda: np.empty(0, np.int64))
    wait_copies: Array = field(default_factory=lambda: np.empty(0, np.int64))
    memory_calls: Array = field(default_factory=lambda: np.empty(0, np.int64))
    collective: Array = field(default_factory=lambda: np.empty(0, np.bool_))
    collective_ns: int = 0
    collective_hidden_ns: int = 0
    split: launch_cost.Split | None = None
    compiles: Array = field(default_factory=lambda: np.empty(0, np.int64))
    lookups: Array = field(default_factory=lambda: np.empty(0, np.int64))
    loads: Array = field(default_factory=lambda: np.empty(0, np.int64))
    compiled_calls: Array = field(default_factory=lambda: np.empty(0, np.int64))


def measure(events: Events, joined: Joined, tree: Host) -> Measures:
    count = len(joined.kernels)
    found = Measures(
        delay=np.full(count, -1, np.int64),
        starved=np.zeros(count + len(joined.copies), np.int64),
        gap_before=np.zeros(count + len(joined.copies), np.int64),
    )
    _delays(events, joined, found)
    found.sync_calls, found.wait_copies = host.blocking_calls(events, joined)
    found.memory_calls = joined.runtime[events.names_matching(gpu_events.MEMORY_CALL)[events.name[joined.runtime]]]
    _gaps(events, joined, found)
    _collectives(events, joined, found)
    found.graph_kernels = int(joined.under_graph.sum())
    if events.graph_nodes is not None:
        found.graph_kernels = max(found.graph_kernels, int(events.graph_nodes[joined.kernels].sum()))
    called = events.names_matching(gpu_events.CAPTURE)
    found.captured = bool(called[events.name[joined.runtime]].any()) or any(
        name.startswith(("capture_", "CudaGraphRunner.capture")) for name in events.names
    )
    found.split = launch_cost.split(events, joined, tree, found.sync_calls, found.wait_copies)
    _compiles(events, tree, found)
    return found


def _delays(events: Events, joined: Joined, found: Measures) -> None:
    """Launch start to kernel start, for kernels launched one by one. (In a graph only the first could be measured.)"""
    single = np.flatnonzero((joined.launch_of >= 0) & ~joined.under_graph)
    delay = events.start[joined.kernels[single]] - events.start[joined.launch_of[single]]
    found.single_launches = len(single)
    early = delay < -_CLOCK_SLACK_NS
    found.early_kernels = int(early.sum())
    found.early_worst_ns = int(-delay.min()) if found.early_kernels else 0
    delay = np.maximum(delay, 0)
    found.delay[single] = delay
    if len(single):
        found.tklqt_ns = int(delay.sum())
        found.delay_median_ns = int(np.sort(delay)[len(delay) // 2])
    launches = joined.all_launches
    if len(launches) > 1:
        span = int(events.start[launches].max() - events.start[launches].min())
        found.launch_rate_per_s = (len(launches) - 1) / span * 1e9 if span else None


def _gaps(events: Events, joined: Joined, found: Measures) -> None:
    """Stretches without kernel or copy on a device, and why: was the next kernel even launched when they began?"""
    kernels = joined.kernels
    gaps: list[Gap] = []
    waits = np.concatenate((found.sync_calls, found.wait_copies))
    waited = merged(events.start[waits], events.end[waits])
    known_delays = found.delay[found.delay > 0]
    soon = min(2 * int(known_delays.min()), _LONGEST_LATENCY_NS) if len(known_delays) else -1
    for device in columns.codes_in(events.device[kernels]):
        mine = np.flatnonzero(events.device[kernels] == device)
        copied = np.flatnonzero(events.device[joined.copies] == device)
        copies = joined.copies[copied]
        start = np.concatenate((events.start[kernels[mine]], events.start[copies]))
        end = np.concatenate((events.end[kernels[mine]], events.end[copies]))
        call = np.concatenate((joined.call_of[mine], joined.copy_call[copied]))
        owner = np.concatenate((mine, len(kernels) + copied))
        order = np.argsort(start, kind="stable")
        start, end, call, owner = start[order], end[order], call[order], owner[order]
        until = np.maximum.accumulate(end)
        found.window_ns += int(until[-1] - start[0])
        at = np.flatnonzero(start[1:] > until[:-1]) + 1  # rows that end a gap
        begin, stop = until[at - 1], start[at]
        length = stop - begin
        launch = call[at]
        known = launch >= 0
        starved = known & ((events.start[launch] >= begin) | (stop - events.start[launch] <= soon))
        waiting = np.where(starved, covered(stop, *waited) - covered(begin, *waited), 0)
        lack = np.where(starved, length - waiting, 0)
        found.idle_ns += int(length.sum())
        rows = kernels[mine]
        found.copy_alone_ns += union_ns(start, end) - union_ns(events.start[rows], events.end[rows])
        found.starved_ns += int(lack.sum())
        found.unknown_idle_ns += int(length[~known].sum())
        work = owner[at]
        found.gap_before[work] = length
        found.starved[work] = lack
        for number in np.argsort(-length, kind="stable")[:5].tolist():
            gaps.append(
                Gap(
                    int(begin[number]),
                    int(stop[number]),
                    events.devices[device],
                    int(kernels[work[number]]) if work[number] < len(kernels) else -1,
                    int(launch[number]),
                    bool(starved[number]) if known[number] else None,
                    int(waiting[number]),
                )
            )
    found.gaps = sorted(gaps, key=lambda gap: -gap.length_ns)[:5]


def _collectives(events: Events, joined: Joined, found: Measures) -> None:
    is_collective = events.names_with(COLLECTIVE)
    found.collective = is_collective[events.name[joined.kernels]]
    if not bool(found.collective.any()):
        return
    for device in columns.codes_in(events.device[joined.kernels]):
        rows = joined.kernels[events.device[joined.kernels] == device]
        talk = rows[is_collective[events.name[rows]]]
        work = rows[~is_collective[events.name[rows]]]
        talking = merged(events.start[talk], events.end[talk])
        found.collective_ns += int((talking[1] - talking[0]).sum())
        found.collective_hidden_ns += overlap_ns(talking, merged(events.start[work], events.end[work]))


def _compiles(events: Events, tree: Host, found: Measures) -> None:
    rows = tree.rows
    compiling = np.zeros(len(events) + 1, np.bool_)
    compiling[rows[events.names_with(host.COMPILE)[events.name[rows]]]] = True
    calls = rows[events.kind[rows] == gpu_events.RUNTIME]
    loading = calls[events.names_matching(gpu_events.MODULE_LOAD)[events.name[calls]]]
    overhead = events.rows(gpu_events.OVERHEAD)
    lazy = overhead[events.names_matching(host.LOADING)[events.name[overhead]]]
    found.loads = np.concatenate((loading, lazy))
    # The outermost only: dynamo's timers nest.
    inner = host.nearest(tree.parent, compiling)[tree.parent] >= 0
    found.compiles = np.flatnonzero(compiling[:-1] & ~inner[:-1])
    found.lookups = rows[events.names_matching(host.LOOKUP)[events.name[rows]]]
    marks = events.rows(gpu_events.ANNOTATION)
    found.compiled_calls = marks[events.names_matching(host.COMPILED_CALL)[events.name[marks]]]


def per_step(events: Events, joined: Joined, steps: Steps, found: Measures) -> list[dict[str, Any]]:
    """The same numbers for each step, by the kernels and copies it launched and the calls that lie in it."""
    count = len(steps.steps)
    owner = steps.of_kernel
    tklqt, starved, idle, graph, talk = (np.zeros(count, np.int64) for _ in range(5))
    owned = owner >= 0
    np.add.at(tklqt, owner[owned], np.maximum(found.delay[owned], 0))
    of_work = np.concatenate((owner, steps.of_copy))
    np.add.at(starved, of_work[of_work >= 0], found.starved[of_work >= 0])
    np.add.at(idle, of_work[of_work >= 0], found.gap_before[of_work >= 0])
    np.add.at(graph, owner[owned], joined.under_graph[owned])
    comparable = not found.early_kernels  # else the clocks of host and device disagree
    duration = (events.end - events.start)[joined.kernels]
    np.add.at(talk, owner[owned], np.where(found.collective, duration, 0)[owned])
    judged = comparable and not events.silent
    result = []
    waits = np.concatenate((found.sync_calls, found.wait_copies))
    order = np.argsort(owner, kind="stable")
    for number, step in enumerate(steps.steps):
        first, last = np.searchsorted(owner[order], [number, number + 1])
        delays = found.delay[order[first:last]]
        delays = np.sort(delays[delays >= 0])
        inside = (events.start[waits] >= step.start_ns) & (events.start[waits] <= step.host_end_ns)
        span = step.end_ns - step.start_ns
        result.append(
            {
                "tklqt_ns": int(tklqt[number]) if comparable else None,
                "queue_delay_median_ns": int(delays[len(delays) // 2]) if len(delays) and comparable else None,
                "gaps_ns": None if events.silent else int(idle[number]),
                "starved_ns": int(starved[number]) if judged else None,
                "starved_share": round(int(starved[number]) / span, 6) if span and judged else None,
                "blocked_ns": int((events.end - events.start)[waits[inside]].sum()),
                "graph_kernels": int(graph[number]),
                "collective_ns": int(talk[number]),
            }
        )
    return result
