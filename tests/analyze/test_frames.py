"""Frames: what each step did in each layer, adding up to what the pass did."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.records import T0, request_pass, three_passes
from support.traces import traces

from tokentrace.analyze import analyze
from tokentrace.analyze.frames import Frame, folded, frames
from tokentrace.fold import fold
from tokentrace.model import DOWN, UP, IdSource, Trace
from tokentrace.stitch import stitch


def total(found: list[Frame]) -> int:
    return sum(sum(frame.own.values()) + frame.unattributed_ns for frame in found)


@pytest.mark.parametrize("name", ["cold", "warm", "deep"])
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_frames_follow_one_another_and_add_up_to_the_pass(name: str, steps: int) -> None:
    trace = three_passes(steps=steps)
    analysis = analyze(trace)
    found = frames(trace, analysis, name)
    assert len(found) == steps
    assert found[0].start_ns == 0 and found[-1].end_ns == analysis.passes[name].wall_ns
    assert all(a.end_ns == b.start_ns for a, b in pairwise(found))
    assert total(found) == analysis.passes[name].wall_ns
    assert [frame.phase for frame in found] == ["prefill", *["decode"] * (steps - 1)]
    assert [[token.index for token in frame.tokens] for frame in found] == [[index] for index in range(steps)]


def test_a_light_pass_is_shared_out_as_the_report_shares_it() -> None:
    trace = three_passes()
    analysis = analyze(trace)
    found = frames(trace, analysis, "warm")
    assert all(frame.estimated for frame in found)
    for layer in analysis.layers:
        for way, own in ((DOWN, layer.own_ns_down), (UP, layer.own_ns_up)):
            if own is not None:
                together = sum(frame.own.get((layer.layer.number, way), 0) for frame in found)
                assert abs(together - own) <= len(found), (layer.layer.number, way)
    measured = frames(trace, analysis, "deep")
    assert not any(frame.estimated for frame in measured)
    for place, spent in analysis.passes["deep"].own.items():
        assert sum(frame.own.get(place, 0) for frame in measured) == spent


def test_what_happens_once_is_in_one_frame_and_a_token_in_its_own() -> None:
    trace = three_passes()
    found = frames(trace, analyze(trace), "warm")
    assert (8, DOWN) in found[0].forms and (7, DOWN) in found[0].forms
    assert found[0].forms[7, DOWN] == ('"Hi"', "7 ids [1, 9690, …]")
    for frame in found[1:]:
        assert (8, DOWN) not in frame.forms and (7, DOWN) not in frame.forms
    # The decode of a token runs when the next step has begun; it belongs to the step that brought the token.
    assert [frame.forms[7, UP] for frame in found] == [("19556", '"Hello"'), ("17", '"!"'), ("1073", '" How"')]
    assert [frame.forms[8, UP][1] for frame in found] == ['"Hello"', '"!"', '" How"']
    assert found[1].forms[6, DOWN][0] == "id 19556"
    assert found[1].forms[5, DOWN] == ("int64[1,1]", found[1].forms[5, DOWN][1])


def test_a_compile_counts_in_the_step_that_waited_for_it() -> None:
    trace = three_passes()
    found = frames(trace, analyze(trace), "cold")
    spent = [frame.own.get((2, DOWN), 0) for frame in found]
    assert spent[0] > 25_000_000 and spent[1:] == [0, 0]


def test_without_steps_the_arrivals_of_text_cut_the_time() -> None:
    ids = IdSource(5)
    records = request_pass("once", ids=ids, deep=False)
    records.records = [r for r in records.records if r.layer == 8 and r.process == "100"]
    trace = stitch([records], ids=ids)
    analysis = analyze(trace)
    found = frames(trace, analysis, "once")
    assert [frame.phase for frame in found] == ["arrival"] * 3
    assert [token.text for frame in found for token in frame.tokens] == ["Hello", "!", " How"]
    assert found[0].end_ns == analysis.main.ttft_ns
    assert total(found) == analysis.main.wall_ns
    assert not any(place[0] != 8 for frame in found for place in frame.own)


def test_a_folded_pass_says_so() -> None:
    trace = three_passes()
    small = fold(trace, 120)
    analysis = analyze(small)
    assert folded(small, analysis.passes["deep"].view)
    assert not any(frame.estimated for frame in frames(small, analysis, "warm"))
    assert not folded(trace, analyze(trace).passes["deep"].view)


def test_a_failed_request_has_no_frames_and_no_trouble() -> None:
    ids = IdSource(5)
    records = request_pass("once", ids=ids, deep=False, steps=0)
    trace = stitch([records], ids=ids)
    assert frames(trace, analyze(trace), "once") == []


@given(traces(max_spans=12), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_of_any_trace(trace: Trace, data: st.DataObject) -> None:
    for row in range(1, len(trace)):
        if data.draw(st.booleans()):
            trace.name[row] = trace.intern_name("step")
            trace.layer[row] = 6
    analysis = analyze(trace)
    for name, one in analysis.passes.items():
        found = frames(trace, analysis, name)
        if found:
            assert total(found) == one.wall_ns


def test_braces_in_a_name_are_only_a_name() -> None:
    trace = Trace(ids=IdSource(1))
    root = trace.add("run", 0, T0, T0 + 1000, -1)
    trace.add("module {lambda()#1}::{}", 5, T0, T0 + 900, root)
    assert "`module {lambda()#1}::{}` (layer 5) took 900 ns" in analyze(trace).slowest
