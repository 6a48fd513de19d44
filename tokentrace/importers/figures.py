"""The figures of a recording and of each of its steps. Everything is counted in integers of nanoseconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokentrace.importers import columns
from tokentrace.importers.columns import Array, Events
from tokentrace.importers.join import Joined, union_ns
from tokentrace.importers.steps import Steps

TOP = 5


def figures(events: Events, joined: Joined) -> dict[str, Any]:
    """Figures of the whole recording.

    kernels; launches (kernel and graph launches), graph_launches; matched: kernels whose correlation id is that of a
    launch; orphan_kernels: kernels with no runtime call of the same id at all; busy_ns: union of the kernels' times,
    per device, then summed; span_ns: first start to last end of all events; idle_share: 1 - busy/span, for one
    device only, else None (each device's own is in `devices`); top_kernels by total time.
    """
    counted = np.flatnonzero(events.kind != columns.ENVELOPE)
    span = int(events.end[counted].max() - events.start[counted].min()) if len(counted) else 0
    found = _figures(events, joined, np.arange(len(joined.kernels)), span)
    launches = len(joined.launches) + len(joined.graph_launches)
    found["launches"], found["graph_launches"] = launches, len(joined.graph_launches)
    return found


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
        found = _figures(events, joined, order[first:last], step.end_ns - step.start_ns)
        found["graph_launches"] = int(graph_launches[number])
        found["launches"] = int(kernel_launches[number] + graph_launches[number])
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
    at = np.searchsorted(start, events.start[rows], "right") - 1
    hit = (at >= 0) & (events.start[rows] <= end[np.maximum(at, 0)])
    np.add.at(counts, at[hit], 1)
    return counts


def _figures(events: Events, joined: Joined, which: Array, span_ns: int) -> dict[str, Any]:
    rows = joined.kernels[which]
    start, end = events.start[rows], events.end[rows]
    devices = []
    for device in np.unique(events.device[rows]).tolist():
        mine = events.device[rows] == device
        busy = union_ns(start[mine], end[mine])
        devices.append({"device": events.devices[device], "kernels": int(mine.sum()), "busy_ns": busy,
                        "idle_share": _idle(busy, span_ns)})  # fmt: skip
    busy = sum(device["busy_ns"] for device in devices)
    return {
        "kernels": len(rows),
        "launches": 0,
        "graph_launches": 0,
        "matched": int((joined.launch_of[which] >= 0).sum()),
        "orphan_kernels": int((joined.call_of[which] < 0).sum()),
        "busy_ns": busy,
        "span_ns": span_ns,
        "idle_share": _idle(busy, span_ns) if len(devices) == 1 else None,
        "top_kernels": top(events, rows),
        "kernel_sum_ns": int((end - start).sum()),
        "devices": devices,
    }


def _idle(busy_ns: int, span_ns: int) -> float | None:
    return round(1 - busy_ns / span_ns, 6) if span_ns > 0 else None


def top(events: Events, rows: Array, count: int = TOP) -> list[dict[str, Any]]:
    """The names with the largest total time among these rows: name, count, total_ns."""
    total = np.zeros(len(events.names), np.int64)
    np.add.at(total, events.name[rows], events.end[rows] - events.start[rows])
    calls = np.bincount(events.name[rows], minlength=len(events.names))
    merged: dict[str, list[int]] = {}
    for code in np.flatnonzero(calls).tolist():
        entry = merged.setdefault(events.names[code], [0, 0])
        entry[0] += int(calls[code])
        entry[1] += int(total[code])
    best = sorted(merged.items(), key=lambda item: (-item[1][1], item[0]))[:count]
    return [{"name": name, "count": calls_, "total_ns": total_} for name, (calls_, total_) in best]
