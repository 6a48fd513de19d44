"""Layer 4: which operators ran, with which shapes, and where the time went.

Source: torch.profiler in the serving process (deep pass only). On a GPU every operator of the host is shown here and
its kernels in layer 3. On a CPU an operator that calls nothing further does the work itself: it is shown in layer 3 as
the last thing that can be seen, and here are those above it.

Attributes: tokentrace.op.name, tokentrace.op.input_shapes (JSON; [] stands for anything that is no tensor),
tokentrace.op.self_ns (time in which nothing nested ran), tokentrace.op.flops (see `_flops`). `state.facts["operators"]`
has calls, total, own time and flops of every operator name, those of layer 3 included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tokentrace.model import Attributes, Record
from tokentrace.probe import ProbeContext
from tokentrace.probes import _kineto, _ops
from tokentrace.probes._flops import flops
from tokentrace.probes._kineto import Events

LAYER = 4


class OperatorProfilerProbe(_ops.OpsProbe):
    """See the module's docstring."""

    layer = LAYER

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        found = _ops.events(context, _ops.steps(context), self.state)
        compiling = _compile_phases(context)
        kernels_elsewhere = _ops.on_device(found)
        records: list[Record] = []
        table: dict[str, dict[str, Any]] = {}
        for part in found:
            host = _ops.host(part)
            marks = ~host.operator & ~host.compiled & (part.kind[host.rows] == _kineto.MARK)
            # torch marks the phases of a compilation for the profiler too; those are layer 2's.
            told = np.fromiter((n not in compiling for n in part.names), np.bool_, len(part.names))
            shown = (host.operator & (True if kernels_elsewhere else ~host.last)) | (marks & told[part.name[host.rows]])
            records += _records(part, host, np.flatnonzero(shown))
            _count(table, part, host)
        operators = sorted(table.values(), key=lambda row: -row["self_ns"])
        self.state.facts.update(
            operators=operators,
            calls=sum(row["calls"] for row in operators),
            flops=sum(row["flops"] for row in operators if row["flops"] is not None),
        )
        return records


def _records(part: Events, host: _ops.Host, which: _kineto.Ints) -> list[Record]:
    rows = host.rows[which]
    process, names = part.process, part.names
    labels = [n if _kineto.is_operator(n) else f"op {n}" for n in names]
    records = []
    columns: Sequence[list[int]] = [
        a.tolist() for a in (part.name[rows], part.shape[rows], part.start[rows], part.end[rows], part.thread[rows],
                             host.own[which])
    ]  # fmt: skip
    for name, shape, start, end, thread, own in zip(*columns, strict=True):
        attributes: Attributes = {
            "tokentrace.op.name": names[name],
            "tokentrace.op.self_ns": own,
            **_ops.shape_attributes(part, name, shape),
        }
        records.append(Record(labels[name], LAYER, start, end, attributes, "", process, thread, join="time"))
    return records


def _count(table: dict[str, dict[str, Any]], part: Events, host: _ops.Host) -> None:
    """Add this part's operators to the table."""
    which = np.flatnonzero(host.operator | host.compiled)
    rows = host.rows[which]
    name, shape = part.name[rows], part.shape[rows]
    took = part.end[rows] - part.start[rows]
    for code in np.unique(name).tolist():
        mine = name == code
        row = table.setdefault(
            part.names[code], {"name": part.names[code], "calls": 0, "total_ns": 0, "self_ns": 0, "flops": None}
        )
        row["calls"] += int(mine.sum())
        row["total_ns"] += int(took[mine].sum())
        row["self_ns"] += int(host.own[which][mine].sum())
        seen, repeats = np.unique(shape[mine & (shape >= 0)], return_counts=True)
        for one, times in zip(seen.tolist(), repeats.tolist(), strict=True):
            count = flops(part.names[code], part.shapes[one])
            if count is not None:
                row["flops"] = (row["flops"] or 0) + count * times


def _compile_phases(context: ProbeContext) -> frozenset[str]:
    assert context.agent is not None
    phases = {str(raw.data.get("phase", "")) for raw in context.agent.records("jit") if raw.name == "compile"}
    return frozenset(phases | {f"{phase} (dynamo_timed)" for phase in phases})
