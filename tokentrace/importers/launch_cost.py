"""What a launch costs the host: the time of the launching threads by whose it is, without what they only waited."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers import columns
from tokentrace.importers.columns import Array, Events
from tokentrace.importers.host import Host, nearest, own_syncs
from tokentrace.importers.join import Joined

#: A beginning without GPU work is told apart from this share of the recording on.
LONG_START = 0.2
#: Nodes of autograd's graph, which its own threads run while the thread that called backward() waits. Before torch 1.8
#: only the function of a node was recorded.
_AUTOGRAD = re.compile(r"^autograd::engine::evaluate_function: |^torch::autograd::|\wBackward\d*$")
#: A launch that finds its queue full waits until the device has taken something out. CUDA's queues hold about 1,000
#: pieces of work; so many that wait, and a call so many times as long as most, are no longer the cost of a launch.
_FULL_QUEUE = 512
_LONG_CALL = 3


@dataclass(slots=True)
class Split:
    """Host time of the threads that launch, ns, by whose it is. The first five add up to `total_ns`; the last two are
    parts of `blocked_ns`."""

    framework_ns: int
    library_ns: int
    memory_ns: int
    launch_ns: int
    blocked_ns: int
    calls: int
    backward_ns: int
    full_queue_ns: int

    @property
    def working_ns(self) -> int:
        return self.framework_ns + self.library_ns + self.memory_ns + self.launch_ns

    @property
    def total_ns(self) -> int:
        return self.working_ns + self.blocked_ns


_FRAMEWORK, _LIBRARY, _MEMORY, _LAUNCH, _BLOCKED = range(5)


def split(events: Events, joined: Joined, host: Host, sync: Array, copies: Array) -> Split | None:
    """Where the launching threads' time went, None when there are no operators to tell.

    launch: inside launch calls. blocked: inside synchronisations and copies that wait, in a call for whose queue the
    device was too slow, and in backward() while autograd's own thread works. memory: memory asked of the driver.
    library: other runtime calls, and the own time of operators that launch directly (choosing and setting up the
    kernel: cuBLAS, cuDNN, Triton front ends live there). framework: own time of everything else, Python and operator
    dispatch. Of a recording that begins with a long start-up, what was over before the first launch is left out: it is
    no part of any launch's cost.
    """
    launches = joined.all_launches
    if not len(launches) or not bool((events.kind == gpu_events.OPERATOR).any()):
        return None
    threads = np.unique(events.track[launches])
    rows = host.rows[np.isin(events.track[host.rows], threads)]
    group = np.full(len(events) + 1, _FRAMEWORK, np.int8)
    group[joined.runtime] = _LIBRARY
    direct = host.parent[launches]
    direct = direct[direct >= 0]
    group[direct[events.kind[direct] == gpu_events.OPERATOR]] = _LIBRARY
    group[joined.runtime[events.names_matching(gpu_events.MEMORY_CALL)[events.name[joined.runtime]]]] = _MEMORY
    group[launches] = _LAUNCH
    group[sync] = _BLOCKED
    group[copies] = _BLOCKED
    rows = rows[~np.isin(rows, np.setdiff1d(sync, own_syncs(events, joined, sync)))]
    start = events.start[launches]
    counted = events.inside()
    begin, until = (
        int(events.start[counted].min(initial=start.min())),
        int(events.end[counted].max(initial=start.max())),
    )
    if start.min() - begin >= LONG_START * (until - begin):
        rows = rows[events.end[rows] > start.min()]
    sums = [int(host.own_ns[rows[group[rows] == number]].sum()) for number in range(5)]
    backward = full = 0
    taken = np.zeros(len(events) + 1, np.bool_)
    taken[rows] = True
    for row, waited in (*_in_backward(events, host, threads), *_for_a_full_queue(events, joined)):
        if taken[row] and group[row] != _BLOCKED:
            sums[int(group[row])] -= waited
            sums[_BLOCKED] += waited
            if group[row] == _LAUNCH or events.kind[row] == gpu_events.RUNTIME:
                full += waited
            else:
                backward += waited
    framework, library, memory, launch, blocked = sums
    return Split(framework, library, memory, launch, blocked, len(launches), backward, full)


def _in_backward(events: Events, host: Host, threads: Array) -> list[tuple[int, int]]:
    """(row, ns for which its thread waited in it): the thread did nothing that was recorded, and nodes of autograd's
    graph began and ended on another thread of its process meanwhile. What that thread did before and behind them in
    the same stretch, such as DDP's last copies, was waited for too."""
    nodes = events.rows(gpu_events.OPERATOR)
    nodes = nodes[events.names_with(_AUTOGRAD)[events.name[nodes]]]
    is_node = np.zeros(len(events) + 1, np.bool_)
    is_node[nodes] = True
    in_node = nearest(host.parent, is_node) >= 0
    waits: list[tuple[int, int]] = []
    for thread in threads.tolist():
        process = events.tracks[thread][0]
        near = [other for other in np.unique(events.track[nodes]).tolist()
                if other != thread and events.tracks[other][0] == process]  # fmt: skip
        theirs = host.rows[np.isin(events.track[host.rows], near)]
        if not len(theirs):
            continue
        instants, inner = _innermost(events, host, thread)
        start, end = events.start[theirs], events.end[theirs]
        at = np.searchsorted(instants, start, "right") - 1
        alone = (at >= 0) & (np.searchsorted(instants, end, "left") - 1 <= at)
        alone &= np.isin(at, at[alone & is_node[theirs]])
        order = np.flatnonzero(alone)[np.argsort(at[alone], kind="stable")]
        at, start, end = at[order], start[order], end[order]
        first = np.flatnonzero(np.diff(at, prepend=-1))  # of each stretch
        if len(first):
            waited = np.maximum.reduceat(end, first) - np.minimum.reduceat(start, first)
            waits += zip(inner[at[first]].tolist(), waited.tolist(), strict=True)
    # A thread inside a call, or inside a node itself, works, whatever others do beside it.
    return [(row, ns) for row, ns in waits if row >= 0 and not in_node[row] and events.kind[row] != gpu_events.RUNTIME]


