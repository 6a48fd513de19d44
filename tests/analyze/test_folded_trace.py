"""A folded trace says what the whole one says, or that it does not know: never anything else.

What it carries in its file is the whole's report; what its spans alone tell is a part of that.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.records import request_pass, three_passes
from support.traces import trees

from tokentrace import emit
from tokentrace.analyze import analyze
from tokentrace.carried import Trees, carried, carry, carry_trees, report_of, restore
from tokentrace.fold import fold
from tokentrace.model import IdSource, Trace
from tokentrace.report import Report, build
from tokentrace.stitch import stitch


def run(deep: bool = True, steps: int = 4, modules: int = 6, operators: int = 5, **more: Any) -> Trace:
    """A default run, or one with a single pass that looked inside."""
    if deep:
        return three_passes(steps=steps, modules=modules, operators=operators, **more)
    one = request_pass("once", steps=steps, modules=modules, operators=operators, **more)
    return stitch([one], ids=IdSource(3), attributes={"tokentrace.prompt": "Hi"}, meta={"prompt": "Hi"})


def written(trace: Trace, report: Report | None) -> Trace:
    """The trace as it comes back out of a file; with `report` it carries that."""
    if report is not None:
        carry(trace, report)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        emit.save(trace, path)
        return emit.load(path)


def comparable(report: Report) -> dict[str, Any]:
    """What it says of the run, without what it says of this trace of it."""
    told = report.to_json()
    return {key: value for key, value in told.items() if key not in ("spans", "files")}


runs = st.builds(
    run,
    deep=st.booleans(),
    steps=st.integers(1, 5),
    modules=st.integers(1, 8),
    operators=st.integers(1, 8),
    compile_ms=st.sampled_from([0, 20]),
    cached=st.sampled_from([0, 4]),
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(runs | trees(), st.integers(1, 400))
def test_what_a_folded_file_carries_is_the_report_of_the_whole(trace: Trace, budget: int) -> None:
    whole = build(trace)
    folded = fold(trace, budget)
    found = report_of(written(folded, whole if folded is not trace else None))
    assert comparable(found) == comparable(whole)
    assert found.spans["produced"] == len(folded)
    if folded is not trace:
        assert found.spans["recorded"] == len(trace)


def check_true(found: Report, whole: Report) -> None:
    """Nothing that the folded trace tells by its spans differs from the whole's."""
    assert (found.headline_pass, found.wall_ns, found.ttft_ns) == (whole.headline_pass, whole.wall_ns, whole.ttft_ns)
    assert found.unattributed_ns in (None, whole.unattributed_ns) and found.coverage in (None, whole.coverage)
    for mine, its in zip(found.layers, whole.layers, strict=True):
        for name in ("own_ns_down", "own_ns_up", "share", "evidence"):
            assert getattr(mine, name) in (None, getattr(its, name)), (mine.layer, name)
        if mine.own_ns_down is None and its.own_ns_down is not None:
            assert mine.own_source == "the trace is folded"
    assert set(found.passes) <= set(whole.passes)
    for name, one in found.passes.items():
        its_pass = whole.passes[name]
        assert one.wall_ns == its_pass.wall_ns
        assert one.unattributed_ns in (None, its_pass.unattributed_ns)
        assert one.own_ns in ({}, its_pass.own_ns)
        for mine_step, its_step in zip(one.steps, its_pass.steps, strict=bool(one.steps)):
            assert all(value in (None, its_step[key]) for key, value in mine_step.items())
    assert found.operators in ([], whole.operators)
    assert found.operators_own_ns in (None, whole.operators_own_ns)
    assert found.gaps in ([], whole.gaps) and found.token_times in ([], whole.token_times)
    assert whole.slowest.startswith(found.slowest.removesuffix("."))
    assert found.cold in ("", whole.cold)
    known = {(one.layer, one.sentence) for one in whole.findings}
    assert {(one.layer, one.sentence) for one in found.findings} <= known


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(runs, st.integers(60, 400))  # 60: the longest span of each layer and pass fits, as it does into 10,000
def test_the_spans_of_a_folded_trace_say_nothing_that_is_not_so(trace: Trace, budget: int) -> None:
    whole = build(trace)
    folded = fold(trace, budget)
    found = report_of(written(folded, None))
    check_true(found, whole)
    lost = any(one.own_ns != whole.passes[name].own_ns for name, one in found.passes.items())
    assert any(note.startswith("The trace is folded") for note in found.notes) >= lost


