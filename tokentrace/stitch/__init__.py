"""From records to one tree: every record finds its parent, every parent encloses its children, there is one root.

    tokentrace run                  layer 0, the root
     └ stage {name} …               layer 0, of a program that has stages; they may hold each other
        └ pass cold | warm | deep … layer 0, one for each request that was sent
           └ chat {model} …         what the probes recorded

The rules by which a record finds its parent are in `model.Record`. A record that sticks out of its parent is cut, and
says by how much (`tokentrace.clamped_ns`); one that lies mostly elsewhere goes to the nearest ancestor that holds it.
Records of steps that did not serve this request are dropped and counted, and so is the engine's work before the pass
began or after it ended: an engine may already be at a step that nobody needs when the reply is whole. Every pass in
which a layer's probe ran shows that layer: where it left no span, one of no length carries the reason. It is named
"unseen", the reason being `tokentrace.unseen` (it cannot be seen), or "idle" with `tokentrace.idle` (it was looked at
and nothing happened there).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokentrace.exchange import Exchange
from tokentrace.model import IdSource, Process, Record, Trace
from tokentrace.probe import LayerState
from tokentrace.stitch._facts import exchange_facts, plain
from tokentrace.stitch._groups import STAGE, STAGE_OF, Group, add_groups, fitting
from tokentrace.stitch._parents import resolve
from tokentrace.stitch._write import Counts, PassWriter

__all__ = ["STAGE", "STAGE_OF", "Group", "PassRecords", "exchange_facts", "stitch"]


@dataclass(slots=True)
class PassRecords:
    """What one pass left behind: one request, from before it was sent until its records were collected.

    `states` holds a LayerState for each layer whose probe ran. `client_span_id` is the span id that went out in the
    traceparent. `request_id` is the server's id of our request; without it, it is taken from the records. `group`: the
    number of the group that it belongs to, -1 for none.
    """

    name: str
    start_ns: int
    end_ns: int
    records: Sequence[Record]
    states: Sequence[LayerState] = ()
    client_span_id: int = 0
    request_id: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    exchange: Exchange | None = None
    group: int = -1


def stitch(
    passes: Sequence[PassRecords],
    *,
    groups: Sequence[Group] = (),
    ids: IdSource | None = None,
    trace_id: int = 0,
    root_span_id: int = 0,
    root_name: str = "tokentrace run",
    window: tuple[int, int] | None = None,
    attributes: Mapping[str, Any] | None = None,
    processes: Mapping[str, Process] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Trace:
    """One trace of all passes, in the order given. `attributes` go on the root, `meta` beside the spans; `window` (ns)
    is what the root spans at least. `groups` stand between the root and the passes.

    `trace.meta` further gets `passes` (for each: times, layer states, what the client saw) and `stitch` (counts:
    records, spans, dropped, clamped, joins). A process that records name but `processes` does not know is added with
    its pid. Raises ValueError when there is no pass, or two have one name.
    """
    if not passes or len({one.name for one in passes}) < len(passes):
        raise ValueError("a trace needs at least one pass, and passes need different names")
    trace = Trace(trace_id, ids)
    trace.processes.update(processes or {})
    trace.meta.update(meta or {})
    start = min([one.start_ns for one in passes] + [one.start_ns for one in groups])
    end = max([start] + [one.end_ns for one in passes] + [one.end_ns for one in groups])
    if window is not None:
        start, end = min(start, window[0]), max(end, window[1])
    here = next(iter(trace.processes), "")
    trace.add(
        root_name,
        0,
        start,
        end,
        -1,
        {**(attributes or {}), "tokentrace.layer": 0},
        span_id=root_span_id,
        process=here,
        envelope=True,
    )
    rows = add_groups(trace, groups, here)
    counts = Counts()
    warm = any(one.name == "warm" for one in passes)
    facts: dict[str, Any] = {}
    for one in passes:
        placed = resolve(one.records, one.request_id, one.client_span_id)
        writer = PassWriter(trace, one.name, counts, here)
        ended = max(one.end_ns, one.start_ns)
        parent, more = fitting(trace, rows[one.group] if one.group >= 0 else 0, one.start_ns, ended)
        writer.open(one.start_ns, ended, {**one.attributes, **more}, parent, beside=warm and one.name != "warm")
        writer.write(one.records, placed)
        writer.unseen(one.states)
        facts[one.name] = {
            "start_ns": one.start_ns,
            "end_ns": one.end_ns,
            "request_id": placed.request_id,
            "client_span_id": f"{one.client_span_id:016x}",
            "states": [_state(state) for state in one.states],
            "exchange": exchange_facts(one.exchange) if one.exchange is not None else None,
        }
    writer.never_probed()
    for key in dict.fromkeys(trace.process):
        if key and key not in trace.processes:
            trace.processes[key] = Process(key, {"process.pid": int(key)} if key.isdecimal() else {})
    counts.spans = len(trace)
    trace.meta["passes"] = facts
    trace.meta["stitch"] = counts.as_dict()
    return trace


def _state(state: LayerState) -> dict[str, Any]:
    return {
        "layer": state.layer,
        "status": state.status,
        "reason": state.reason,
        "fix": state.fix,
        "facts": plain(state.facts),
    }