def _innermost(events: Events, host: Host, thread: int) -> tuple[Array, Array]:
    """(instants at which rows of the thread begin and end, in order; the innermost row from each on, -1 none)."""
    place = np.flatnonzero((events.track[host.rows] == thread) & (events.end[host.rows] > events.start[host.rows]))
    rows = host.rows[place]
    instants = np.concatenate((events.end[rows], events.start[rows]))
    inner = np.concatenate((host.parent[rows], rows))
    begins = np.repeat([0, 1], len(rows))
    # At one instant the inner rows end first, then the outer ones begin first.
    order = np.lexsort((np.concatenate((-place, place)), begins, instants))
    return instants[order], inner[order]


def _for_a_full_queue(events: Events, joined: Joined) -> list[tuple[int, int]]:
    """(call, ns for which it waited) of launches and copies that were long while about a queue of earlier work was
    still to be done. What such a call usually takes is still counted as its own."""
    if events.silent or not len(joined.launches):
        return []
    length = events.end - events.start
    usual = int(np.median(length[joined.launches]))
    copy_calls = joined.runtime[events.names_matching(gpu_events.COPY_CALL)[events.name[joined.runtime]]]
    calls = np.concatenate((joined.launches, copy_calls))
    long = calls[length[calls] > _LONG_CALL * usual]
    if not len(long):
        return []
    work = np.concatenate((joined.kernels, joined.copies))
    call = np.concatenate((joined.call_of, joined.copy_call))
    asked = np.zeros(len(events) + 1, np.bool_)
    asked[call[call >= 0]] = True
    result = []
    for track in columns.codes_in(events.track[long]):
        mine = np.unique(events.device[work[(call >= 0) & (events.track[call] == track)]])
        theirs = work[np.isin(events.device[work], mine)]
        owner = call[np.isin(events.device[work], mine)]
        # Work without a call was handed over before the recording began; of a call without work, it was never reached.
        handed = np.where(owner >= 0, events.start[owner], np.iinfo(np.int64).min)
        never = joined.launches[(events.track[joined.launches] == track) & ~asked[joined.launches]]
        handed = np.sort(np.concatenate((handed, events.start[never])))
        done = np.sort(events.end[theirs])
        rows = long[events.track[long] == track]
        left = np.searchsorted(handed, events.start[rows], "left") - np.searchsorted(done, events.end[rows], "right")
        full = rows[left >= _FULL_QUEUE]
        result += [(row, int(length[row]) - usual) for row in full.tolist()]
    return result
