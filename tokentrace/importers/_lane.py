"""One recording as spans: steps, then what the host did, then the device; what does not fit is folded."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers import _spanning, host
from tokentrace.importers._analysis import Analysis
from tokentrace.importers.columns import Array
from tokentrace.importers.join import by_external_id
from tokentrace.model import Link, Process, Trace

_NAME_LIMIT = 120
_TEXT_LIMIT = 1_000
_TOP = 5  # names told of what was folded into a span


class Lane:
    """Writes one recording below `root`."""

    def __init__(self, trace: Trace, found: Analysis, root: int, prefix: str, machine: dict[str, str]) -> None:
        self.trace = trace
        self.found = found
        self.root = root
        self.prefix = prefix
        self.machine = machine
        self.shown = 0
        self.folded = 0
        self.span_of: dict[int, int] = {}  # row of Events -> row of Trace
        self.step_span: list[int] = []
        self.thread_of: dict[int, int] = {}  # track -> the number in its name
        self.up: set[int] = set()  # trace rows on the way up

    def write(self, budget: int) -> None:
        chosen = _spanning.choose(self.found, budget)
        self._steps(chosen)
        self._host_rows(chosen)
        self._device_rows(chosen)
        self._fold(chosen)
        self.shown = len(self.span_of)

    def _process(self, row: int) -> str:
        events = self.found.events
        if events.kind[row] < gpu_events.GPU_KINDS:
            key = f"{self.prefix}gpu {events.devices[int(events.device[row])]}"
            facts: dict[str, Any] = {"hw.type": "gpu", "hw.id": events.devices[int(events.device[row])]}
        else:
            pid = events.tracks[int(events.track[row])][0]
            key = f"{self.prefix}{pid or 'process'}"
            facts = {"process.pid": int(pid)} if pid.isdecimal() and len(pid) < 10 else {}
        if key not in self.trace.processes:
            self.trace.processes[key] = Process(key, {**self.machine, **facts})
        return key

    def _thread(self, row: int) -> int:
        events = self.found.events
        track = int(events.track[row])
        if track not in self.thread_of:
            digits = "".join(c for c in events.tracks[track][1] if c.isdecimal())[:9]
            self.thread_of[track] = int(digits) if digits else 0
        return self.thread_of[track]

    def _steps(self, chosen: Array) -> None:
        events = self.found.events
        for step, figures in zip(self.found.steps.steps, self.found.step_figures, strict=True):
            if not chosen[step.row]:
                self.step_span.append(self.root)
                continue
            attributes = {
                "tokentrace.step.index": step.index,
                "tokentrace.step.name": step.name[:_TEXT_LIMIT],
                "tokentrace.step.host_ns": step.host_end_ns - step.start_ns,
                "tokentrace.step.kernels": figures["kernels"],
                "tokentrace.step.busy_ns": figures["busy_ns"],
                **step.attributes,
                **({"tokentrace.step.inferred": True} if step.inferred else {}),
            }
            span = self.trace.add("step", 6, events.absolute(step.start_ns), events.absolute(step.end_ns), self.root,
                                  attributes, process=self._process(step.row), thread=self._thread(step.row),
                                  direction="down")  # fmt: skip
            self.step_span.append(span)
            self.span_of[step.row] = span

    def _host_rows(self, chosen: Array) -> None:
        """Operators, modules, calls and compiles, parents first: the order in which nesting lists them."""
        found, events = self.found, self.found.events
        up = events.names_with(_spanning.UP)
        wanted = chosen.copy()
        wanted[list(self.span_of)] = True
        above = host.nearest(found.tree.parent, wanted)
        step_of = _spanning.step_at(found)
        calls = np.bincount(events.name[events.rows(gpu_events.OPERATOR)], minlength=len(events.names))
        queue = found.tree.rows[chosen[found.tree.rows]]
        loads = found.measures.loads
        outside = loads[chosen[loads] & (events.kind[loads] == gpu_events.OVERHEAD)]
        for row in np.concatenate((queue, outside)).tolist():
            if row in self.span_of:
                continue
            start, end = int(events.start[row]), int(events.end[row])
            holder = int(above[found.tree.parent[row]])
            join = ""
            parent = self.span_of.get(holder, -1)
            if parent < 0:
                parent = self._step_parent(int(step_of[row]), start, end)
                join = "time" if parent != self.root else ""
            layer = int(found.layer[row])
            name, attributes = self._describe(row, layer, calls)
            if join:
                attributes["tokentrace.join"] = join
            way = "up" if parent in self.up or up[events.name[row]] else "down"
            span = self.trace.add(name, layer, events.absolute(start), events.absolute(end), parent, attributes,
                                  process=self._process(row), thread=self._thread(row), direction=way)  # fmt: skip
            if way == "up":
                self.up.add(span)
            self.span_of[row] = span

    def _step_parent(self, step: int, start: int, end: int) -> int:
        """The step's span if it encloses these times, else the lane itself."""
        if step >= 0:
            holder = self.found.steps.steps[step]
            if self.step_span[step] != self.root and holder.start_ns <= start and end <= holder.end_ns:
                return self.step_span[step]
        return self.root

    def _describe(self, row: int, layer: int, calls: Array) -> tuple[str, dict[str, Any]]:
        events = self.found.events
        text = events.names[int(events.name[row])]
        length = int(events.end[row] - events.start[row])
        if layer == 5:
            module = text.removeprefix("nn.Module: ")
            return f"module {host.short(module, _NAME_LIMIT)}", {"tokentrace.tensor.module": host.short(module, 300)}
        if layer == 4:
            attributes: dict[str, Any] = {
                "tokentrace.op.name": text[:_TEXT_LIMIT],
                "tokentrace.op.calls": int(calls[events.name[row]]),
                "tokentrace.op.own_ns": int(self.found.tree.own_ns[row]),
            }
            if events.detail[row] >= 0:
                attributes["tokentrace.op.shapes"] = events.details[int(events.detail[row])]
            short = host.short(text, _NAME_LIMIT)
            return (short if "::" in short else f"op {short}"), attributes
        if layer == 2:
            return _spanning.jit_name(text), {
                "tokentrace.jit.compiler": _spanning.compiler(text),
                "tokentrace.duration_ns": length,
            }
        attributes = {"tokentrace.duration_ns": length}
        if events.correlation[row] >= 0:
            attributes["tokentrace.kernel.correlation"] = int(events.correlation[row])
        kind = "sync" if gpu_events.BLOCKING_SYNC.match(text) else "launch"
        if gpu_events.GRAPH_LAUNCH.match(text):
            attributes["tokentrace.kernel.graph"] = True
        return f"{kind} {host.short(text, _NAME_LIMIT)}", attributes

    def _device_rows(self, chosen: Array) -> None:
        found = self.found
        joined, steps = found.joined, found.steps
        by_id = by_external_id(found.events, joined)
        nothing = np.full(len(joined.copies), -1)
        for which, call_of, step_of, operator_of in (
            (joined.kernels, joined.call_of, steps.of_kernel, by_id),
            (joined.copies, joined.copy_call, steps.of_copy, nothing),
        ):
            for number in np.flatnonzero(chosen[which]).tolist():
                self._device_row(
                    int(which[number]), int(call_of[number]), int(step_of[number]), int(operator_of[number])
                )

    def _device_row(self, row: int, call: int, step: int, named: int) -> None:
        found, events = self.found, self.found.events
        start, end = int(events.start[row]), int(events.end[row])
        parent = self._step_parent(step, start, end)
        text = events.names[int(events.name[row])]
        kernel = events.kind[row] == gpu_events.KERNEL
        attributes: dict[str, Any] = {
            "tokentrace.kernel.name": text[:_TEXT_LIMIT],
            "tokentrace.kernel.stream": events.streams[int(events.stream[row])],
            "tokentrace.duration_ns": end - start,
            "hw.id": events.devices[int(events.device[row])],
            "hw.type": "gpu",
        }
        if events.detail[row] >= 0:
            grid, _, block = events.details[int(events.detail[row])].partition(" x ")
            attributes["tokentrace.kernel.grid"], attributes["tokentrace.kernel.block"] = grid, block
        if events.bytes[row] >= 0:
            attributes["tokentrace.kernel.bytes"] = int(events.bytes[row])
        if events.correlation[row] >= 0:
            attributes["tokentrace.kernel.correlation"] = int(events.correlation[row])
        links = []
        if call >= 0:
            attributes["tokentrace.join"] = "correlation_id"
            if parent != self.root and events.track[call] != events.track[found.steps.steps[step].row]:
                attributes["tokentrace.step.join"] = "time"  # launched by another thread than the step's own
            if gpu_events.GRAPH_LAUNCH.match(events.names[int(events.name[call])]):
                attributes["tokentrace.kernel.graph"] = True
            elif start >= events.start[call]:  # else the two clocks disagree, and how long it waited is unknown
                attributes["tokentrace.kernel.queue_ns"] = start - int(events.start[call])
            if call in self.span_of:
                links.append(Link(self.trace.span_id[self.span_of[call]], {"tokentrace.join": "correlation_id"}))
        else:
            attributes["tokentrace.kernel.orphan"] = True
            if parent != self.root:
                attributes["tokentrace.join"] = "time"
        operator = named if named >= 0 else int(found.tree.operator[call]) if call >= 0 else -1
        if operator >= 0:
            attributes["tokentrace.op.join"] = "external_id" if named >= 0 else "time"
            attributes["tokentrace.op.name"] = events.names[int(events.name[operator])][:_TEXT_LIMIT]
        up = _spanning.is_upward(text) or (call in self.span_of and self.span_of[call] in self.up)
        name = f"{'kernel' if kernel else 'copy'} {host.short(text, _NAME_LIMIT)}"
        self.span_of[row] = self.trace.add(
            name, 3, events.absolute(start), events.absolute(end), parent, attributes, process=self._process(row),
            thread=self._thread(row), direction="up" if up else "down", links=links,
        )  # fmt: skip

    def _fold(self, chosen: Array) -> None:
        """Say on each span what was left out below it: how many, how long, the names with the most time."""
        found, events = self.found, self.found.events
        left = np.flatnonzero((found.layer[:-1] > 0) & ~chosen[:-1])
        span_at = np.full(len(events) + 1, -1, np.int64)
        span_at[list(self.span_of)] = list(self.span_of.values())
        wanted = span_at >= 0
        left = left[~wanted[left]]
        self.folded = len(left)
        if not len(left):
            return
        above = host.nearest(found.tree.parent, wanted)
        anchor = np.full(len(events) + 1, -1, np.int64)
        anchor[found.tree.rows] = found.tree.rows
        anchor[found.joined.kernels] = found.joined.call_of
        anchor[found.joined.copies] = found.joined.copy_call
        holder = above[anchor[left]]
        step_of = _spanning.step_at(found)[left]
        target = span_at[holder]
        steps = np.array([*self.step_span, self.root])
        target = np.where(target >= 0, target, steps[step_of])
        length = (events.end - events.start)[left]
        # One sort by span and name for all: thousands of spans hold something, most of them a handful.
        codes = events.name[left].astype(np.int64)
        order = np.lexsort((codes, target))
        target, codes = target[order], codes[order]
        edges = np.flatnonzero(np.diff(target, prepend=-1) | np.diff(codes, prepend=-1))
        totals = np.add.reduceat(length[order], edges)
        counts = np.diff(edges, append=len(left))
        target, codes = target[edges], codes[edges]
        order = np.lexsort((codes, -totals, target))
        target, codes, totals, counts = target[order], codes[order], totals[order], counts[order]
        names = {code: host.short(events.names[code], 80) for code in np.unique(codes).tolist()}
        edges = np.flatnonzero(np.diff(target, prepend=-1))
        spans, nanoseconds = np.add.reduceat(counts, edges).tolist(), np.add.reduceat(totals, edges).tolist()
        for first, last, span, number, spent in zip(
            edges.tolist(), [*edges[1:].tolist(), len(target)], target[edges].tolist(), spans, nanoseconds, strict=True
        ):
            best = slice(first, min(last, first + _TOP))
            self.trace.set_attributes(
                span,
                {
                    "tokentrace.folded.spans": number,
                    "tokentrace.folded.below_ns": spent,
                    "tokentrace.folded.top": [
                        f"{names[code]} ×{count} {total} ns"
                        for code, count, total in zip(
                            codes[best].tolist(), counts[best].tolist(), totals[best].tolist(), strict=True
                        )
                    ],
                },
            )
