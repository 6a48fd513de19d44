"""Writes one pass into the trace: cuts what sticks out, hands the direction down, shows the layers not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokentrace import layers
from tokentrace.model import KIND_CONSUMER, KIND_INTERNAL, KIND_SERVER, Link, Record, Trace
from tokentrace.probe import LayerState
from tokentrace.stitch._facts import plain
from tokentrace.stitch._parents import NAMED_SLOP_NS, NONE, Placement, holds

LAYER, DIRECTION, PASS = "tokentrace.layer", "tokentrace.direction", "tokentrace.pass"
JOIN, CLAMPED = "tokentrace.join", "tokentrace.clamped_ns"
UNSEEN, IDLE, FIX = "tokentrace.unseen", "tokentrace.idle", "tokentrace.fix"


@dataclass(slots=True)
class Counts:
    """What stitching did to the records of all passes."""

    records: int = 0
    spans: int = 0
    dropped_foreign: int = 0
    dropped_outside: int = 0
    clamped: int = 0
    clamped_total_ns: int = 0
    clamped_max_ns: int = 0
    clamped_early_max_ns: int = 0  # began before the parent did; ending after it is usual, servers tidy up
    moved: int = 0  # hang higher than named, because the parent named does not hold them in time
    repaired: int = 0
    duplicate_keys: int = 0
    cycles: int = 0
    unresolved: int = 0
    joins: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def _beside(record: Record, served: bool) -> bool:
    """Whether a span only accompanies the work: a sensor, or the client waiting for a server that is seen itself.

    What shows a critical path is given such a span beside the request: the path would else be the sensor's span from
    start to end (`emit._shown`).
    """
    return record.layer == 1 or (served and record.envelope and record.name in ("wait", "stream"))


def _is_work(record: Record, records: Sequence[Record], parent: int) -> bool:
    """Whether a record is of the engine's work, a step or what ran in one, rather than of the request itself. What a
    device runs later was launched in time."""
    in_step = parent != NONE and records[parent].layer == 6 and records[parent].name == "step"
    return record.layer <= 6 and (not record.flow or in_step) and not record.link_keys


class PassWriter:
    """Adds one pass below the root, or below a group."""

    def __init__(self, trace: Trace, name: str, counts: Counts, process: str) -> None:
        self.trace = trace
        self.name = name
        self.counts = counts
        self.process = process
        self.row = 0
        self.chat_row = 0

    def open(
        self, start_ns: int, end_ns: int, attributes: Mapping[str, Any], parent: int = 0, beside: bool = False
    ) -> None:
        """Add the span of the pass itself. `beside`: another pass speaks for the run, and its critical path is the
        run's (`emit._shown`); with the thousands of operators of a deep pass on it Jaeger's recursion gives up.
        """
        central = {LAYER: 0, PASS: self.name}
        self.row = self.chat_row = self.trace.add(
            f"pass {self.name}",
            0,
            start_ns,
            end_ns,
            parent,
            {**attributes, **central},
            process=self.process,
            kind=KIND_CONSUMER if beside else KIND_INTERNAL,
            envelope=True,
        )

    def write(self, records: Sequence[Record], placed: Placement) -> None:
        trace, counts = self.trace, self.counts
        row_of = [NONE] * len(records)
        taken = {trace.span_id[0], trace.span_id[self.row]}
        links: list[tuple[int, Record]] = []
        joins: dict[str, int] = {}
        clamped_total = 0
        served = any(record.kind == KIND_SERVER for record in records)
        first, last = trace.start_ns[self.row], trace.end_ns[self.row]
        for index in placed.order:
            record = records[index]
            wanted = placed.parent[index]
            start, end = placed.start[index], placed.end[index]
            if (start >= last < end or end <= first > start) and _is_work(record, records, wanted):
                counts.dropped_outside += 1
                continue
            while wanted != NONE and row_of[wanted] == NONE:  # left out, as it ran wholly before or after the pass
                wanted = placed.parent[wanted]
            parent = row_of[wanted] if wanted != NONE else self.row
            if start < trace.start_ns[parent] or end > trace.end_ns[parent]:
                # What only the pass's own ends cut stays where it is, beside the rest that was cut there.
                fitting = self._climb(parent, record, min(max(start, first), last), max(min(end, last), first))
                if fitting != parent:
                    fitting = self._climb(parent, record, start, end)
                counts.moved += fitting != parent
                parent = fitting
            out = 0
            low, high = trace.start_ns[parent], trace.end_ns[parent]
            if start < low or end > high:
                out = max(0, low - start) + max(0, end - high)
                start, end = min(max(start, low), high), max(min(end, high), low)
                counts.clamped += 1
                clamped_total += out
                counts.clamped_max_ns = max(counts.clamped_max_ns, out)
                counts.clamped_early_max_ns = max(counts.clamped_early_max_ns, low - placed.start[index])
            direction = record.direction
            if not direction and record.layer <= 5:
                direction = trace.direction[parent]
            join = placed.join[index]
            attributes = {**record.attributes, LAYER: record.layer}
            if direction:
                attributes[DIRECTION] = direction
            attributes[PASS] = self.name
            if join:
                attributes[JOIN] = join
                joins[join] = joins.get(join, 0) + 1
            if out:
                attributes[CLAMPED] = out
            span_id = record.span_id if record.span_id not in taken else 0
            if span_id:
                taken.add(span_id)
            row_of[index] = row = trace.add(
                record.name,
                record.layer,
                start,
                end,
                parent,
                attributes,
                span_id=span_id,
                process=record.process or self.process,  # without one: made here
                thread=record.thread,
                direction=direction,
                kind=KIND_CONSUMER if _beside(record, served) else record.kind,
                status=record.status,
                status_message=record.status_message,
                envelope=record.envelope,
                events=record.events or None,
            )
            if record.link_keys:
                links.append((row, record))
        if placed.chat != NONE and row_of[placed.chat] != NONE:
            self.chat_row = row_of[placed.chat]
        self._link(links, records, row_of)
        self._count(records, placed, joins, clamped_total)

    def _climb(self, parent: int, record: Record, start: int, end: int) -> int:
        """The nearest ancestor that holds the record in time well enough; the pass holds everything."""
        trace = self.trace
        while parent != self.row:
            low, high = trace.start_ns[parent], trace.end_ns[parent]
            if low <= start and end <= high:
                break
            # What a device runs may begin long after its launch ended: nothing below a step may cut it.
            if not (record.link_keys and trace.layer[parent] < 6):
                if record.parent_id and min(end, high) > max(start, low):
                    break
                if holds(low, high, start, end, NAMED_SLOP_NS):
                    break
            parent = trace.parent[parent]
        return parent

    def _link(self, links: list[tuple[int, Record]], records: Sequence[Record], row_of: list[int]) -> None:
        if not links:
            return
        trace = self.trace
        keys = {r.key: row for r, row in zip(reversed(records), reversed(row_of), strict=True) if r.key}
        for row, record in links:
            found = [keys[key] for key in record.link_keys if keys.get(key, NONE) != NONE]
            if not found:
                continue
            label = {JOIN: record.join or "correlation_id"}
            trace.links[row] = [Link(trace.span_id[target], dict(label)) for target in found]
            # What a device runs goes the way of the operator that launched it, not of the step that waits for it.
            way = trace.direction[found[0]]
            if not record.direction and record.layer <= 5 and way and way != trace.direction[row]:
                trace.direction[row] = way
                trace.set_attributes(row, {DIRECTION: way})

    def _count(self, records: Sequence[Record], placed: Placement, joins: dict[str, int], clamped_ns: int) -> None:
        counts = self.counts
        counts.records += len(records)
        counts.dropped_foreign += placed.foreign
        counts.dropped_outside += placed.outside
        counts.clamped_total_ns += clamped_ns
        counts.repaired += placed.repaired
        counts.duplicate_keys += placed.duplicate_keys
        counts.cycles += placed.cycles
        counts.unresolved += placed.unresolved
        for join, number in joins.items():
            counts.joins[join] = counts.joins.get(join, 0) + number

    def unseen(self, states: Sequence[LayerState]) -> None:
        """A span of no length for each layer whose probe ran and left none, and for each that cannot be seen."""
        trace = self.trace
        present = set(trace.layer[self.row + 1 :])
        reasons = {shape for shape, names in enumerate(trace.shapes) if UNSEEN in names}
        told = {trace.layer[row] for row in range(self.row + 1, len(trace)) if trace.shape[row] in reasons}
        by_layer = {state.layer: state for state in states}
        for layer in layers.load():
            state = by_layer.get(layer.number)
            if state is None or layer.number in told:
                continue
            if state.status == "unseen":
                why: dict[str, Any] = {UNSEEN: state.reason or "it cannot be seen here"}
            elif layer.number in present:
                continue
            elif state.status == "idle":
                why = {IDLE: state.reason or "nothing happened there"}
            else:
                why = {UNSEEN: state.reason or "its probe ran and recorded nothing"}
            if state.fix:
                why[FIX] = state.fix
            # What is known of the layer all the same: facts that are named like attributes.
            why.update({name: plain(value) for name, value in state.facts.items() if name.startswith("tokentrace.")})
            self._mark(layer.number, why)

    def never_probed(self) -> None:
        """Call on the last pass: marks the layers that no pass shows, because none of their probes ran."""
        present = set(self.trace.layer)
        for layer in layers.load():
            if layer.number not in present:
                why = {UNSEEN: "its probe did not run", FIX: f"leave --layers away, or add {layer.id} to it"}
                self._mark(layer.number, why)

    def _mark(self, layer: int, why: Mapping[str, Any]) -> None:
        trace, at = self.trace, self.trace.start_ns[self.chat_row]
        attributes = {**why, LAYER: layer, PASS: self.name}
        name = layers.IDLE if IDLE in why else layers.UNSEEN
        trace.add(name, layer, at, at, self.chat_row, attributes, process=trace.process[self.chat_row])
