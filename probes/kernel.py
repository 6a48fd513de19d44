"""Layer 3: which kernels ran, who launched them, and how long they queued.

On a GPU (CUPTI, roctracer): `launch X` is the host's call, `kernel X` and `copy X` the device's work, joined by
correlation id; a graph launch owns many kernels. A kernel outlives its launch, so its parent is the engine step that
waits for it and a link leads to the launch; where the step is not known the request is the parent. Device work whose
call is not in the recording is kept, without a link, and counted. `sync X` are the calls in which the host waits.

On a CPU there is no launch: `kernel X` are the C++ kernels that inductor generated (they report their times when
torch._inductor.config.cpp.enable_kernel_profile was on as they were compiled), and `leaf X` the operators that call
nothing further. What happens inside those (MKL, oneDNN, hand-written loops) cannot be seen.

Attributes: tokentrace.kernel.name, .kind, .correlation, .stream, .geometry ("[grid] x [block]"), .graph, .bytes,
.queue_delay_ns (launch start to kernel start), .calls (device work of a launch); tokentrace.duration_ns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tokentrace import gpu_events
from tokentrace.model import Attributes, Record
from tokentrace.probe import ProbeContext
from tokentrace.probes import _kineto, _ops
from tokentrace.probes._kineto import Events, Launches

LAYER = 3
EAGER = "eager mode on a CPU: no kernel reports its time there; the leaf operators are the last thing that can be seen"
COMPILED = "on a CPU: the C++ kernels of compiled code are seen, beside them the leaf operators are the last thing"
SILENT = (
    "on a CPU compiled code tells the times of its kernels only if torch._inductor.config.cpp.enable_kernel_profile "
    "was on as it was compiled; the leaf operators are the last thing that can be seen"
)
NO_KERNELS = "the profiler watched the {device} device and got no kernel from it"
NO_KERNELS_FIX = (
    "let the driver's tracing interface in (NVIDIA: NVreg_RestrictProfilingToAdminUsers=0, no other profiler on the "
    "device; AMD: access to /dev/kfd)"
)


class KernelProbe(_ops.OpsProbe):
    """See the module's docstring."""

    layer = LAYER

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        steps = _ops.steps(context)
        found = _ops.events(context, steps, self.state)
        if not _ops.on_device(found):
            return self._on_cpu(found, context)
        records: list[Record] = []
        parents = _Parents(steps, context.request_id)
        for part in found:
            records += _device_records(part, parents, self.state.facts)
        orphans = self.state.facts.get("orphans", 0)
        if orphans:
            self._say(f"{orphans} of {self.state.facts['kernels']} kernels and copies have no launch in the recording")
        return records

    def _on_cpu(self, found: Sequence[Events], context: ProbeContext) -> list[Record]:
        records: list[Record] = []
        compiled = 0
        for part in found:
            host = _ops.host(part)
            records += _cpu_records(part, host)
            compiled += int(host.compiled.sum())
        self.state.facts.update(kernels=compiled, leaf_operators=len(records) - compiled)
        devices = {d for part in found for d in part.header.get("activities", ()) if d != "CPU"}
        if devices and not compiled:
            self._say(NO_KERNELS.format(device="/".join(sorted(devices))))
            self.state.fix = NO_KERNELS_FIX
        else:
            silent = not compiled and context.agent is not None and bool(context.agent.facts().get("compile"))
            self._say(COMPILED if compiled else SILENT if silent else EAGER)
        return records

    def _say(self, sentence: str) -> None:
        self.state.reason = "; ".join(filter(None, (self.state.reason, sentence)))


def _cpu_records(part: Events, host: _ops.Host) -> list[Record]:
    which = np.flatnonzero(host.compiled | host.last)
    rows = host.rows[which]
    labels = [f"leaf {name}" for name in part.names]
    kernels = [f"kernel {name}" for name in part.names]
    records = []
    for name, shape, start, end, thread, compiled in zip(
        *(a.tolist() for a in (part.name[rows], part.shape[rows], part.start[rows], part.end[rows], part.thread[rows])),
        host.compiled[which].tolist(),
        strict=True,
    ):
        attributes: Attributes = {
            "tokentrace.kernel.name": part.names[name],
            "tokentrace.kernel.kind": "compiled C++ kernel" if compiled else "leaf operator",
            "tokentrace.duration_ns": end - start,
            **_ops.shape_attributes(part, name, shape),
        }
        label = kernels[name] if compiled else labels[name]
        records.append(Record(label, LAYER, start, end, attributes, "", part.process, thread, join="time"))
    return records


