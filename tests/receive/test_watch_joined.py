"""Requests of others, watched from inside: the server's own span of each one is in that one's trace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from span_sender import FIGURES, Tracing, exporter

from tokentrace import receive, workflow
from tokentrace.attach.joined import CUT, Joiner, expected
from tokentrace.attach.served import Served, trace_of
from tokentrace.model import Process, Trace
from tokentrace.probe import Raw
from tokentrace.receive.join import Told
from tokentrace.session import Outcome

MS = 1_000_000
CALLER, ABOVE = 0xABCDEF0123456789, 0x1122334455667788
FACTS = {"engine": "vllm", "version": "0.32.0", "model": "alpha"}


def raw(end_ns: int, group: str, name: str, start_ms: float, end_ms: float, **data: Any) -> Raw:
    start = end_ns - 60 * MS
    return Raw(group, name, start + int(start_ms * MS), start + int(end_ms * MS), 7, "4242", data)


def request(rid: str, end_ns: int, traceparent: str = "", rids: tuple[str, ...] = (), reason: str = "stop") -> Served:
    """One that the agent saw from its arrival to `end_ns`, 60 ms; its reply is a step long."""
    http: dict[str, Any] = {"rid": rid, "method": "POST", "path": "/v1/chat/completions", "status": 200}
    if traceparent:
        http["traceparent"] = traceparent
    if rids:
        http["rids"] = list(rids)
    whole = raw(end_ns, "http", "request", 0, 60, **http)
    raws = [
        whole,
        raw(end_ns, "engine", "submit", 1, 2, rid=rid, tokens=9),
        raw(end_ns, "engine", "step", 12, 50, index=0, phase="prefill", reqs={rid: 9}, batch=1, tokens=9,
            tokens_out={rid: 2}, preempted=[]),
        raw(end_ns, "engine", "finish", 50, 51, rid=rid, reason=reason, tokens=2, prompt=9),
    ]  # fmt: skip
    return Served(rid, whole, raws, replies=max(1, len(rids)))


@pytest.fixture
def receiver() -> Iterator[receive.Receiver]:
    with receive.open(0) as found:
        found.patience_s = 100
        yield found


@pytest.fixture
def sender(receiver: receive.Receiver) -> Iterator[Tracing]:
    with Tracing(exporter(receiver, "grpc")) as found:
        yield found


def ready(joiner: Joiner, count: int) -> dict[str, tuple[Served, Told]]:
    found: dict[str, tuple[Served, Told]] = {}
    deadline = time.monotonic() + 100
    while len(found) < count:
        assert time.monotonic() < deadline
        for served, told in joiner.ready():
            assert told is not None
            found[served.rid] = (served, told)
        time.sleep(0.02)
    return found


def trace(served: Served, told: Told | None) -> Trace:
    return trace_of(served, FACTS, {"4242": Process("4242", {"process.pid": 4242})}, told=told)


def test_each_request_gets_its_own_span_and_no_other(receiver: receive.Receiver, sender: Tracing) -> None:
    joiner, now = Joiner(receiver), time.time_ns()
    caller = f"00-{CALLER:032x}-{ABOVE:016x}-01"
    for served in (
        request("chatcmpl-a-0a1b2c3d", now),
        request("chatcmpl-a-b-0a1b2c3d", now),
        request("chatcmpl-z", now, caller),
    ):
        joiner.add(served)
    sender.span("", now - 5 * MS, request="chatcmpl-a")
    sender.span("", now - 5 * MS, request="chatcmpl-a-b")
    sender.span(caller, now - 5 * MS, request="chatcmpl-z")
    sender.span(caller, now - 5 * MS, request="chatcmpl-y")  # its caller gives one parent to several requests
    sender.span("", now - 5 * MS, request="chatcmpl-of-nobody")
    sender.span("", now - 3_600_000 * MS, request="chatcmpl-a")  # one that had the same name an hour ago
    found = ready(joiner, 3)
    assert len(joiner) == 0 and all(len(told.spans) == 1 for _, told in found.values())
    for rid, own in (("chatcmpl-a-0a1b2c3d", "chatcmpl-a"), ("chatcmpl-a-b-0a1b2c3d", "chatcmpl-a-b")):
        assert found[rid][1].spans[0].attributes["gen_ai.request.id"] == own
    assert found["chatcmpl-z"][1].spans[0].attributes["gen_ai.request.id"] == "chatcmpl-z"


def test_it_hangs_below_the_handler_beside_what_the_agent_saw(receiver: receive.Receiver, sender: Tracing) -> None:
    joiner, now = Joiner(receiver), time.time_ns()
    joiner.add(request("chatcmpl-1-0a1b2c3d", now))
    sender.span("", now - 5 * MS)
    ((served, told),) = ready(joiner, 1).values()
    seen = trace(served, told)
    spans = {span.name: span for span in seen.spans}
    own, handler = spans["llm_request"], spans["POST /v1/chat/completions"]
    assert own.parent == handler.row and own.layer == 6 and own.process == "4242"
    assert own.attributes["tokentrace.join"] == "request_id" and own.attributes["tokentrace.source"] == "otlp"
    assert FIGURES.items() <= own.attributes.items()
    assert "step" in spans and "engine prefill" not in spans  # the agent's steps, none made out of the figures
    assert seen.trace_id == told.spans[0].trace_id
    assert "4242" in seen.processes and "server 4242" not in seen.processes
    run = workflow.conclude(Outcome(seen, {}), workflow.Settings(save=False))
    facts = next(row.facts for row in run.report.layers if row.layer == 6)
    assert (facts["server_spans"], facts["server_prefill_ns"]) == (1, 10 * MS)
    assert any("By the server's own account" in finding.sentence for finding in run.report.findings)


def test_the_callers_trace_stays_the_trace(receiver: receive.Receiver, sender: Tracing) -> None:
    joiner, now = Joiner(receiver), time.time_ns()
    caller = f"00-{CALLER:032x}-{ABOVE:016x}-01"
    joiner.add(request("chatcmpl-1", now, caller))
    sender.span(caller, now - 5 * MS)
    ((served, told),) = ready(joiner, 1).values()
    seen = trace(served, told)
    spans = {span.name: span for span in seen.spans}
    assert seen.trace_id == CALLER and seen.meta["parent_span_id"] == ABOVE
    assert spans["llm_request"].parent == spans["POST /v1/chat/completions"].row


def test_several_replies_have_a_span_each(receiver: receive.Receiver, sender: Tracing) -> None:
    joiner, now = Joiner(receiver), time.time_ns()
    rids = ("0_chatcmpl-1-0a1b2c3d", "1_chatcmpl-1-0a1b2c3d")
    joiner.add(request(rids[0], now, rids=rids))
    sender.span("", now - 9 * MS)
    sender.span("", now - 5 * MS)
    ((served, told),) = ready(joiner, 1).values()
    assert [span.name for span in trace(served, told).spans].count("llm_request") == 2


def test_what_does_not_come_is_waited_for_and_then_explained(receiver: receive.Receiver) -> None:
    receiver.patience_s = 0.2
    joiner = Joiner(receiver)
    joiner.add(request("chatcmpl-1", time.time_ns()))
    ((served, told),) = ready(joiner, 1).values()
    assert told.spans == [] and told.missing is not None and "sent nothing" in told.missing[0]
    facts = trace(served, told).meta["passes"]["once"]["states"]
    assert next(one for one in facts if one["layer"] == 6)["facts"]["server_missing"] == told.missing[0]


def test_when_the_watching_is_cut_short_what_waits_is_not_lost(receiver: receive.Receiver) -> None:
    receiver.patience_s = 1_000
    joiner = Joiner(receiver)
    joiner.add(request("chatcmpl-1", time.time_ns()))
    assert joiner.ready() == []
    ((_, told),) = joiner.ready(at_once=True)
    assert told == Told([], CUT) and len(joiner) == 0


@pytest.mark.parametrize("which", ["aborted", "refused"])
def test_one_of_which_the_server_tells_nothing_is_not_waited_for(receiver: receive.Receiver, which: str) -> None:
    receiver.patience_s = 1_000
    joiner, now = Joiner(receiver), time.time_ns()
    served = request("chatcmpl-1", now, reason="abort")
    if which == "refused":
        served.raws = [served.request]
    joiner.add(served)
    assert [told for _, told in joiner.ready()] == [Told()]


def test_without_a_receiver_nothing_is_waited_for_or_missed() -> None:
    joiner = Joiner(None)
    joiner.add(request("chatcmpl-1", time.time_ns()))
    ((served, told),) = joiner.ready()
    assert told is None
    assert "server_missing" not in str(trace(served, told).meta)


def test_two_requests_of_one_callers_trace_are_two_runs(tmp_path: Path) -> None:
    caller, now = f"00-{CALLER:032x}-{ABOVE:016x}-01", time.time_ns()
    folders = set()
    for rid in ("chatcmpl-1", "chatcmpl-2", "chatcmpl-3"):  # well within a second on most machines
        seen = trace(request(rid, now, caller), None)
        run = workflow.conclude(Outcome(seen, {}), workflow.Settings(out=tmp_path))
        assert run.folder is not None and rid in (run.folder / "trace.jsonl").read_text()
        folders.add(run.folder)
    assert len(folders) == 3


def test_a_reply_that_ended_at_a_stop_string_has_a_span_of_the_servers_although_the_engine_was_told_to_abort() -> None:
    aborted = request("a", time.time_ns(), reason="abort")
    assert expected(aborted) == 0
    aborted.raws.append(raw(aborted.request.end_ns, "engine", "output", 51, 52, rid="a", tokens=1, ended="stop"))
    assert expected(aborted) == 1
