"""A power dump joined to a trace that tokentrace made, by time: what each request drew, with the dump's own error.

Times of a trace are unix times of the machine on which `tokentrace run` ran; a dump's are those of the machine with
the card. Both must be set by the same clock (NTP keeps them within milliseconds, a dump's samples are tens of
milliseconds to seconds apart).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokentrace.energy.curve import Stretch
from tokentrace.energy.device import Split, Tokens
from tokentrace.importers import power_dumps
from tokentrace.importers._companions import WRONG_TIME, energy_finding
from tokentrace.importers.power_dumps import PowerDump
from tokentrace.model import Record, Trace
from tokentrace.probe import Finding
from tokentrace.wording import duration, plural


@dataclass(slots=True)
class _Request:
    row: int
    name: str  # of its pass
    start_ns: int
    end_ns: int
    split: Split
    tokens: Tokens


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
                findings.append(energy_finding(record, dump.notes, f"in the {request.name} pass"))
        if len(found) == before:
            findings.append(_outside(name, dump, requests))
    joined = _without_unseen(trace, {request.row for request, _ in found})
    row_of = {span_id: row for row, span_id in enumerate(joined.span_id)}
    for request, record in found:
        attributes = {**record.attributes, "tokentrace.layer": 1, "tokentrace.join": "time"}
        if request.name:
            attributes["tokentrace.pass"] = request.name
        joined.add(record.name, 1, request.start_ns, request.end_ns, row_of[trace.span_id[request.row]], attributes)
    return joined, findings


def _requests(trace: Trace) -> Iterator[_Request]:
    """Each `chat` span; where there is none, the root."""
    rows = [row for row in range(len(trace)) if trace.layer[row] == 8 and _name(trace, row).startswith("chat ")] or [0]
    for row in rows:
        told = trace.attributes(row)
        steps = [_stretch(trace, other) for other in range(len(trace)) if _is_step_below(trace, other, row)]
        split = Split(tuple(sorted(steps, key=lambda step: step.start_ns)), "steps" if steps else "")
        count = told.get("gen_ai.usage.output_tokens")
        tokens = Tokens(count, "usage") if isinstance(count, int) and count > 0 else Tokens(None, "")
        name = str(told.get("tokentrace.pass", ""))
        yield _Request(row, name, trace.start_ns[row], trace.end_ns[row], split, tokens)


def _name(trace: Trace, row: int) -> str:
    return trace.names[trace.name[row]]


def _is_step_below(trace: Trace, row: int, top: int) -> bool:
    if trace.layer[row] != 6 or _name(trace, row) != "step":
        return False
    while row > top:
        row = trace.parent[row]
    return row == top


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
