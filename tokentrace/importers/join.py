"""Who launched what: kernels and copies to runtime calls by correlation id, calls to operators by id or by time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers.columns import NONE, Array, Events


@dataclass(slots=True)
class Joined:
    """Row numbers into Events; -1 stands for "none".

    `launch_of` and `call_of` run along `kernels`: the kernel or graph launch with the kernel's correlation id, and
    any runtime call with it. `copy_call` runs along `copies`. `under_graph`: the kernel came out of a graph launch.
    """

    kernels: Array
    copies: Array
    runtime: Array
    launches: Array
    graph_launches: Array
    launch_of: Array
    call_of: Array
    copy_call: Array
    under_graph: Array

    @property
    def all_launches(self) -> Array:
        return np.concatenate((self.launches, self.graph_launches))


def join(events: Events) -> Joined:
    """Join by correlation id. Ids count per process; one Events holds one process or ids made unique by process."""
    runtime = events.rows(gpu_events.RUNTIME)
    kernels = events.rows(gpu_events.KERNEL)
    copies = events.rows(gpu_events.MEMCPY, gpu_events.MEMSET)
    called = events.name[runtime]
    is_launch = events.names_matching(gpu_events.LAUNCH)[called]
    is_graph = events.names_matching(gpu_events.GRAPH_LAUNCH)[called]
    launches, graphs = runtime[is_launch], runtime[is_graph]
    both = runtime[is_launch | is_graph]
    launch_of = _lookup(events, kernels, both)
    graph_row = np.zeros(len(events) + 1, np.bool_)
    graph_row[graphs] = True
    return Joined(
        kernels=kernels,
        copies=copies,
        runtime=runtime,
        launches=launches,
        graph_launches=graphs,
        launch_of=launch_of,
        call_of=_lookup(events, kernels, runtime),
        copy_call=_lookup(events, copies, runtime),
        under_graph=graph_row[launch_of],
    )


def _lookup(events: Events, rows: Array, among: Array) -> Array:
    """For each of `rows` the earliest of `among` with the same correlation id."""
    among = among[events.correlation[among] != NONE]
    at = gpu_events.first_with_id(events.correlation[rows], events.correlation[among], events.start[among])
    found: Array = np.append(among, -1)[at]
    return found


def by_external_id(events: Events, joined: Joined) -> Array:
    """For each kernel the operator its External id names, only where that proves itself; else -1.

    Proof: the call that launched the kernel starts inside that operator, on that thread. Old recordings write the
    correlation id into this field, which then names an unrelated operator or none.
    """
    named = events.rows(gpu_events.OPERATOR, gpu_events.ANNOTATION)
    external = events.external[named]
    usable = external != NONE
    named, external = named[usable], external[usable]
    result = np.full(len(joined.kernels), -1, np.int64)
    if not len(named) or not len(joined.kernels):
        return result
    # The last operator with an id wins, as in the tools that write it.
    order = np.argsort(external, kind="stable")
    named, external = named[order], external[order]
    wanted = events.external[joined.kernels]
    at = np.searchsorted(external, wanted, "right") - 1
    operator = named[np.maximum(at, 0)]
    call = joined.call_of
    start = events.start[call]
    proven = (
        (at >= 0)
        & (external[np.maximum(at, 0)] == wanted)
        & (wanted != NONE)
        & (call >= 0)
        & (events.track[operator] == events.track[call])
        & (events.start[operator] <= start)
        & (start <= events.end[operator])
    )
    return np.where(proven, operator, -1)


def union_ns(start: Array, end: Array) -> int:
    """Length of the union of intervals, ns."""
    first, last = merged(start, end)
    return int((last - first).sum())


def merged(start: Array, end: Array) -> tuple[Array, Array]:
    """The union of intervals as disjoint intervals in order."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    fresh = np.flatnonzero(np.concatenate(([True], start[1:] > end[:-1])))
    return start[fresh], end[np.concatenate((fresh[1:] - 1, [len(end) - 1]))]


def holder(point: Array, start: Array, end: Array) -> Array:
    """For each point, of intervals in order of start, the number of the one that began last before it, if that holds
    it (ends included); else -1."""
    if not len(start):
        return np.full(len(point), -1, np.int64)
    at = np.searchsorted(start, point, "right") - 1
    return np.where((at >= 0) & (point <= end[np.maximum(at, 0)]), at, -1)


def covered(point: Array, start: Array, end: Array) -> Array:
    """For each point the length of these disjoint, ordered intervals before it, ns."""
    if not len(start):
        return np.zeros(len(point), np.int64)
    before = np.concatenate(([0], np.cumsum(end - start)))
    at = np.searchsorted(start, point, "right") - 1
    within: Array = before[at + 1] - np.where(at >= 0, np.maximum(end[np.maximum(at, 0)] - point, 0), 0)
    return np.where(at >= 0, within, 0)


def overlap_ns(a: tuple[Array, Array], b: tuple[Array, Array]) -> int:
    """Length of the intersection of two unions of intervals (each disjoint and ordered), ns."""
    both_start = np.concatenate((a[0], b[0]))
    both_end = np.concatenate((a[1], b[1]))
    return int((a[1] - a[0]).sum()) + int((b[1] - b[0]).sum()) - union_ns(both_start, both_end)


def nest(events: Events, rows: Array) -> tuple[Array, Array]:
    """(rows in order of track, start and falling end; for each the row of the smallest one that contains it, or -1),
    see `gpu_events.nest`."""
    order, parents = gpu_events.nest(events.start[rows], events.end[rows], events.track[rows])
    return rows[order], np.append(rows, -1)[parents]
