"""Steps of an engine in the tree: cut at the request's end, those of others left out, work of other processes."""

from __future__ import annotations

from stitch_support import check_tree, fields, names_above
from support.records import CLIENT, ENGINE, GENERATION, MS, RID, T0, request_pass

from tokentrace.model import IdSource, Record
from tokentrace.stitch import PassRecords, stitch


def test_a_step_under_way_when_the_request_ends_is_cut_there_with_what_ran_in_it() -> None:
    one = request_pass("once", steps=3, deep=False)
    last = [r for r in one.records if r.name == "step"][-1]
    forward = [r for r in one.records if r.name == "forward"][-1]
    end = last.start_ns + 3 * MS  # of ten: the handler had found a stop string
    late = [r for r in one.records if r.start_ns >= last.end_ns and r.layer > 6]
    records = [r for r in one.records if r not in late and r.process != CLIENT]
    for record in records:
        if record.envelope and record.layer == 8:
            record.end_ns = end
    trace = stitch([PassRecords("once", T0, end, records, request_id=RID)], ids=IdSource(1))
    check_tree(trace)
    below = [s for s in trace.spans if s.start_ns >= last.start_ns and s.layer in (5, 6)]
    step = next(s for s in below if s.name == "step")
    assert trace.span(step.parent).name == "request"
    assert (step.end_ns, step.attributes["tokentrace.clamped_ns"]) == (end, last.end_ns - end)
    inside = {s.name: s.end_ns - s.start_ns for s in below if s.parent == step.row}
    assert set(inside) == {"schedule", "prepare batch", "forward"} and inside["forward"] == end - forward.start_ns
    assert names_above(trace, "finish")[1] == "request"
    assert trace.meta["stitch"]["dropped_outside"] == 2, "sample and update batch ran after the end"


def test_a_step_after_the_end_is_left_out_with_all_that_ran_in_it() -> None:
    one = request_pass("once", steps=3)
    last = [r for r in one.records if r.name == "step"][-1]
    inside = [r for r in one.records if r.thread == last.thread and r.start_ns >= last.start_ns]
    records = [r for r in one.records if r.start_ns < last.start_ns or r in inside]
    for record in records:
        if record.envelope:
            record.end_ns = min(record.end_ns, last.start_ns)
    trace = stitch([PassRecords("once", T0, last.start_ns, records, request_id=RID)], ids=IdSource(1))
    check_tree(trace)
    assert sum(s.name == "step" for s in trace.spans) == 2
    assert trace.meta["stitch"]["dropped_outside"] == len(inside)


def test_steps_of_other_requests_are_dropped_with_all_that_ran_in_them_and_counted() -> None:
    one = request_pass("deep", steps=2)
    other = request_pass("deep", steps=2, at=T0 + 500 * MS)
    theirs = [r for r in other.records if r.thread == GENERATION]
    for record in theirs:
        record.key = record.key and f"{record.key}:other"
        record.parent_key = ""
        if record.name == "step":
            record.request = "chatcmpl-9999"
    unmarked = [Record("forward", 5, T0 + 900 * MS, T0 + 901 * MS, process=ENGINE, thread=GENERATION)]
    alone = stitch([request_pass("deep", steps=2)], ids=IdSource(1))
    end = T0 + 1000 * MS
    mixed = stitch(
        [PassRecords(**{**fields(one), "records": [*one.records, *theirs, *unmarked], "end_ns": end})],
        ids=IdSource(1),
    )
    check_tree(mixed)
    assert len(mixed) == len(alone)
    assert mixed.meta["stitch"]["dropped_foreign"] == len(theirs)
    assert mixed.meta["stitch"]["dropped_outside"] == 1


def test_a_request_id_that_the_server_lengthens_is_still_ours() -> None:
    one = request_pass("deep", steps=1)
    for record in one.records:
        if record.name == "step":
            record.request = f"{RID}-1a2b3c4d"
    trace = stitch([one], ids=IdSource(1))
    assert any(s.name == "step" for s in trace.spans) and trace.meta["stitch"]["dropped_foreign"] == 0


def test_work_of_another_process_falls_into_the_step_that_holds_it_in_time() -> None:
    one = request_pass("deep", steps=2, deep=False)
    step = [r for r in one.records if r.name == "step"][1]
    worker = Record("forward", 5, step.start_ns + MS, step.end_ns - MS, process="9000", thread=9)
    worker.attributes["worker"] = True
    trace = stitch([PassRecords(**{**fields(one), "records": [*one.records, worker]})], ids=IdSource(1))
    span = next(s for s in trace.spans if s.attributes.get("worker"))
    assert trace.span(span.parent).attributes["tokentrace.step.index"] == 101
    assert span.attributes["tokentrace.join"] == "time"


def test_work_of_another_process_falls_into_the_first_step_too() -> None:
    steps = [
        Record(
            "step",
            6,
            T0 + n * 10 * MS,
            T0 + (n + 1) * 10 * MS - MS,
            process="1",
            thread=1,
            key=f"step:1:{n}",
            request=RID,
        )
        for n in range(3)
    ]
    work = [
        Record(f"aten::op{n}", 4, T0 + n * 10 * MS + MS, T0 + n * 10 * MS + 2 * MS, process="2", thread=7)
        for n in range(3)
    ]
    trace = stitch([PassRecords("once", T0 - MS, T0 + 40 * MS, [*steps, *work], request_id=RID)])
    check_tree(trace)
    assert trace.meta["stitch"]["dropped_outside"] == 0
    assert all(names_above(trace, f"aten::op{n}")[1] == "step" for n in range(3))