def test_what_a_fold_left_whole_is_still_told() -> None:
    trace = run(modules=20, operators=20)
    whole = build(trace)
    folded = fold(trace, 1_000)
    assert len(folded) < len(trace)
    found = build(folded)
    check_true(found, whole)
    layers = {row.layer: row for row in found.layers}
    assert layers[8].own_ns_down == whole.layers[0].own_ns_down and layers[8].evidence
    assert layers[6].own_ns_down and found.steps == whole.steps and found.passes["deep"].steps
    assert found.gaps == whole.gaps and found.unattributed_ns == whole.unattributed_ns
    for number in (5, 4, 3):
        row = layers[number]
        assert (row.status, row.own_ns_down, row.evidence) == ("seen", None, None)
    assert found.operators == [] and whole.operators
    assert found.slowest and "inside" in whole.slowest and "inside" not in found.slowest
    assert layers[3].form_out == "kernel" and "leaf operators" in whole.layers[5].form_out


def test_a_folded_trace_that_went_through_a_receiver_is_known_by_its_spans() -> None:
    trace = run(modules=20, operators=20)
    folded = fold(trace, 1_000)
    folded.meta = {}
    found = build(folded)
    assert all(row.own_ns_down is None for row in found.layers if row.layer in (5, 4, 3))
    assert "deep" in found.notes[-1]


def test_a_report_of_another_trace_or_version_is_not_taken() -> None:
    trace = run(modules=20, operators=20)
    report = build(trace)
    folded = fold(trace, 1_000)
    carry(folded, report)
    assert carried(folded) is not None
    folded.meta["report"]["schema"] = "tokentrace.report/99"
    assert carried(folded) is None
    carry(folded, report)
    folded.trace_id += 1
    assert carried(folded) is None


@pytest.mark.parametrize("kept", [3, 5])
def test_a_file_that_was_cut_short_tells_the_whole_run_and_that_it_was_cut(tmp_path: Path, kept: int) -> None:
    trace = run(modules=40, operators=60)
    whole = build(trace)
    folded = fold(trace, 9_000)
    carry(folded, whole)
    emit.save(folded, tmp_path / "t.jsonl")
    lines = (tmp_path / "t.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) > kept
    (tmp_path / "t.jsonl").write_bytes(b"".join(lines[:kept]))
    found = report_of(emit.load(tmp_path / "t.jsonl"))
    assert found.layers == whole.layers and found.operators == whole.operators
    assert "the whole run" in found.notes[-1] and "not whole" in found.notes[-1]


def test_without_its_first_line_a_folded_file_gives_no_false_times(tmp_path: Path) -> None:
    trace = run(modules=40, operators=60)
    folded = fold(trace, 9_000)
    carry(folded, build(trace))
    emit.save(folded, tmp_path / "t.jsonl")
    lines = (tmp_path / "t.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "t.jsonl").write_bytes(b"".join(lines[1:]))
    found = report_of(emit.load(tmp_path / "t.jsonl"))
    assert found.operators == [] and found.unattributed_ns is None
    assert [note.split(":")[0] for note in found.notes] == ["The trace is folded", "The file is not whole"]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(runs, st.integers(60, 300))
def test_a_comparison_gets_the_trees_of_the_whole(trace: Trace, budget: int) -> None:
    found = analyze(trace)
    whole = {name: Trees(trace).of(one) for name, one in found.passes.items()}
    folded = fold(trace, budget)
    if folded is not trace:
        carry(folded, build(trace, found))
        carry_trees(folded, trace, found)
    back = written(folded, None)
    again = analyze(back)
    restore(back, again)
    for name, one in again.passes.items():
        assert (one.own, one.unattributed_ns) == (found.passes[name].own, found.passes[name].unattributed_ns)
        assert Trees(back).of(one) == whole[name]


def test_trees_come_in_a_last_line_that_other_readers_find_empty(tmp_path: Path) -> None:
    trace = run(modules=20, operators=20)
    folded = fold(trace, 1_000)
    carry(folded, build(trace))
    carry_trees(folded, trace)
    emit.save(folded, tmp_path / "t.jsonl")
    first, *_, last = [orjson.loads(line) for line in (tmp_path / "t.jsonl").read_bytes().splitlines()]
    assert last["resourceSpans"] == [] and set(last["tokentrace"]["meta"]) == {"trees"}
    assert first["tokentrace"]["meta"]["report"]["layers"] and "trees" not in first["tokentrace"]["meta"]
    assert emit.load(tmp_path / "t.jsonl").meta == folded.meta