class _Parents:
    """Which step a kernel belongs to: the one in which it ran if there is one, else the one that launched it."""

    def __init__(self, steps: Sequence[_ops.Step], request: str) -> None:
        self.request = request
        self._steps: dict[str, list[_ops.Step]] = {}
        for step in steps:
            if step.ours:
                self._steps.setdefault(step.process, []).append(step)
        self._starts = {process: [s.start_ns for s in own] for process, own in self._steps.items()}

    def of(self, process: str, start_ns: int, end_ns: int, launched_ns: int | None) -> str:
        """Key of the step, "" when there is none."""
        running = self._at(process, start_ns)
        if running is not None and running.end_ns >= end_ns:
            return running.key
        launching = self._at(process, launched_ns) if launched_ns is not None else None
        found = launching or running
        return found.key if found is not None else ""

    def _at(self, process: str, time_ns: int) -> _ops.Step | None:
        own = self._steps.get(process, [])
        index = bisect_right(self._starts.get(process, []), time_ns) - 1
        return own[index] if index >= 0 and time_ns <= own[index].end_ns else None


def _device_records(part: Events, parents: _Parents, facts: dict[str, Any]) -> list[Record]:
    joined = _kineto.join_launches(part)
    records = _calls(part, joined)
    short = [_kineto.short_name(name) for name in part.names]
    is_graph = np.zeros(len(part) + 1, np.bool_)  # one more for -1: no call
    is_graph[joined.calls[joined.graphs]] = True
    delays: list[int] = []
    for row, call in zip(joined.work.tolist(), joined.call_of.tolist(), strict=True):
        start, end, name = int(part.start[row]), int(part.end[row]), int(part.name[row])
        kind = int(part.kind[row])
        attributes: Attributes = {
            "tokentrace.kernel.name": part.names[name],
            "tokentrace.kernel.kind": gpu_events.KIND_NAMES[kind],
            "tokentrace.kernel.correlation": int(part.correlation[row]),
            "tokentrace.kernel.stream": int(part.stream[row]),
            "tokentrace.duration_ns": end - start,
            "hw.id": str(int(part.device[row])),
            "hw.type": "gpu",
        }
        if part.geometry[row] >= 0:
            attributes["tokentrace.kernel.geometry"] = part.geometries[int(part.geometry[row])]
        if part.bytes[row] >= 0 and kind != _kineto.KERNEL:
            attributes["tokentrace.kernel.bytes"] = int(part.bytes[row])
        launched = None
        links: tuple[str, ...] = ()
        if call >= 0:
            launched = int(part.start[call])
            attributes["tokentrace.kernel.queue_delay_ns"] = start - launched
            delays.append(start - launched)
            links = (_call_key(part, call),)
            if is_graph[call]:
                attributes["tokentrace.kernel.graph"] = True
        parent = parents.of(part.process, start, end, launched)
        records.append(
            Record(
                f"{'kernel' if kind == _kineto.KERNEL else 'copy'} {short[name]}",
                LAYER,
                start,
                end,
                attributes,
                process=part.process,
                parent_key=parent,
                request="" if parent else parents.request,
                link_keys=links,
                join="correlation_id" if call >= 0 else "time",
                flow=True,
            )
        )
    for fact, value in (
        ("kernels", len(joined.work)),
        ("launches", len(joined.calls)),
        ("graph_launches", int(joined.graphs.sum())),
        ("orphans", len(joined.orphans)),
        ("device_ns", int((part.end[joined.work] - part.start[joined.work]).sum())),
    ):
        facts[fact] = facts.get(fact, 0) + value
    if delays:
        facts["queue_delay_median_ns"] = int(np.median(delays))
        facts["queue_delay_max_ns"] = max(int(facts.get("queue_delay_max_ns", 0)), *delays)
    return records


def _call_key(part: Events, call: int) -> str:
    return f"launch:{part.process}:{int(part.correlation[call])}:{int(part.start[call])}"


def _calls(part: Events, joined: Launches) -> list[Record]:
    """Launches, the calls that copied, and the calls in which the host waited for the device."""
    owned = joined.call_of[joined.call_of >= 0]
    rows, times = np.unique(owned, return_counts=True)
    children = dict(zip(rows.tolist(), times.tolist(), strict=True))
    waits = set(np.flatnonzero(part.waits()).tolist())
    records = []
    for row in sorted({*joined.calls.tolist(), *children, *waits}):
        start, end = int(part.start[row]), int(part.end[row])
        name = part.names[int(part.name[row])]
        launch = row in children or row not in waits
        attributes: Attributes = {
            "tokentrace.kernel.name": name,
            "tokentrace.kernel.kind": "launch" if launch else "wait",
            "tokentrace.kernel.correlation": int(part.correlation[row]),
            "tokentrace.duration_ns": end - start,
        }
        if launch:
            attributes["tokentrace.kernel.calls"] = children.get(row, 0)
        records.append(
            Record(
                f"{'launch' if launch else 'sync'} {name}",
                LAYER,
                start,
                end,
                attributes,
                process=part.process,
                thread=int(part.thread[row]),
                key=_call_key(part, row),
                join="time",
            )
        )
    return records
