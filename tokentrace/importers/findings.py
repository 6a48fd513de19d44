"""What a recording tells, one sentence each with its evidence and the next step. Silent where the data cannot tell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers import _device_findings as device
from tokentrace.importers import _gap_findings as of_gaps
from tokentrace.importers import _host_findings as of_host
from tokentrace.importers._analysis import RECORDING, WINDOW, Analysis
from tokentrace.importers.columns import LOOK_BACK_NS, Array
from tokentrace.probe import Finding
from tokentrace.wording import duration, plural


def findings(found: Analysis) -> list[Finding]:
    """In the order to read them: what is missing, how busy the device was, why it was not, then who took the time."""
    result: list[Finding] = []
    for part in (
        *(_lost, _no_kernels, _whole_graphs, _orphans, _captured, device.busy, device.copies, device.launch_bound),
        *(
            device.clocks,
            of_gaps.before_the_first,
            of_gaps.gaps,
            device.waits,
            device.memory,
            of_host.host_time,
            device.graphs,
        ),
        *(device.collectives, of_host.collectives, of_host.jit, of_host.operators, device.kernels, _steps),
    ):
        result += part(found)
    return result


def _lost(found: Analysis) -> Iterator[Finding]:
    lost = found.events.lost
    if lost.reasons or lost.events:
        yield Finding(
            4,
            f"The recording is damaged: {'; '.join(lost.reasons)}.",
            f"events read: {found.events.total_events:,}, lost: at least {lost.events:,}",
            "record again and let the profiler finish writing",
            "warn",
        )


def _no_kernels(found: Analysis) -> Iterator[Finding]:
    """Why no kernel is there, where none is."""
    figures, events = found.figures, found.events
    if figures["kernels"]:
        return
    operators = int((events.kind == gpu_events.OPERATOR).sum())
    if (figures["launches"] or operators) and events.lost.tears(len(events)):
        yield Finding(
            4,
            f"Whether the device ran anything cannot be told: no kernel is in what is left of {found.whole}.",
            f"{plural(operators, 'operator')}, {plural(figures['launches'], 'launch', 'launches')}, 0 kernels; "
            + "; ".join(events.lost.reasons),
            "record again and let the profiler finish writing",
            "unknown",
        )
    elif figures["launches"] and not found.measures.captured and not events.facts.get("graph_traces"):
        yield Finding(
            4,
            "Launches were seen but their kernels were not recorded: the profiler was blind to the device.",
            f"{figures['launches']:,} launches, 0 kernels",
            "check that no other profiler holds CUPTI or roctracer, that the container may use it "
            "(--cap-add SYS_ADMIN or NVreg_RestrictProfilingToAdminUsers=0), and that ProfilerActivity.CUDA is on",
            "fail",
        )
    elif operators and not len(found.joined.runtime):
        yield _host_only(found, operators)
    elif not operators and not figures["launches"]:
        count = events.total_events if found.whole == RECORDING else len(events)
        yield Finding(4, f"{found.whole.capitalize()} holds neither operators nor launches nor kernels.",
                      f"{plural(count, 'event')} of other kinds",
                      "record with torch.profiler, nsys or rocprofv3", "unknown")  # fmt: skip


def _host_only(found: Analysis, operators: int) -> Finding:
    events = found.events
    devices = events.facts.get("devices") or []
    # The collectives' backend gives a device away too: nccl (and rccl under that name) runs on GPUs only.
    sign = f"{len(devices)} × {devices[0]}" if devices else ""
    if not sign and "nccl" in str(events.facts.get("backend", "")):
        sign = "its collectives use nccl"
    if sign:
        return Finding(
            4,
            "Only the host was recorded: the file tells of a device, but holds neither launches nor kernels.",
            f"{operators:,} operators; {sign}",
            "record with ProfilerActivity.CUDA as well, or take the file of a rank whose device was recorded",
            "unknown",
        )
    return Finding(
        5,
        "The model ran on the CPU, or its device was not recorded: operators, but no launch and no kernel.",
        f"{operators:,} operators, 0 launches, 0 kernels",
        "move the model to the device (model.to('cuda')), or record with ProfilerActivity.CUDA if it was there",
        "warn",
    )


def _whole_graphs(found: Analysis) -> Iterator[Finding]:
    if traces := found.events.facts.get("graph_traces"):
        yield Finding(
            3,
            f"{traces:,} graph executions were recorded as a whole; the kernels in them are missing from all figures.",
            "the export has CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            "record with 'nsys profile --cuda-graph-trace=node'",
            "warn",
        )


def _orphans(found: Analysis) -> Iterator[Finding]:
    """Kernels without a call. Calls are looked for in the recording, also where only a part of it is looked at."""
    figures, events, joined = found.figures, found.events, found.joined
    orphans = figures["orphan_kernels"]
    if not orphans:
        return
    if orphans == figures["kernels"]:
        damaged = events.lost.tears(len(events))
        yield Finding(
            3,
            f"No launch {'is left in the recording' if damaged else 'was recorded'}, so nothing can be said about who "
            "launched the kernels.",
            f"{plural(orphans, 'kernel')}, {plural(len(joined.runtime), 'runtime call')}",
            "record again" if damaged else "record runtime calls too (rocprofv3 --hip-trace, nsys -t cuda)",
            "unknown",
        )
        return
    rows = joined.kernels[joined.call_of < 0]
    before = _queued_before(found, rows) if found.whole == RECORDING else 0
    if before == orphans:
        why = "they were queued before the recording began"
    elif before:
        why = f"{before:,} were queued before the recording began, the launches of the others are not in the file"
    else:
        why = "their launches are not in the file"
    windowed = found.whole == WINDOW
    yield Finding(
        3,
        f"{orphans:,} of {figures['kernels']:,} kernels have no launch in the recording: {why}.",
        f"together {duration(int((events.end - events.start)[rows].sum()))}; they count as busy time"
        + (f"; launches were looked for up to {duration(LOOK_BACK_NS)} before the window" if windowed else ""),
        "" if before == orphans else "start the profiler before, and stop it after, a synchronisation",
        "ok",
    )


def _queued_before(found: Analysis, rows: Array) -> int:
    """How many of these kernels without a call were handed to the device before the recording began.

    Correlation ids rise with time in each process (whose number stands above bit 40 where there are several), so a
    kernel whose id is lower than that of its process's first call was. Without ids: all that ran before the first
    kernel with a call.
    """
    events, joined = found.events, found.joined
    called = events.correlation[joined.runtime]
    called, ids = called[called > 0], events.correlation[rows]
    if len(called) and bool((ids > 0).all()):
        processes, at = np.unique(called >> 40, return_inverse=True)
        lowest = np.full(len(processes), np.iinfo(np.int64).max)
        np.minimum.at(lowest, at, called)
        near = np.minimum(np.searchsorted(processes, ids >> 40), len(processes) - 1)
        return int(((processes[near] == ids >> 40) & (ids < lowest[near])).sum())
    owned = joined.kernels[joined.call_of >= 0]
    return len(rows) if bool((events.start[rows] < events.start[owned].min()).all()) else 0


def _captured(found: Analysis) -> Iterator[Finding]:
    figures, launch_of = found.figures, found.joined.launch_of
    if not found.measures.captured or figures["launches"] <= figures["matched"]:
        return
    unmatched = figures["launches"] - len(np.unique(launch_of[launch_of >= 0]))
    if unmatched > 0:
        yield Finding(
            3,
            f"{unmatched:,} launches were captured into a graph and ran nothing: this is no normal step.",
            f"{figures['launches']:,} launches, {figures['kernels']:,} kernels",
            "for times, record a step in which the graph is replayed",
        )


def _steps(found: Analysis) -> Iterator[Finding]:
    steps = found.step_figures
    if len(steps) < 3:
        return
    spans = sorted(step["span_ns"] for step in steps)
    middle = spans[len(spans) // 2]
    worst = max(steps, key=lambda step: step["span_ns"])
    if middle and worst["span_ns"] >= 1.5 * middle:
        yield Finding(
            6,
            f"Step {worst['index']} took {worst['span_ns'] / middle:.1f} times as long as the median step.",
            f"{duration(worst['span_ns'])}, median {duration(middle)} of {len(steps)} steps; busy "
            f"{duration(worst['busy_ns'])}, {worst['kernels']:,} kernels, host {duration(worst['host_ns'])}",
            f"look at it alone: --step {worst['index']}",
            "warn",
        )
