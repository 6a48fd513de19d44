"""The figures of a recording and of each of its steps. Everything is counted in integers of nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tokentrace.importers import columns
from tokentrace.importers.columns import Array, Events
from tokentrace.importers.join import Joined, holder, union_ns
from tokentrace.importers.steps import Steps

TOP = 5


def figures(events: Events, joined: Joined) -> dict[str, Any]:
    """Figures of the whole recording.

    kernels; launches (kernel and graph launches), graph_launches; matched: kernels whose correlation id is that of a
    launch; orphan_kernels: kernels with no runtime call of the same id at all; busy_ns: union of the kernels' times,
    per device, then summed; span_ns: first start to last end of all events; idle_share: 1 - busy/span, for one
    device only, else None (each device's own is in `devices`), and None where kernels are missing from the
    recording; top_kernels by total time.
    """
    counted = events.inside()
    span = int(events.end[counted].max() - events.start[counted].min()) if len(counted) else 0
    every = np.arange(len(joined.kernels))
    single, graphs = (
        int((events.start[rows] >= events.window_begin).sum()) for rows in (joined.launches, joined.graph_launches)
    )
    return _figures(events, joined, every, single, graphs, span)


def step_figures(events: Events, joined: Joined, steps: Steps) -> list[dict[str, Any]]:
    """One entry a step: its name, index and times, and the figures of the kernels it launched.

    span_ns runs from the step's start to the end of its last kernel or of its annotation, whichever is later.
    """
    result = []
    order = np.argsort(steps.of_kernel, kind="stable")
    owner = steps.of_kernel[order]
    kernel_launches = _in_steps(events, steps, joined.launches)
    graph_launches = _in_steps(events, steps, joined.graph_launches)
    for number, step in enumerate(steps.steps):
        first, last = np.searchsorted(owner, [number, number + 1])
        launches, graphs = int(kernel_launches[number]), int(graph_launches[number])
        found = _figures(events, joined, order[first:last], launches, graphs, step.end_ns - step.start_ns)
        result.append(
            {
                "index": step.index,
                "name": step.name,
                "start_ns": events.absolute(step.start_ns),
                "host_ns": step.host_end_ns - step.start_ns,
                **{key.removeprefix("tokentrace.step."): value for key, value in step.attributes.items()},
                **found,
            }
        )
    return result


def _in_steps(events: Events, steps: Steps, rows: Array) -> Array:
    """How many of these rows start in each step. A row of another thread counts where its time lies."""
    counts = np.zeros(len(steps.steps), np.int64)
    if not len(steps.steps) or not len(rows):
        return counts
    start = np.array([step.start_ns for step in steps.steps])
    end = np.array([step.host_end_ns for step in steps.steps])
    at = holder(events.start[rows], start, end)
    np.add.at(counts, at[at >= 0], 1)
    return counts


def _figures(
    events: Events, joined: Joined, which: Array, launches: int, graph_launches: int, span_ns: int
) -> dict[str, Any]:
    rows = joined.kernels[which]
    start, end = events.start[rows], events.end[rows]
    devices: list[dict[str, Any]] = []
    silent = events.silent
    for device in columns.codes_in(events.device[rows]):
        mine = events.device[rows] == device
        busy = union_ns(start[mine], end[mine])
        devices.append({"device": events.devices[device], "kernels": int(mine.sum()), "busy_ns": busy,
                        "idle_share": None if silent else idle(busy, span_ns)})  # fmt: skip
    busy = sum(device["busy_ns"] for device in devices)
    return {
        "kernels": len(rows),
        "launches": launches + graph_launches,
        "graph_launches": graph_launches,
        "matched": int((joined.launch_of[which] >= 0).sum()),
        "orphan_kernels": int((joined.call_of[which] < 0).sum()),
        "busy_ns": busy,
        "span_ns": span_ns,
        "idle_share": idle(busy, span_ns) if len(devices) == 1 and not silent else None,
        "top_kernels": top(by_name(events, rows)),
        "kernel_sum_ns": int((end - start).sum()),
        "devices": devices,
    }


def idle(busy_ns: int, span_ns: int) -> float | None:
    return round(1 - busy_ns / span_ns, 6) if span_ns > 0 else None


def by_name(events: Events, rows: Array) -> list[tuple[str, int, int]]:
    """(name, count, total ns) of these rows. A name may come twice."""
    total = np.zeros(len(events.names), np.int64)
    np.add.at(total, events.name[rows], events.end[rows] - events.start[rows])
    calls = np.bincount(events.name[rows], minlength=len(events.names))
    return [(events.names[code], int(calls[code]), int(total[code])) for code in np.flatnonzero(calls).tolist()]


def top(named: Iterable[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Of what `by_name` gave, once or for several recordings, the names with the largest total time."""
    merged: dict[str, list[int]] = {}
    for name, count, total_ns in named:
        entry = merged.setdefault(name, [0, 0])
        entry[0] += count
        entry[1] += total_ns
    best = sorted(merged.items(), key=lambda item: (-item[1][1], item[0]))[:TOP]
    return [{"name": name, "count": count, "total_ns": total_ns} for name, (count, total_ns) in best]
