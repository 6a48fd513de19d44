"""Folding: within the budget, still one tree, nothing uncounted, and what matters stays."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.records import T0, request_pass
from support.traces import run_trace, trees

from tokentrace.fold import fold
from tokentrace.model import STATUS_ERROR, IdSource, Trace
from tokentrace.stitch import stitch


def recorded(trace: Trace) -> int:
    """How many spans the trace stands for: itself, what was merged, what was folded below."""
    total = 0
    for span in trace.spans:
        total += span.attributes.get("tokentrace.folded.count", 1) + span.attributes.get("tokentrace.folded.spans", 0)
    return total


def check_tree(trace: Trace) -> None:
    assert trace.parent[0] == -1
    ids = set(trace.span_id)
    assert len(ids) == len(trace)
    for row in range(1, len(trace)):
        parent = trace.parent[row]
        assert 0 <= parent < row
        assert trace.start_ns[parent] <= trace.start_ns[row] <= trace.end_ns[row] <= trace.end_ns[parent]
    assert all(link.span_id in ids for links in trace.links.values() for link in links)


def big_run() -> Trace:
    """About the size of a reply of ten tokens: 70,000 spans in three passes."""
    ids = IdSource(5)
    return stitch(
        [
            request_pass("cold", ids=ids, deep=False, compile_ms=20),
            request_pass("warm", ids=ids, deep=False, at=T0 + 10**9, steps=11),
            request_pass("deep", ids=ids, at=T0 + 2 * 10**9, steps=11, modules=120, operators=26, prefill_ms=400,
                         decode_ms=200),
        ],
        ids=ids,
    )  # fmt: skip


def test_a_trace_that_fits_stays_as_it_is() -> None:
    trace = stitch([request_pass("deep")], ids=IdSource(1))
    before = list(trace.span_id)
    folded = fold(trace)
    assert folded is trace and folded.span_id == before
    assert folded.meta["fold"]["folded"] == 0


def test_a_reply_of_ten_tokens_fits_the_budget_and_keeps_what_matters() -> None:
    trace = big_run()
    assert len(trace) > 65_000
    before = Counter(
        (s.name, s.attributes.get("tokentrace.pass")) for s in trace.spans if s.layer in (0, 8, 7, 6, 2, 1)
    )
    folded = fold(trace)
    check_tree(folded)
    assert 5_000 < len(folded) <= 10_000
    after = Counter(
        (s.name, s.attributes.get("tokentrace.pass")) for s in folded.spans if s.layer in (0, 8, 7, 6, 2, 1)
    )
    assert after == before
    assert recorded(folded) == len(trace)
    assert folded.meta["fold"] == {
        "recorded": len(trace), "spans": len(folded), "folded": len(trace) - len(folded), "budget": 10_000,
    }  # fmt: skip
    assert folded.attributes(0)["tokentrace.spans.folded"] == len(trace) - len(folded)
    assert folded.trace_id == trace.trace_id and set(folded.span_id) <= set(trace.span_id)
    # The prefill and the first decode step keep their operators, the later ones are summed up on their modules.
    operators = Counter()
    for span in folded.spans:
        if span.layer in (3, 4) and span.attributes["tokentrace.pass"] == "deep":
            step = span
            while step.name not in ("step", "pass deep"):
                step = folded.span(step.parent)
            operators[step.attributes["tokentrace.step.index"]] += 1
    assert operators[100] > 1_000 and operators[101] > 200
    assert sum(count for index, count in operators.items() if index > 101) < 10
    summed = [s for s in folded.spans if s.layer == 5 and "tokentrace.folded.top" in s.attributes]
    assert len(summed) > 1_000
    # 26 calls of aten::linear below each module, each with its leaf operator.
    assert summed[0].attributes["tokentrace.folded.spans"] == 52
    assert summed[0].attributes["tokentrace.folded.top"][0].startswith("aten::linear ×26 ")


def test_siblings_of_one_name_become_one_span_with_their_count_and_times() -> None:
    trace = Trace(ids=IdSource(1))
    root = trace.add("run", 0, 0, 1000, -1)
    step = trace.add("step", 6, 0, 1000, root, {"tokentrace.step.phase": "prefill"})
    forward = trace.add("forward", 5, 0, 900, step)
    for start, length, shape in ((10, 20, "[1]"), (100, 50, "[2]"), (200, 30, "[3]"), (300, 90, "[4]")):
        trace.add("aten::mm" if start < 300 else "aten::add", 4, start, start + length, forward,
                  {"tokentrace.op.input_shapes": shape, "tokentrace.op.self_ns": length})  # fmt: skip
    trace.add("leaf aten::mul", 3, 400, 500, forward)
    folded = fold(trace, budget=7)
    check_tree(folded)
    span = next(s for s in folded.spans if s.name == "aten::mm")
    assert (span.start_ns, span.end_ns) == (10, 230)
    assert span.attributes == {
        "tokentrace.op.input_shapes": "[2]",  # of the longest
        "tokentrace.op.self_ns": 100,
        "tokentrace.folded.count": 3,
        "tokentrace.folded.total_ns": 100,
        "tokentrace.folded.min_ns": 20,
        "tokentrace.folded.max_ns": 50,
    }


def test_with_detail_nothing_is_folded() -> None:
    trace = run_trace(300)
    size = len(trace)
    assert len(fold(trace, budget=100, detail=True)) == size


def test_links_lead_to_the_span_that_stands_for_their_target() -> None:
    size = len(run_trace(2_000))
    for budget in (1_500, 700, 300, 60, 20):
        folded = fold(run_trace(2_000), budget=budget)
        check_tree(folded)
        assert len(folded) <= budget
        assert recorded(folded) == size


def test_errors_and_each_layer_survive_even_a_small_budget() -> None:
    folded = fold(run_trace(3_000), budget=100)
    assert {s.layer for s in folded.spans} == set(range(9))
    assert any(s.status == STATUS_ERROR for s in folded.spans)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees(), st.integers(1, 70))
def test_any_tree_fits_any_budget_and_every_span_is_counted(trace: Trace, budget: int) -> None:
    size, end = len(trace), trace.end_ns[0]
    folded = fold(trace, budget=budget)
    check_tree(folded)
    assert len(folded) <= budget
    assert recorded(folded) == size
    assert folded.end_ns[0] == end


def test_a_flat_trace_of_many_spans_takes_no_quadratic_time() -> None:
    trace = Trace(ids=IdSource(1))
    trace.add("run", 0, 0, 10**9, -1)
    for number in range(60_000):
        trace.add(f"module {number}", 5, number, number + 1, 0)
    folded = fold(trace)
    assert len(folded) <= 10_000 and recorded(folded) == 60_001


def test_a_budget_without_room_for_the_root_is_refused() -> None:
    with pytest.raises(ValueError, match="room"):
        fold(run_trace(10), budget=0)
