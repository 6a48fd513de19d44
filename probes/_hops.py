"""The ways between the processes of a server: from the end of one's part to the beginning of the next one's.

    hop to engine     the request, from the process that speaks HTTP to the one with the scheduler
    input queue       there, from the thread that takes requests in to the one that schedules: a busy engine looks only
                      between two steps
    hop to worker     a step, from the scheduler to each process with the model
    hop from worker   its result, back again
    hop to api        the new token, from the scheduler to the process that detokenizes

Both ends are read on one clock (see `clock`); within one process there is no hop. Waiting for the other side to be
ready is part of a hop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokentrace.model import DOWN, UP, Record
from tokentrace.probe import Raw
from tokentrace.probes._request import step_key, step_of

LAYER = 6


def hops(steps: Sequence[Raw], own: Sequence[Raw], work: Sequence[Raw], rid: str) -> list[Record]:
    """`steps`: the engine's records of our steps; `own`: those of our request; `work`: the workers' of our steps."""
    return [*_request(steps, own, rid), *_steps(steps, work, rid)]


def _request(steps: Sequence[Raw], own: Sequence[Raw], rid: str) -> Iterator[Record]:
    sent = next((raw for raw in own if raw.name == "submit"), None)
    taken = next((raw for raw in own if raw.name == "receive"), None)
    if sent is not None and taken is not None and sent.process != taken.process:
        # The other side may have the message before the sending function has returned: then from that one's begin. Of
        # an agent that does not tell this, how long the way took is not known.
        start = sent.end_ns if sent.end_ns <= taken.start_ns else int(sent.data.get("sending_ns") or taken.start_ns)
        if start < taken.start_ns or start == sent.end_ns:
            yield _hop("hop to engine", start, taken.start_ns, DOWN, sent, taken, f"request:{rid}", rid, "request_id")
    queued = next((raw for raw in own if raw.name == "wait"), None)
    if taken is not None and queued is not None and taken.process == queued.process and taken.thread != queued.thread:
        end = max(taken.end_ns, queued.start_ns)
        yield Record("input queue", LAYER, taken.end_ns, end, {}, DOWN, queued.process, queued.thread,
                     parent_key=f"request:{rid}", request=rid, join="request_id", flow=True)  # fmt: skip
    made = sorted(
        (raw for raw in steps if raw.name == "step" and raw.data.get("tokens_out", {}).get(rid)),
        key=lambda raw: raw.end_ns,
    )
    came = sorted((raw for raw in own if raw.name == "output" and raw.data.get("tokens")), key=lambda r: r.start_ns)
    for step, output in zip(made, came, strict=False):
        if step.process != output.process and step.end_ns <= output.start_ns:
            yield _hop("hop to api", step.end_ns, output.start_ns, UP, step, output, f"request:{rid}", rid,
                       "request_id")  # fmt: skip


def _steps(steps: Sequence[Raw], work: Sequence[Raw], rid: str) -> Iterator[Record]:
    sent = {step_of(raw): raw for raw in steps if raw.name == "dispatch"}
    updated = {step_of(raw): raw for raw in steps if raw.name == "update"}
    last: dict[tuple[str, int], Raw] = {}
    for raw in work:
        key = step_of(raw)
        out = sent.get(key)
        if out is not None and out.process != raw.process and out.start_ns <= raw.start_ns:
            # From the end of what the sender did for it, or its begin where the worker was faster than the return.
            start = out.end_ns if out.end_ns <= raw.start_ns else out.start_ns
            yield _hop("hop to worker", start, raw.start_ns, DOWN, out, raw, step_key(raw), rid, "step")
        if key not in last or raw.end_ns > last[key].end_ns:
            last[key] = raw
    for key, raw in last.items():
        back = updated.get(key)
        if back is not None and back.process != raw.process and raw.end_ns <= back.start_ns:
            yield _hop("hop from worker", raw.end_ns, back.start_ns, UP, raw, back, step_key(raw), rid, "step")


def _hop(
    name: str, start: int, end: int, way: str, source: Raw, target: Raw, parent: str, rid: str, join: str
) -> Record:
    attributes = {"tokentrace.hop.from_pid": source.process, "tokentrace.hop.to_pid": target.process}
    return Record(
        name, LAYER, start, end, attributes, way, target.process, parent_key=parent, request=rid, join=join, flow=True
    )
