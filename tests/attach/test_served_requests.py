"""What is said of one request of others: how it ended, how many replies it asked for, how long it waited."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tokentrace import workflow
from tokentrace.attach.served import SPENT, Served, Sorter, trace_of
from tokentrace.attach.table import has_unknown, table
from tokentrace.attach.watch import Row, row_of
from tokentrace.emit.terminal import print_report
from tokentrace.interrupts import mark
from tokentrace.probe import Raw
from tokentrace.session import Outcome

T0, MS = 1_790_000_000_000_000_000, 1_000_000
#: API server and engine core; the thread that takes requests in and the one that schedules.
API, ENGINE, TAKES, SCHEDULES = "10", "20", 21, 20
FACTS = {"engine": "vllm", "version": "0.32.0", "model": "alpha", "compile": False}


def raw(group: str, name: str, start_ms: float, end_ms: float, process: str, thread: int, **data: Any) -> Raw:
    return Raw(group, name, T0 + int(start_ms * MS), T0 + int(end_ms * MS), thread, process, data)


def request(rids: tuple[str, ...], status: int = 200) -> Raw:
    several = {"rids": list(rids)} if len(rids) > 1 else {}
    return raw("http", "request", 0, 60, API, 10, rid=rids[0], method="POST", path="/v1/x", status=status, **several)


def reply(rid: str, tokens: int, reason: str = "stop") -> list[Raw]:
    return [
        raw("engine", "submit", 1, 2, API, 10, rid=rid, tokens=5),
        raw("engine", "receive", 2, 3, ENGINE, TAKES, rid=rid),
        raw("engine", "wait", 9, 10, ENGINE, SCHEDULES, rid=rid),
        raw("engine", "finish", 50, 50.1, ENGINE, SCHEDULES, rid=rid, reason=reason, tokens=tokens, prompt=5),
    ]


def steps(rids: tuple[str, ...], batch: int, count: int) -> list[Raw]:
    return [
        raw("engine", "step", 10 + 10 * i, 20 + 10 * i, ENGINE, SCHEDULES, index=i, phase="decode" if i else "prefill",
            reqs=dict.fromkeys(rids, 1), batch=batch, tokens=batch, tokens_out=dict.fromkeys(rids, 1), preempted=[])
        for i in range(count)
    ]  # fmt: skip


def served(sorter: Sorter, *records: Raw) -> Served:
    sorter.add(records)
    (found,) = sorter.finished(T0 + 10_000 * MS)
    return found


def told(one: Served, deep: bool = False) -> tuple[Row, workflow.Run]:
    run = workflow.conclude(Outcome(trace_of(one, FACTS, {}, deep=deep), {}), workflow.Settings(save=False))
    return row_of(one, run), run


def shown(row: Row) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(table([row]))
    return console.file.getvalue()  # type: ignore[attr-defined]


def sentences(run: workflow.Run) -> str:
    return "\n".join(one.sentence for one in run.report.findings)


def test_two_replies_to_one_request_are_one_request_and_no_others() -> None:
    rids, sorter = ("0_a", "1_a"), Sorter()
    one = served(sorter, *reply("0_a", 4), *reply("1_a", 3), *steps(rids, 2, 3), *steps(("0_a",), 1, 4)[3:],
                 request(rids))  # fmt: skip
    row, run = told(one)
    assert (row.replies, row.reply_tokens, one.tokens) == (2, 4, 7)
    assert "also served other requests" not in sentences(run)
    assert any("2 replies, of 7 tokens in all" in note for note in run.report.notes)
    assert "5 + 4, 1 of 2" in shown(row)
    assert sorter.under_way == 0
    sorter.add(reply("1_a", 3))  # too late
    assert sorter.under_way == 0


def output(rid: str, start_ms: float, end_ms: float, **data: Any) -> Raw:
    return raw("engine", "output", start_ms, end_ms, API, 10, rid=rid, index=0, tokens=1, **data)


def piece(start_ms: float, end_ms: float) -> Raw:
    return raw("http", "write", start_ms, end_ms, API, 10, rid="0_a", index=0, bytes=9)


def test_a_reply_that_is_whole_waits_for_the_others_to_its_request() -> None:
    records = [*reply("0_a", 2), *reply("1_a", 4), *steps(("0_a", "1_a"), 2, 2), output("0_a", 30, 31), piece(58, 59)]
    ends = request(("0_a", "1_a"))

    def waits(*more: Raw) -> list[tuple[float, float]]:
        spans = told(served(Sorter(), *records, *more, ends))[1].trace.spans
        return [((s.start_ns - T0) / MS, (s.end_ns - T0) / MS) for s in spans if s.name == "wait for other replies"]

    assert waits(output("1_a", 49, 50)) == [(31, 50)]
    assert waits(output("1_a", 49, 50), piece(40, 41)) == [(31, 40), (41, 50)], "a piece was sent meanwhile"
    assert waits(output("1_a", 29, 30)) == [], "the other was whole before"
    assert waits() == [], "when the other was whole was not seen"


def test_a_step_with_a_stranger_in_it_is_told_beside_the_requests_own_replies() -> None:
    rids = ("0_a", "1_a")
    one = served(Sorter(), *reply("0_a", 2), *reply("1_a", 2), *steps(rids, 3, 2), request(rids))
    assert "2 of 2 steps also served other requests" in sentences(told(one)[1])


def test_a_reply_whose_length_was_not_told_makes_no_sum() -> None:
    rids = ("0_a", "1_a")
    one = served(Sorter(), *reply("0_a", 2), *steps(rids, 2, 2), request(rids))
    assert one.tokens is None
    assert any("asked for 2 replies: this" in note for note in told(one)[1].report.notes)


def test_an_aborted_request_is_told_as_such() -> None:
    row, run = told(served(Sorter(), *reply("a", 2, "abort"), *steps(("a",), 1, 2), request(("a",))))
    assert "aborted before its reply was whole" in sentences(run)
    assert row.ended == "abort" and "aborted; " in shown(row)


@pytest.mark.parametrize("rids", [("a",), ("0_a", "1_a")])
def test_a_reply_that_ends_before_the_engine_does_is_waited_for(rids: tuple[str, ...]) -> None:
    """A stop string ends the reply at once, the engine hears of it at its next step."""
    sorter = Sorter()
    *before, finish = [raw for rid in rids for raw in reply(rid, 7, "abort")]
    sorter.add([*before, *steps(rids, len(rids), 2), request(rids)])  # the reply ends at 60 ms
    assert sorter.finished(T0 + 2_000 * MS) == [] and not sorter.settled(T0 + 60 * MS) and sorter.settled(T0 + 59 * MS)
    sorter.add([finish])
    (one,) = sorter.finished(T0 + 2_000 * MS)
    assert one.tokens == 7 * len(rids) and sorter.settled(T0 + 60 * MS)


def test_a_request_that_has_ended_and_waits_for_its_engine_is_not_under_way() -> None:
    sorter = Sorter()
    sorter.add([*reply("0_a", 7, "abort")[:-1], *reply("1_a", 7, "abort")[:-1], *reply("b", 5)[:-1]])
    sorter.add([*steps(("0_a", "1_a", "b"), 3, 2), request(("0_a", "1_a"))])
    assert (sorter.under_way, sorter.ended(T0 + 60 * MS), sorter.ended(T0 + 59 * MS)) == (1, 1, 0)


def test_an_engine_that_never_ends_a_request_is_not_waited_for_for_ever() -> None:
    sorter = Sorter()
    sorter.add([*reply("a", 7)[:-1], *steps(("a",), 1, 2), request(("a",))])
    (one,) = sorter.finished(T0 + 5_060 * MS)
    assert one.tokens is None


def test_what_was_not_seen_in_the_engine_is_in_the_report() -> None:
    sorter = Sorter()
    one = served(sorter, *reply("a", 3), *steps(("a",), 1, 3), request(("a",)))
    note = "the trace has gaps: 5 records found no room in the agent's buffer"
    report = workflow.conclude(
        Outcome(trace_of(one, {**FACTS, "notes": [note]}, {}), {}), workflow.Settings(save=False)
    ).report
    assert note in report.notes and note in report.to_json()["notes"]
    shown = io.StringIO()
    print_report(report, Console(width=200, file=shown))
    assert note in shown.getvalue()


def test_a_request_whose_server_went_away_is_kept_as_far_as_it_was_seen() -> None:
    sorter = Sorter()
    submitted, taken, waited, _ = reply("a", 2)
    sorter.add([submitted, taken, waited, *steps(("a",), 1, 2), *reply("b", 1), request(("b",))])
    whole, part = sorted(sorter.cut(T0 + 61 * MS, "no more of it was seen: it was killed"), key=lambda one: one.cut)
    assert (whole.rid, whole.cut, part.rid, sorter.under_way) == ("b", "", "a", 0)
    assert part.request.end_ns == T0 + 30 * MS  # the end of the last that was seen
    trace = trace_of(part, FACTS, {})
    mark(trace, part.cut)
    run = workflow.conclude(Outcome(trace, {}), workflow.Settings(save=False))
    row = row_of(part, run)
    assert (row.ended, row.status, row.wall_ns) == ("cut", 0, 29 * MS) and "cut off; " in shown(row)
    assert run.report.interrupted == part.cut
    assert has_unknown([row]) and len([one for one in trace.spans if one.name.startswith("step")]) == 2


def test_replies_to_a_request_that_has_ended_are_not_cut_off_when_the_server_goes_away() -> None:
    sorter, rids = Sorter(), ("0_a", "1_a")
    sorter.add([*reply("0_a", 2), *reply("1_a", 2), *steps(rids, 2, 2), request(rids)])
    (one,) = sorter.cut(T0 + 61 * MS, "it was killed")
    assert (one.rid, one.cut, one.replies, sorter.under_way) == ("0_a", "", 2, 0)


def test_a_request_whose_first_steps_are_forgotten_can_still_be_cut_off() -> None:
    sorter = Sorter()
    sorter.add([*reply("a", 2)[:3], *steps(("a",), 1, 2)])
    assert sorter.finished(T0 + 700 * 10**9) == []  # by then the steps are forgotten
    (one,) = sorter.cut(T0 + 700 * 10**9, "it was killed")
    assert one.rid == "a" and one.cut


def test_waiting_for_a_busy_engine_to_look_is_waiting() -> None:
    row, run = told(served(Sorter(), *reply("a", 2), *steps(("a",), 1, 2), request(("a",))))
    assert row.wait_ns == 7 * MS
    (queue,) = [one for one in run.trace.spans if one.name == "input queue"]
    assert queue.layer == 6 and queue.end_ns - queue.start_ns == 6 * MS


def test_where_one_thread_does_both_there_is_no_input_queue() -> None:
    records = [one._replace(thread=SCHEDULES) for one in reply("a", 2)]
    _, run = told(served(Sorter(), *records, *steps(("a",), 1, 2), request(("a",))))
    assert "input queue" not in {one.name for one in run.trace.spans}


@pytest.mark.parametrize(("status", "words"), [(404, "refused"), (500, "failed")])
def test_a_request_that_never_came_to_the_engine_is_told_with_its_status(status: int, words: str) -> None:
    row, run = told(served(Sorter(), request(("http-10-0",), status)))
    line = shown(row)
    assert f"{words}: HTTP {status}" in line and "/v1/x" in line and "?" not in line
    assert f"HTTP {status}" in sentences(run) and "cannot be seen from here" not in sentences(run)
    assert "HTTP 4" not in shown(told(served(Sorter(), *reply("a", 1), *steps(("a",), 1, 1), request(("a",))))[0])


def test_profiled_steps_that_went_to_another_request_are_the_reason() -> None:
    _, run = told(served(Sorter(), *reply("a", 2), *steps(("a",), 1, 2), request(("a",))), deep=True)
    states = {one.layer: one for one in run.report.layers}
    assert states[4].reason == states[3].reason == SPENT


def test_a_reply_that_nobody_asks_for_is_forgotten_in_time() -> None:
    sorter = Sorter()
    sorter.add(reply("offline", 2))
    sorter.finished(T0 + 3_600_000 * MS)
    assert sorter.under_way == 0


def test_a_stop_string_found_while_answering_ends_a_whole_reply_though_the_engine_is_told_to_abort() -> None:
    last = output("a", 41, 42, ended="stop")
    row, run = told(served(Sorter(), *reply("a", 2, "abort"), last, *steps(("a",), 1, 2), request(("a",))))
    assert row.ended == "stop" and "aborted" not in shown(row) + sentences(run)
    (finish,) = [one for one in run.trace.spans if one.name == "finish"]
    assert finish.attributes["tokentrace.finish_reason"] == "stop"
    assert finish.attributes["tokentrace.engine.finish_reason"] == "abort"


def test_a_request_that_left_while_it_waited_is_told_by_its_wait() -> None:
    records = [one for one in reply("a", 0, "abort") if one.name != "wait"]
    wait = raw("engine", "wait", 4, 50, ENGINE, SCHEDULES, rid="a")
    row, run = told(served(Sorter(), *records, wait, request(("a",))))
    assert row.wait_ns == 47 * MS and "47.0 ms" in shown(row)
    assert "was never scheduled" in sentences(run)
    assert "47.0 ms" in next(one.evidence for one in run.report.findings if "never scheduled" in one.sentence)
    assert run.report.slowest.startswith("`queue wait` (layer 6) took 46.0 ms")
    (model,) = [one for one in run.report.layers if one.layer == 5]
    assert model.reason.endswith("it left the engine's queue unserved") and not model.fix


def hop_to_engine(run: workflow.Run) -> list[int]:
    return [one.end_ns - one.start_ns for one in run.trace.spans if one.name == "hop to engine"]


def test_a_request_that_arrives_while_it_is_still_being_sent_has_travelled_since_the_sending_began() -> None:
    early = [one._replace(start_ns=T0 + int(1.6 * MS)) if one.name == "receive" else one for one in reply("a", 2)]
    late = [one._replace(data={**one.data, "sending_ns": T0 + int(1.5 * MS)}) if one.name == "submit" else one
            for one in early]  # fmt: skip
    rest = (*steps(("a",), 1, 2), request(("a",)))
    assert hop_to_engine(told(served(Sorter(), *late, *rest))[1]) == [MS // 10]
    assert hop_to_engine(told(served(Sorter(), *early, *rest))[1]) == [], "how long it took is not known"
    assert hop_to_engine(told(served(Sorter(), *reply("a", 2), *rest))[1]) == [0], "received as the sending returned"
