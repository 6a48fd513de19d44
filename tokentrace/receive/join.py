"""Waits for the server's own spans and adds them to the passes that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tokentrace.exchange import Exchange
from tokentrace.host import this_host
from tokentrace.model import Process
from tokentrace.probe import LayerState
from tokentrace.receive.account import LAYER, OUT_NS, Account, account, pid_of
from tokentrace.receive.receiver import Receiver
from tokentrace.receive.spans import ReceivedSpan
from tokentrace.stitch import PassRecords


@dataclass(frozen=True, slots=True)
class Told:
    """What the server told of one request. `missing`: why nothing, and what to do; None when nothing was to come."""

    spans: list[ReceivedSpan] = field(default_factory=list)
    missing: tuple[str, str] | None = None


def add_account(
    passes: Sequence[PassRecords],
    receiver: Receiver,
    processes: Mapping[str, Process],
    tell: Callable[[str], None] = lambda sentence: None,
) -> dict[str, Process]:
    """Wait until the server has told of each pass that was answered, then add its records and figures to the passes.

    Gives the processes that sent them and are not among `processes`. What did not come is told by the facts of layer
    6: `server_missing` is the reason, `server_fix` what to do.
    """
    asked = [one for one in passes if one.exchange is not None and one.exchange.error is None]
    if not asked:
        return {}
    tell(f"waiting for the server's own spans, {receiver.patience_s:g} s at most")
    receiver.wait(lambda spans: all(_of(one, asked, spans) for one in asked), receiver.patience_s)
    spans = receiver.spans()
    found: dict[str, Process] = {}
    for one in asked:
        assert one.exchange is not None
        mine = _of(one, asked, spans)
        told = Told(mine, None if mine else why_missing(receiver))
        found.update(add_told(one, told, {**processes, **found}))
    return found


def add_told(
    one: PassRecords, told: Told, processes: Mapping[str, Process], above: str = "chat", join: str = "time"
) -> dict[str, Process]:
    """Add what was told to the pass: spans below its client's span (or the record `above`, see `account`), and figures.
    Gives the process that sent it if it is not among `processes`."""
    if told.missing is not None:
        reason, fix = told.missing
        _with_facts(one, {"server_missing": reason, "server_fix": fix}, seen=False)
    if not told.spans:
        return {}
    assert one.exchange is not None
    key, process = process_of(told.spans[0], processes, same_clock=_lies_in(told.spans[0], one.exchange))
    phases = not _engine_seen(one)
    add(one, account(told.spans, one.exchange, one.client_span_id, key, phases=phases, above=above, join=join))
    return {} if key in processes else {key: process}


def _of(one: PassRecords, asked: Sequence[PassRecords], spans: Sequence[ReceivedSpan]) -> list[ReceivedSpan]:
    """The spans of one pass: what hangs below its client span, and what hangs below nothing we know and lies in it."""
    parents = {span.span_id: span.parent_id for span in spans}
    clients = {other.client_span_id for other in asked}
    found = []
    for span in spans:
        top, steps = span.parent_id, 0
        while top in parents and steps < len(parents):
            top, steps = parents[top], steps + 1
        if top == one.client_span_id or (top not in clients and (len(asked) == 1 or _lies_in(span, one.exchange))):
            found.append(span)
    return found


def _lies_in(span: ReceivedSpan, exchange: Exchange | None) -> bool:
    assert exchange is not None
    return exchange.start_ns - OUT_NS <= span.start_ns and span.end_ns <= exchange.end_ns + OUT_NS


def _engine_seen(one: PassRecords) -> bool:
    """Whether an agent tells of the engine's own steps: then nothing has to be made out of figures."""
    return any(record.layer == LAYER and record.name in ("queue wait", "step") for record in one.records)


def process_of(span: ReceivedSpan, known: Mapping[str, Process], *, same_clock: bool) -> tuple[str, Process]:
    """Where the span comes from. Only a sender whose clock is ours is taken to be on this host."""
    pid = pid_of(span)
    if pid and same_clock and str(pid) in known:
        return str(pid), known[str(pid)]
    key = f"server {pid}" if pid else "server"
    attributes = {name: value for name, value in span.resource.items() if not isinstance(value, list)}
    if pid:
        attributes["process.pid"] = pid
    return key, Process(key, {**(this_host() if same_clock else {}), **attributes})


def add(one: PassRecords, told: Account) -> None:
    """Put the records into the pass, and the figures beside layer 6's facts."""
    one.records = [*one.records, *told.records]
    facts: dict[str, object] = {f"server_{name}_ns": value for name, value in told.figures.items()}
    facts["server_spans"] = sum(1 for record in told.records if record.span_id)
    if told.who:
        facts["server_told_by"] = told.who
    if told.offset_ns:
        facts["server_clock"] = "foreign"
    _with_facts(one, facts, seen=True)


def why_missing(receiver: Receiver, *, watching: bool = False) -> tuple[str, str]:
    """Why the server's account is not there, and what to do. `watching`: the request is somebody else's."""
    where = receiver.where
    flag = f"--otlp-traces-endpoint http://127.0.0.1:{receiver.grpc_port}"
    if receiver.unreadable:
        return (
            f"what came to {where} is no OTLP in protobuf",
            "start the server with OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc (or http/protobuf, for the HTTP port)",
        )
    if receiver.refused and not watching:
        return (
            f"{receiver.refused} of its spans came to {where}, and none of this request's trace",
            "see whether something on the way drops the header traceparent, or whether the server takes only a share "
            "of all traces (OTEL_TRACES_SAMPLER)",
        )
    if receiver.messages:
        return (
            f"what it sent to {where} had no span of this request",
            "see whether the server takes only a share of all traces (OTEL_TRACES_SAMPLER), and its log"
            if watching
            else "send the prompt again; if that does not help, see the server's log",
        )
    return (
        f"it sent nothing to {where} within {receiver.patience_s:g} s",
        f"start vLLM with {flag}; with OTEL_BSP_SCHEDULE_DELAY=500 in its environment it sends sooner",
    )


def _with_facts(one: PassRecords, facts: dict[str, object], *, seen: bool) -> None:
    """Put the facts beside those of layer 6. A layer that only the server's account shows is seen."""
    states = {state.layer: state for state in one.states}
    state = states.get(LAYER)
    if state is None or (seen and state.status != "seen"):
        reason = f"the server's own account only: {state.reason}" if state is not None and state.reason else ""
        state = LayerState(LAYER, "seen" if seen else "unseen", reason, state.fix if state is not None else "",
                           dict(state.facts) if state is not None else {})  # fmt: skip
        states[LAYER] = state
    state.facts.update(facts)
    one.states = [states[number] for number in sorted(states, reverse=True)]
