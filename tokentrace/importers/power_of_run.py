"""A power dump joined to a trace that tokentrace made, by time: what each request drew, with the dump's own error.

Times of a trace are unix times of the machine on which `tokentrace run` ran; a dump's are those of the machine with
the card. Both must be set by the same clock (NTP keeps them within milliseconds, a dump's samples are tens of
milliseconds to seconds apart).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokentrace.energy.curve import Stretch
from tokentrace.energy.device import Split, Tokens
from tokentrace.fold import BELOW, COUNT
from tokentrace.importers import power_dumps
from tokentrace.importers._companions import WRONG_TIME, energy_finding
from tokentrace.importers.power_dumps import PowerDump
from tokentrace.model import Record, Trace
from tokentrace.probe import Finding
from tokentrace.wording import duration, plural

_FOLDED = "the run's steps were folded: what of it prefill and decode drew is not known"


@dataclass(slots=True)
class _Request:
    row: int
    name: str  # of its pass
    start_ns: int
    end_ns: int
    split: Split
    tokens: Tokens
    notes: list[str]


def join_power(trace: Trace, dumps: Sequence[tuple[str, PowerDump]]) -> tuple[Trace, list[Finding]]:
    """The trace with a `power` span below each request that a dump covers, in place of its `unseen` one, and one
    finding a request and device. The given trace stays as it is.
    """
    requests = list(_requests(trace))
    found: list[tuple[_Request, Record]] = []
    findings: list[Finding] = []
    for name, dump in dumps:
        before = len(found)
        for request in requests:
            for record in power_dumps.records(dump, request.start_ns, request.end_ns, request.split, request.tokens):
                found.append((request, record))
                where = f"in the {request.name} pass" if request.name else "in the run"
                findings.append(energy_finding(record, [*dump.notes, *request.notes], where))
        if len(found) == before:
            findings.append(_outside(name, dump, requests))
    joined = _without_unseen(trace, {request.row for request, _ in found})
    row_of = {span_id: row for row, span_id in enumerate(joined.span_id)}
    for request, record in found:
        attributes = {**record.attributes, "tokentrace.layer": 1, "tokentrace.join": "time"}
        if request.name:
            attributes["tokentrace.pass"] = request.name
        joined.add(record.name, 1, request.start_ns, request.end_ns, row_of[trace.span_id[request.row]], attributes)
    _note_seen(joined, {request.name for request, _ in found})
    return joined, findings


def _note_seen(trace: Trace, names: set[str]) -> None:
    """Layer 1 was seen in these passes after all; what their run told of it says otherwise. "" stands for them all."""
    told = {"layer": 1, "status": "seen", "reason": "", "fix": "", "facts": {}}
    passes: dict[str, Any] = trace.meta.get("passes") or {}
    changed = {name: one for name, one in passes.items() if ("" in names or name in names) and one.get("states")}
    for name, one in changed.items():
        states = [state for state in one["states"] if state["layer"] != 1]
        at = next((at for at, state in enumerate(one["states"]) if state["layer"] == 1), len(states))
        changed[name] = {**one, "states": [*states[:at], told, *states[at:]]}
    if changed:
        trace.meta["passes"] = {**passes, **changed}


def _requests(trace: Trace) -> Iterator[_Request]:
    """Each `chat` span; where there is none, the root."""
    every = [row for row in range(len(trace)) if _is_step(trace, row)]
    lost = [row for row in range(len(trace)) if _stands_for_steps(trace, row)]
    rows = [row for row in range(len(trace)) if trace.layer[row] == 8 and _name(trace, row).startswith("chat ")] or [0]
    for row in rows:
        told = trace.attributes(row)
        # One span in place of many steps would count as one token.
        folded = any(_is_below(trace, other, row) for other in lost)
        steps = [] if folded else [_stretch(trace, other) for other in every if _is_below(trace, other, row)]
        split = Split(tuple(sorted(steps, key=lambda step: step.start_ns)), "steps" if steps else "")
        count = told.get("gen_ai.usage.output_tokens")
        tokens = Tokens(count, "usage") if isinstance(count, int) and count > 0 else Tokens(None, "")
        name = str(told.get("tokentrace.pass", ""))
        yield _Request(row, name, trace.start_ns[row], trace.end_ns[row], split, tokens, [_FOLDED] if folded else [])


def _name(trace: Trace, row: int) -> str:
    return trace.names[trace.name[row]]


def _is_step(trace: Trace, row: int) -> bool:
    return trace.layer[row] == 6 and _name(trace, row) == "step"


def _stands_for_steps(trace: Trace, row: int) -> bool:
    """Whether this span is what several steps were folded into, or may hold steps among what was folded below it."""
    keys = trace.shapes[trace.shape[row]]
    if _is_step(trace, row):
        return COUNT in keys
    return BELOW in keys and not any(_is_step(trace, other) for other in _above(trace, row))


def _above(trace: Trace, row: int) -> Iterator[int]:
    while trace.parent[row] >= 0:
        row = trace.parent[row]
        yield row


def _is_below(trace: Trace, row: int, top: int) -> bool:
    """Whether it is `top`, or lies below it."""
    return row == top or top in _above(trace, row)


def _stretch(trace: Trace, row: int) -> Stretch:
    told = trace.attributes(row)
    phase = "prefill" if told.get("tokentrace.step.phase") == "prefill" else "decode"
    share, batch = told.get("tokentrace.step.share"), told.get("tokentrace.step.batch_size")
    return Stretch(
        trace.start_ns[row],
        trace.end_ns[row],
        phase,
        float(share) if isinstance(share, (int, float)) else 1.0,
        batch if isinstance(batch, int) and batch > 0 else 1,
    )


def _without_unseen(trace: Trace, seen: set[int]) -> Trace:
    """A copy without the `unseen` spans of layer 1 below requests whose power is now known."""
    copy = Trace(trace.trace_id)
    copy.meta = dict(trace.meta)
    copy.processes = dict(trace.processes)
    row_of: dict[int, int] = {}
    for span in trace.spans:
        if span.layer == 1 and span.name == "unseen" and span.parent in seen:
            continue
        row_of[span.row] = copy.add(
            span.name, span.layer, span.start_ns, span.end_ns, row_of[span.parent] if span.parent >= 0 else -1,
            span.attributes, span_id=span.span_id, process=span.process, thread=span.thread, direction=span.direction,
            kind=span.kind, status=span.status, status_message=span.status_message, envelope=span.envelope,
            events=span.events, links=span.links,
        )  # fmt: skip
    return copy


def _outside(name: str, dump: PowerDump, requests: Sequence[_Request]) -> Finding:
    times = [sample.time_ns for sample in dump.samples if sample.time_ns is not None]
    first, last = requests[0].start_ns, max(request.end_ns for request in requests)
    evidence = f"{plural(len(times), 'sample')} with a time"
    if times:
        apart = max(min(times) - last, first - max(times))
        side = "after" if min(times) > last else "before"
        evidence += f", {duration(max(apart, 0))} {side} the run"
    evidence = "; ".join([evidence, *dump.notes])
    return Finding(1, f"No sample of {name} lies in the run's time.", evidence, WRONG_TIME, "unknown")
