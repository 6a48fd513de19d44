"""The trace as a tracing backend is to get it: with a critical path that runs through the work, and can be computed.

A backend works out which spans a request waited for; Jaeger draws that over its timeline. It takes the child that ended
last, and leaves out only consumers below a producer. So what merely accompanies the work would be the whole path, and a
path through thousands of operators ends with the browser's stack (`_critical_path`). Therefore, whatever the receiver:

- A pass beside the one that speaks for the run is a consumer already; what it lies below becomes a producer.
- A sensor's span, and the client's waiting for a server that is seen itself, hang beside the request below the pass (a
  producer) and not below it. `tokentrace.accompanies` is the span id of the parent that was recorded.
- Of a trace whose path would still be too long, the spans of the first level that is too much are consumers below
  producers, and say so: `tokentrace.beside_critical_path`. The root has `tokentrace.critical_path.level`, the level
  down to which the path goes (the root is 0), and `tokentrace.critical_path.beside`, how many spans are marked. A
  span that was of another kind than internal keeps that as `tokentrace.span.kind`.

No span, no time and no other attribute changes. A saved run is not changed at all: it holds what was recorded.
"""

from __future__ import annotations

from typing import Any

from tokentrace.emit import _critical_path
from tokentrace.model import KIND_CONSUMER, KIND_INTERNAL, KIND_PRODUCER, Trace
from tokentrace.wording import plural

#: OTLP span kinds by name, as Jaeger's tag `span.kind` has them.
KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}
ACCOMPANIES, KIND = "tokentrace.accompanies", "tokentrace.span.kind"
BESIDE, LEVEL, MARKED = (
    "tokentrace.beside_critical_path",
    "tokentrace.critical_path.level",
    "tokentrace.critical_path.beside",
)


def shown(trace: Trace, most: int = _critical_path.MOST_CALLS) -> Trace:
    """The trace itself when nothing has to change, else one that shares all it can with it."""
    if not len(trace) or LEVEL in trace.attributes(0):  # it was received from a run that was sent
        return trace
    change = _Change(trace)
    change.set_beside()
    change.fit(most)
    return change.made


def path_remark(trace: Trace) -> str:
    """One sentence about a critical path that does not go down to the last span; empty when it does."""
    root = trace.attributes(0)
    if LEVEL not in root or not isinstance(root.get(MARKED), int):  # the second: another program's attribute
        return ""
    return (
        f"the critical path goes down to level {root[LEVEL]}: with the {plural(root[MARKED], 'span')} of the next "
        "level, and what is below them, it would be longer than Jaeger can compute; they are marked as consumers"
    )


class _Change:
    """`made` is the trace given until something changes, then one of its own columns."""

    def __init__(self, trace: Trace) -> None:
        self.trace = self.made = trace

    def set_beside(self) -> None:
        trace = self.trace
        for row in range(1, len(trace)):
            parent, layer = trace.parent[row], trace.layer[row]
            if not layer:
                if trace.kinds.get(row) == KIND_CONSUMER and not trace.layer[parent]:
                    self._produce(parent)  # a pass beside the one that speaks for the run
            elif _accompanies(trace, row):
                above = parent
                while trace.layer[above] and trace.parent[above] >= 0:
                    above = trace.parent[above]
                if above != parent:
                    self._own().parent[row] = above
                    self.made.set_attributes(row, {ACCOMPANIES: f"{trace.span_id[parent]:016x}"})
                self._set(row, KIND_CONSUMER, {})
                if trace.kinds.get(above) != KIND_CONSUMER:
                    self._produce(above)

    def fit(self, most: int) -> None:
        level, beside = _critical_path.fitting_level(self.made, most)
        if not beside:
            return
        made = self._own()
        for parent in {made.parent[row] for row in beside}:
            self._produce(parent)
        marked: dict[int, int] = {}  # a shape with the mark, by the one without; these rows may be nearly all
        for row in beside:
            shape = made.shape[row]
            if shape not in marked:
                keys = made.shapes[shape]
                marked[shape] = made.intern_shape((*keys, BESIDE)) if BESIDE not in keys else -1
            if marked[shape] < 0 or row in made.kinds:
                self._set(row, KIND_CONSUMER, {BESIDE: True})
                continue
            made.kinds[row], made.shape[row] = KIND_CONSUMER, marked[shape]
            made.values[row] = (*made.values[row], True)
        made.set_attributes(0, {LEVEL: level, MARKED: len(beside)})

    def _produce(self, row: int) -> None:
        self._set(row, KIND_PRODUCER, {})

    def _set(self, row: int, kind: int, more: dict[str, Any]) -> None:
        was = self.made.kinds.get(row, KIND_INTERNAL)
        if was != kind:
            self._own().kinds[row] = kind
            if was in KINDS and was != KIND_INTERNAL:
                more = {**more, KIND: KINDS[was]}
        if more:
            self._own().set_attributes(row, more)

    def _own(self) -> Trace:
        if self.made is self.trace:
            self.made = self.trace.overlay()
        return self.made


def _accompanies(trace: Trace, row: int) -> bool:
    """A sensor's span (not the mark of one that is not there), or a phase of the client that only waits, as `stitch`
    marks it."""
    layer = trace.layer[row]
    if layer == 1:
        return trace.end_ns[row] > trace.start_ns[row]
    return layer == 8 and row in trace.envelopes and trace.kinds.get(row) == KIND_CONSUMER
