"""From columns to spans: one tree within a budget, of recordings and of what lies beside them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from tokentrace import gpu_events
from tokentrace.importers._analysis import Analysis
from tokentrace.importers._jit_events import JitLog
from tokentrace.importers._lane import Lane
from tokentrace.layers import IDLE, UNSEEN
from tokentrace.model import Process, Record, Trace
from tokentrace.probe import LayerState

BUDGET = 10_000
_RESERVED = 40  # root, lanes, unseen layers


class Builder:
    """Builds one trace, a recording at a time, so that only one recording has to be in memory.

    Root `tokentrace import`, below it a lane for each recording when there are several, then steps, modules,
    operators, launches, kernels, compiles. Never more than BUDGET spans; `tokentrace.folded.*` on a span says what was
    left out below it.
    """

    def __init__(self, count: int, identity: str, beside: int = 0) -> None:
        """`count` recordings will follow; `identity` names them, for the id of the machine they come from; `beside`
        spans of the budget are kept for compile logs and power records."""
        self.trace = Trace()
        self._count = max(1, count)
        self._share = (BUDGET - _RESERVED - beside - self._count) // self._count
        self._added = 0
        self._begun = False
        self._shown = self._folded = 0
        # The spans of a recording must not claim the host that imports it.
        self._machine = {"host.id": str(uuid.uuid5(uuid.NAMESPACE_OID, identity)), "host.name": "recorded machine"}
        self.trace.processes["recording"] = Process("recording", dict(self._machine))
        self._root = self.trace.add("tokentrace import", 0, 0, 0, -1, process="recording", envelope=True)

    def add(self, label: str, found: Analysis) -> None:
        trace, events = self.trace, found.events
        inner = np.flatnonzero(events.kind != gpu_events.ENVELOPE)
        if not len(inner):
            return
        low = events.absolute(int(events.start[inner].min()))
        high = events.absolute(int(events.end[inner].max()))
        self.widen(low, high)
        parent = self._root
        if self._count > 1:
            parent = trace.add(label, 0, low, high, self._root, {"tokentrace.import.source": events.source},
                               process="recording", envelope=True)  # fmt: skip
        prefix = f"{self._added}:" if self._count > 1 else ""
        writer = Lane(trace, found, parent, prefix, self._machine)
        writer.write(self._share)
        self._added += 1
        self._shown += writer.shown
        self._folded += writer.folded

    @property
    def bounds(self) -> tuple[int, int]:
        """First and last instant so far, ns; (0, 0) before anything was added."""
        return self.trace.start_ns[0], self.trace.end_ns[0]

    def add_compiles(self, log: JitLog, budget: int) -> None:
        """A compile log beside the recordings: the longest phases and lookups below the root, nested as logged."""
        trace = self.trace
        order = sorted(range(len(log.events)), key=lambda row: log.events[row].start_ns - log.events[row].end_ns)
        chosen = set(order[: max(0, budget)])
        first = min(event.start_ns for event in log.events)
        last = max(event.end_ns for event in log.events)
        self.widen(first, last)
        key = f"compile log {log.source}"
        trace.processes.setdefault(key, Process(key, dict(self._machine)))
        span_of: dict[int, int] = {}
        for row, event in enumerate(log.events):
            if row not in chosen:
                continue
            above = event.parent
            while above >= 0 and above not in span_of:
                above = log.events[above].parent
            attributes = event.attributes()
            if self._added and above < 0:
                attributes["tokentrace.join"] = "time"
            span_of[row] = trace.add(
                event.span_name, 2, event.start_ns, event.end_ns, span_of.get(above, self._root), attributes,
                process=key, direction="down",
            )  # fmt: skip
        self._shown += len(span_of)
        self._folded += len(log.events) - len(span_of)

    def add_power(self, record: Record, more: Mapping[str, Any]) -> None:
        """A power record of a dump, joined by time; it lies within the bounds by how it was asked for. `more`: what
        else is to be told of it."""
        start, end = self.bounds
        low = min(max(record.start_ns, start), end)
        self.trace.add(record.name, 1, low, min(max(record.end_ns, low), end), self._root,
                       {**record.attributes, "tokentrace.join": "time", **more}, process="recording")  # fmt: skip

    def widen(self, first: int, last: int) -> None:
        """Let the root reach over these instants too."""
        trace = self.trace
        trace.start_ns[0] = min(trace.start_ns[0], first) if self._begun else first
        trace.end_ns[0] = max(trace.end_ns[0], last)
        self._begun = True

    def finish(self, states: list[LayerState], attributes: dict[str, Any]) -> Trace:
        """Add an `unseen` or `idle` span for each layer that no recording shows, and the root's attributes."""
        trace = self.trace
        start = trace.start_ns[0]
        for state in states:
            if state.status != "seen":
                name = IDLE if state.status == "idle" else UNSEEN
                why = {f"tokentrace.{name}": state.reason, "tokentrace.fix": state.fix}
                trace.add(name, state.layer, start, start, self._root, why, process="recording")
        counts = {"tokentrace.import.shown": self._shown, "tokentrace.import.folded": self._folded}
        trace.set_attributes(self._root, {**attributes, **counts})
        return trace
