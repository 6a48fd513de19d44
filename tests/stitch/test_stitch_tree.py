"""Stitching: whatever the records, one tree that encloses, with nothing lost and nothing of other requests in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stitch_support import check_tree, fields, names_above
from support.records import ENGINE, GENERATION, MS, RID, T0, US, request_pass

from tokentrace.layers import MARKS
from tokentrace.model import IdSource, Record
from tokentrace.probe import LayerState
from tokentrace.stitch import PassRecords, stitch


@st.composite
def nested(draw: Any, low: int, high: int, depth: int) -> list[tuple[int, int]]:
    """Intervals of one thread that nest properly inside [low, high]."""
    found: list[tuple[int, int]] = []
    clock = low
    while clock < high and draw(st.booleans()):
        start = draw(st.integers(clock, high))
        end = draw(st.integers(start, high))
        found.append((start, end))
        if depth and end - start > 2:
            found += draw(nested(start, end, depth - 1))
        clock = end + 1
    return found


threads = st.tuples(st.sampled_from(["1", "2", "3"]), st.integers(1, 3))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(threads, nested(T0, T0 + 10_000_000, 3), max_size=6), st.randoms(use_true_random=False))
def test_nested_intervals_of_several_threads_and_processes_give_one_tree_with_nothing_lost(
    intervals: dict[tuple[str, int], list[tuple[int, int]]], rng: Any
) -> None:
    records = [
        Record(f"{process}/{thread}/{number}", 4, start, end, process=process, thread=thread)
        for (process, thread), spans in intervals.items()
        for number, (start, end) in enumerate(spans)
    ]
    rng.shuffle(records)
    trace = stitch([PassRecords("warm", T0, T0 + 10_000_000, records)], ids=IdSource(1))
    check_tree(trace)
    names = [span.name for span in trace.spans if span.layer == 4 and span.name not in MARKS]
    assert sorted(names) == sorted(r.name for r in records)
    assert trace.meta["stitch"]["clamped"] == 0
    by_name = {record.name: record for record in records}
    for span in trace.spans:
        if span.name not in by_name:
            continue
        record = by_name[span.name]
        assert (span.start_ns, span.end_ns) == (record.start_ns, record.end_ns)
        # Of those that enclose it on its thread, the smallest is the parent.
        around = [
            other.end_ns - other.start_ns
            for other in records
            if other is not record
            and (other.process, other.thread) == (record.process, record.thread)
            and other.end_ns > other.start_ns
            and other.start_ns <= record.start_ns
            and record.end_ns <= other.end_ns
        ]
        parent = trace.span(span.parent)
        if not around:
            assert parent.name == "pass warm"
        elif (record.start_ns, record.end_ns) not in [(o.start_ns, o.end_ns) for o in records if o is not record]:
            assert parent.duration_ns == min(around)
            assert (parent.process, parent.thread) == (record.process, record.thread)


times = st.integers(T0 - 2_000_000, T0 + 12_000_000)


wild = st.builds(
    Record,
    name=st.sampled_from(["step", "forward", "aten::mm", "kernel k", "request", "power"]),
    layer=st.integers(1, 8),
    start_ns=times,
    end_ns=times,
    process=st.sampled_from(["1", "2"]),
    thread=st.integers(1, 2),
    span_id=st.integers(0, 6),
    parent_id=st.sampled_from([0, 0, 1, 2, 3]),
    key=st.sampled_from(["", "", "a", "b", "c", "chat", f"request:{RID}"]),
    parent_key=st.sampled_from(["", "", "a", "b", "c", "missing"]),
    link_keys=st.sampled_from([(), (), ("a",), ("missing",)]),
    request=st.sampled_from(["", RID, "other"]),
    flow=st.booleans(),
    direction=st.sampled_from(["", "down", "up"]),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(wild, max_size=30), st.sampled_from([0, 1, 99]), st.sampled_from(["", RID]))
def test_records_that_overlap_contradict_or_go_in_circles_still_give_a_tree(
    records: list[Record], client_span_id: int, request_id: str
) -> None:
    one = PassRecords("warm", T0, T0 + 10_000_000, records, client_span_id=client_span_id, request_id=request_id)
    trace = stitch([one], ids=IdSource(1))
    check_tree(trace)
    told = trace.meta["stitch"]
    unseen = sum(1 for span in trace.spans if span.name in MARKS)
    assert told["records"] == len(records)
    assert len(trace) - 2 - unseen == len(records) - told["dropped_foreign"] - told["dropped_outside"]
    assert {span.layer for span in trace.spans} == set(range(9))
    for span in trace.spans:
        assert (span.attributes.get("tokentrace.clamped_ns") or 0) >= 0


def test_a_request_of_three_passes_is_one_tree_down_to_the_leaf_operators() -> None:
    ids = IdSource(2)
    passes = [
        request_pass("cold", ids=ids, deep=False, compile_ms=30),
        request_pass("warm", ids=ids, at=T0 + 10**9, deep=False),
        request_pass("deep", ids=ids, at=T0 + 2 * 10**9),
    ]
    trace = stitch(passes, ids=ids, attributes={"tokentrace.prompt": "Hi"})
    check_tree(trace)
    assert [s.name for s in trace.spans if s.parent == 0] == ["pass cold", "pass warm", "pass deep"]
    assert names_above(trace, "leaf aten::mm") == [
        "leaf aten::mm", "aten::linear", "layers.0.mlp", "forward", "step", "request",
        "POST /v1/chat/completions", "chat smollm2", "pass deep", "tokentrace run",
    ]  # fmt: skip
    assert names_above(trace, "compile mlp")[:3] == ["compile mlp", "forward", "step"]
    assert trace.meta["stitch"]["dropped_foreign"] == trace.meta["stitch"]["clamped"] == 0
    assert len(trace) == sum(len(p.records) for p in passes) + 4 + sum(s.name in MARKS for s in trace.spans)
    for span in trace.spans:
        assert span.attributes["tokentrace.layer"] == span.layer
        assert span.row == 0 or span.attributes["tokentrace.pass"] in ("cold", "warm", "deep")
        assert span.attributes.get("tokentrace.direction", "") == span.direction
    chat = [s.span_id for s in trace.spans if s.name == "chat smollm2"]
    assert chat == [p.client_span_id for p in passes]  # the id that went out in the traceparent


def test_below_the_tensor_layer_the_direction_is_that_of_the_module() -> None:
    trace = stitch([request_pass("deep")], ids=IdSource(2))
    for span in trace.spans:
        if span.layer in (3, 4):
            module = span
            while module.layer < 5:
                module = trace.span(module.parent)
            assert span.direction == ("up" if module.name in ("lm_head", "sample") else "down")


def test_a_kernel_that_outlives_its_launch_hangs_below_what_holds_both_and_links_to_the_launch() -> None:
    one = request_pass("deep", steps=1)
    operator = next(r for r in one.records if r.name == "aten::linear")
    begin, end = operator.start_ns, operator.end_ns
    here = {"process": ENGINE, "thread": GENERATION}
    launch = Record("launch cudaLaunchKernel", 3, begin + 3000, begin + 9000, key="launch:1", **here)  # type: ignore[arg-type]
    inside = Record("kernel inside", 3, begin + 10_000, begin + 90_000, process=ENGINE, thread=7,
                    link_keys=("launch:1",), join="correlation_id")  # fmt: skip
    later = Record("kernel later", 3, end + 100_000, end + 105_000, process=ENGINE, thread=7, link_keys=("launch:1",))
    trace = stitch([PassRecords(**{**fields(one), "records": [*one.records, launch, inside, later]})], ids=IdSource(2))
    check_tree(trace)
    # The leaf operator began before the launch, so it is what holds it; the later kernel climbs out of both.
    assert names_above(trace, "kernel inside")[1] == "leaf aten::mm"
    assert names_above(trace, "kernel later")[1] == "layers.0.mlp"
    by_name = {s.name: s for s in trace.spans}
    for name in ("kernel inside", "kernel later"):
        span = by_name[name]
        assert [x.span_id for x in span.links] == [by_name["launch cudaLaunchKernel"].span_id]
        assert span.attributes["tokentrace.join"] == "correlation_id"
        assert "tokentrace.clamped_ns" not in span.attributes
        assert span.direction == "down"


def test_a_kernel_goes_the_way_of_the_operator_that_launched_it() -> None:
    one = request_pass("deep", steps=1)
    step = next(r for r in one.records if r.name == "step")
    head = next(r for r in one.records if r.name == "lm_head")
    launch = Record("launch k", 3, head.start_ns, head.start_ns + US, key="launch:1", process=ENGINE, thread=GENERATION)
    kernel = Record("kernel k", 3, head.start_ns + 2 * US, head.start_ns + 9 * US, process=ENGINE, flow=True,
                    parent_key=step.key, link_keys=("launch:1",))  # fmt: skip
    step.direction = "down"
    trace = stitch([PassRecords(**{**fields(one), "records": [*one.records, kernel, launch]})], ids=IdSource(2))
    check_tree(trace)
    span = next(s for s in trace.spans if s.name == "kernel k")
    assert (trace.span(span.parent).name, span.direction) == ("step", "up")
    assert span.attributes["tokentrace.direction"] == "up"


def test_a_child_that_sticks_out_a_little_is_cut_and_says_by_how_much() -> None:
    records = [
        Record("forward", 5, T0, T0 + MS, process="1", thread=1),
        Record("aten::mm", 4, T0 + 500 * US, T0 + MS + 4 * US, process="1", thread=1),
    ]
    trace = stitch([PassRecords("once", T0, T0 + 2 * MS, records)], ids=IdSource(1))
    child = next(s for s in trace.spans if s.name == "aten::mm")
    assert trace.span(child.parent).name == "forward"
    assert (child.end_ns, child.attributes["tokentrace.clamped_ns"]) == (T0 + MS, 4 * US)
    told = trace.meta["stitch"]
    assert (told["clamped"], told["clamped_total_ns"], told["clamped_max_ns"]) == (1, 4 * US, 4 * US)


def test_a_record_that_names_a_parent_but_happened_elsewhere_goes_to_the_ancestor_that_holds_it() -> None:
    records = [
        Record("chat m", 8, T0, T0 + 9 * MS, key="chat", envelope=True, flow=True),
        Record("request", 6, T0, T0 + MS, key="request:r", parent_key="chat", flow=True),
        Record("finish", 6, T0 + 5 * MS, T0 + 6 * MS, parent_key="request:r", flow=True),
    ]
    trace = stitch([PassRecords("once", T0, T0 + 10 * MS, records)], ids=IdSource(1))
    assert names_above(trace, "finish")[1] == "chat m"
    assert trace.meta["stitch"]["moved"] == 1 and trace.meta["stitch"]["clamped"] == 0


def test_every_layer_whose_probe_ran_is_shown_or_says_why_not() -> None:
    states = [
        LayerState(3, "unseen", "CUPTI is held by another profiler", "stop it"),
        LayerState(2, "idle", "eager: nothing to compile"),
        LayerState(7, "seen"),
    ]
    trace = stitch([PassRecords("once", T0, T0 + MS, [], states)], ids=IdSource(1))
    shown = {s.layer: s for s in trace.spans if s.name in MARKS}
    assert sorted(shown) == list(range(1, 9))
    assert shown[3].attributes["tokentrace.unseen"] == "CUPTI is held by another profiler"
    assert shown[3].attributes["tokentrace.fix"] == "stop it"
    assert shown[2].attributes["tokentrace.idle"] == "eager: nothing to compile"
    assert "tokentrace.unseen" not in shown[2].attributes
    assert (shown[2].name, shown[3].name) == ("idle", "unseen"), "the name says what the attribute says"
    assert shown[7].attributes["tokentrace.unseen"] == "its probe ran and recorded nothing"
    assert shown[8].attributes["tokentrace.unseen"] == "its probe did not run"
    assert all(s.duration_ns == 0 for s in shown.values())


def test_a_layer_with_other_evidence_still_says_that_it_cannot_be_seen() -> None:
    usage = Record("power cpu usage", 1, T0, T0 + MS, {"tokentrace.cpu.seconds": 0.1})
    states = [LayerState(1, "unseen", "no power sensor", "use one")]
    trace = stitch([PassRecords("once", T0, T0 + MS, [usage], states)], ids=IdSource(1))
    found = [s for s in trace.spans if s.layer == 1]
    assert {s.name for s in found} == {"power cpu usage", "unseen"}
    # A span that says so itself needs no second one.
    usage.attributes["tokentrace.unseen"] = "no power sensor"
    trace = stitch([PassRecords("once", T0, T0 + MS, [usage], states)], ids=IdSource(1))
    assert [s.name for s in trace.spans if s.layer == 1] == ["power cpu usage"]


def test_what_the_client_saw_and_how_layers_stood_is_kept_beside_the_spans() -> None:
    trace = stitch([request_pass("warm")], ids=IdSource(1), meta={"run": "x"})
    facts = trace.meta["passes"]["warm"]
    assert facts["exchange"]["text"] == "Hello! How" and facts["exchange"]["output_tokens"] == 3
    assert facts["exchange"]["chunks"][0][1] == "Hello" and facts["exchange"]["chunks"][0][0] > 0
    assert {"layer": 2, "status": "idle", "reason": "eager: nothing to compile", "fix": "", "facts": {}} in facts[
        "states"
    ]
    assert trace.meta["run"] == "x"
    assert trace.processes[ENGINE].attributes == {"process.pid": int(ENGINE)}


def test_deeply_nested_records_stay_below_the_depth_that_viewers_take() -> None:
    count = 3_000
    records = [Record("aten::a", 4, T0 + i, T0 + MS - i, process="1", thread=1) for i in range(count)]
    trace = stitch([PassRecords("once", T0, T0 + MS, records)], ids=IdSource(1))
    check_tree(trace)
    depth = [0] * len(trace)
    for row in range(1, len(trace)):
        depth[row] = depth[trace.parent[row]] + 1
    assert max(depth) < 250


def test_a_staircase_of_overlapping_records_takes_no_quadratic_time() -> None:
    # 40,000 records of one thread, each overlapping thousands of others and nested in none.
    records = [Record("aten::a", 4, T0 + i * US, T0 + (i + 9_000) * US, process="1", thread=1) for i in range(40_000)]
    trace = stitch([PassRecords("once", T0, T0 + 60_000 * US, records)], ids=IdSource(1))
    assert sum(span.layer == 4 and span.name not in MARKS for span in trace.spans) == 40_000


def test_no_pass_or_two_of_one_name_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one pass"):
        stitch([])
    with pytest.raises(ValueError, match="different names"):
        stitch([PassRecords("warm", 0, 1, []), PassRecords("warm", 2, 3, [])])
