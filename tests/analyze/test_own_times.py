"""Own times: every nanosecond of a request belongs to one layer or to none, and nothing is guessed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.records import CLIENT, MS, T0, US, cold_warm_deep, request_pass, three_passes

from tokentrace.analyze import Analysis, analyze
from tokentrace.analyze._split import divide
from tokentrace.model import IdSource, Record, Trace
from tokentrace.probe import LEFT_OUT, LayerState
from tokentrace.stitch import PassRecords, stitch


def check_sums(found: Analysis) -> None:
    for one in found.passes.values():
        assert sum(one.own.values()) + one.unattributed_ns == one.wall_ns
        assert all(spent > 0 for spent in one.own.values()) and one.unattributed_ns >= 0
    known = sum(layer.own_ns or 0 for layer in found.layers)
    assert known + found.unattributed_ns == found.main.wall_ns


def test_own_times_and_unattributed_time_add_up_to_the_wall_time() -> None:
    found = analyze(three_passes())
    check_sums(found)
    assert found.main.name == "warm" and list(found.passes) == ["cold", "warm", "deep"]
    assert found.coverage > 0.95


spans = st.tuples(
    st.integers(1, 8), st.integers(0, 60), st.integers(0, 60), st.integers(1, 3), st.booleans(),
    st.sampled_from(["down", "up", ""]),
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(st.lists(spans, max_size=25))
def test_every_instant_belongs_to_the_active_span_nearest_the_chip(drawn: list[Any]) -> None:
    records = [Record("chat m", 8, T0, T0 + 50, key="chat", envelope=True, flow=True)]
    for number, (layer, start, length, thread, envelope, way) in enumerate(drawn):
        records.append(
            Record(f"s{number}", layer, T0 + start, T0 + start + length, thread=thread, envelope=envelope,
                   direction=way, flow=True)
        )  # fmt: skip
    trace = stitch([PassRecords("once", T0, T0 + 60, records)], ids=IdSource(1))
    found = analyze(trace)
    check_sums(found)
    owned = dict.fromkeys(range(2, 9), 0)
    free = 0
    for instant in range(T0, T0 + 50):
        active = [
            s for s in trace.spans
            if s.layer >= 2 and not s.envelope and s.start_ns <= instant < s.end_ns
        ]  # fmt: skip
        if active:
            owned[min(s.layer for s in active)] += 1
        else:
            free += 1
    assert found.unattributed_ns == free
    for layer, spent in owned.items():
        assert sum(ns for (number, _), ns in found.main.own.items() if number == layer) == spent


wild = st.builds(
    Record,
    name=st.sampled_from(["step", "forward", "sample", "aten::mm", "leaf aten::mm", "compile x", "wait", "layers.0"]),
    layer=st.integers(1, 8),
    start_ns=st.integers(T0 - 1000, T0 + 5000),
    end_ns=st.integers(T0 - 1000, T0 + 5000),
    thread=st.integers(1, 2),
    direction=st.sampled_from(["", "down", "up"]),
    envelope=st.booleans(),
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(wild, max_size=15), st.lists(wild, max_size=15), st.sampled_from(["seen", "idle", "unseen"]))
def test_whatever_the_passes_hold_the_sum_is_exact(warm: list[Record], deep: list[Record], status: str) -> None:
    passes = []
    for name, records in (("warm", warm), ("deep", deep)):
        chat = Record(f"chat {name}", 8, T0, T0 + 4000, key="chat", envelope=True, flow=True)
        states = [LayerState(n, status) for n in range(1, 9)]
        passes.append(PassRecords(name, T0 - 100, T0 + 4500, [chat, *records], states))
    trace = stitch(passes, ids=IdSource(1))
    found = analyze(trace)
    check_sums(found)
    assert [layer.layer.number for layer in found.layers] == [8, 7, 6, 5, 4, 3, 2, 1]


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**15), min_size=1, max_size=12))
def test_dividing_in_proportion_loses_nothing(amount: int, weights: list[int]) -> None:
    shares = divide(amount, weights)
    assert sum(shares) == amount and min(shares) >= 0 and len(shares) == len(weights)
    whole = sum(weights)
    if whole:
        for part, weight in zip(shares, weights, strict=True):
            assert abs(part * whole - amount * weight) < whole


def test_the_models_time_of_the_warm_pass_is_shared_out_as_the_deep_pass_saw_it() -> None:
    found = analyze(three_passes())
    layers = {layer.layer.number: layer for layer in found.layers}
    assert {n: layers[n].source for n in (8, 7, 6, 5, 4, 3)} == {
        8: "measured", 7: "measured", 6: "measured",
        5: "deep proportions", 4: "deep proportions", 3: "deep proportions",
    }  # fmt: skip
    measured = sum(ns for (layer, _), ns in found.passes["warm"].own.items() if layer == 5)
    assert sum(layers[n].own_ns or 0 for n in (5, 4, 3)) == measured
    # Prefill and decode have their own proportions: within rounding, each layer gets its share of each.
    deep = found.passes["deep"].own
    whole = sum(ns for (layer, _), ns in deep.items() if layer in (5, 4, 3))
    for number in (4, 3):
        share = sum(ns for (layer, _), ns in deep.items() if layer == number) / whole
        assert (layers[number].own_ns or 0) / measured == pytest.approx(share, rel=0.2)
    assert layers[3].own_ns_up and layers[3].own_ns_down  # lm_head goes up, the decoder layers down


def test_one_pass_with_every_probe_is_measured_throughout() -> None:
    found = analyze(stitch([request_pass("once")], ids=IdSource(1)))
    check_sums(found)
    assert found.main.name == "once" and found.cold_sentence == ""
    assert {layer.source for layer in found.layers if layer.layer.number > 2} == {"measured"}
    by_number = {layer.layer.number: layer for layer in found.layers}
    assert by_number[3].own_ns == sum(ns for (layer, _), ns in found.main.own.items() if layer == 3)


def test_what_was_not_seen_has_no_time_rather_than_zero() -> None:
    found = {layer.layer.number: layer for layer in analyze(three_passes()).layers}
    power, jit = found[1], found[2]
    assert (power.status, power.own_ns_down, power.own_ns_up, power.reason) == (
        "unseen", None, None, "no power sensor can be read",
    )  # fmt: skip
    # In the warm pass nothing was compiled: that is known, so it is zero.
    assert (jit.status, jit.own_ns_down, jit.own_ns_up) == ("idle", 0, 0)


def test_a_layer_seen_from_outside_without_times_has_none() -> None:
    records = [
        Record("chat m", 8, T0, T0 + MS, key="chat", envelope=True, flow=True),
        Record("send", 8, T0, T0 + 100 * US, parent_key="chat", flow=True, direction="down"),
        Record("tokenize", 7, T0, T0, parent_key="chat", flow=True, direction="down"),
    ]
    states = [LayerState(8), LayerState(7), LayerState(5, "unseen", "it lies inside the server's process")]
    found = analyze(stitch([PassRecords("once", T0, T0 + MS, records, states)], ids=IdSource(1)))
    check_sums(found)
    layers = {layer.layer.number: layer for layer in found.layers}
    assert (layers[7].status, layers[7].own_ns, layers[7].source) == ("seen", None, "seen from outside, without times")
    assert layers[5].own_ns is None and layers[8].own_ns == 100 * US
    assert found.unattributed_ns == 900 * US


def test_power_owns_no_time_even_when_it_was_seen() -> None:
    one = request_pass("once", states=[LayerState(n) for n in range(1, 9)])
    chat = next(r for r in one.records if r.name.startswith("chat "))
    power = Record("power", 1, chat.start_ns, chat.end_ns, parent_key="chat", flow=True)
    trace = stitch([PassRecords("once", one.start_ns, one.end_ns, [*one.records, power], one.states)], ids=IdSource(1))
    found = analyze(trace)
    check_sums(found)
    layer = found.layers[-1]
    assert (layer.status, layer.own_ns, layer.source) == ("seen", None, "power has no time of its own")


def test_time_hidden_behind_the_model_is_said_to_be_hidden() -> None:
    one = request_pass("once", steps=2)
    for record in one.records:
        if record.name == "decode":  # while the next step runs its forward pass
            step = [r for r in one.records if r.name == "forward"][1]
            record.start_ns, record.end_ns = step.start_ns + 40 * US, step.start_ns + 80 * US
    found = analyze(stitch([one], ids=IdSource(1)))
    tokenizer = next(layer for layer in found.layers if layer.layer.number == 7)
    assert tokenizer.own_ns_up == 0 and tokenizer.hidden == ["up"]


def test_gaps_say_between_what_and_within_what() -> None:
    records = [
        Record("chat m", 8, T0, T0 + MS, key="chat", envelope=True, flow=True),
        Record("wait", 8, T0 + 100 * US, T0 + 900 * US, parent_key="chat", flow=True, envelope=True),
        Record("send", 8, T0, T0 + 100 * US, parent_key="chat", flow=True),
        Record("step", 6, T0 + 500 * US, T0 + 900 * US),
    ]
    found = analyze(stitch([PassRecords("once", T0, T0 + MS, records)], ids=IdSource(1)))
    assert [(g.start_ns, g.length_ns, g.before, g.after, g.around) for g in found.gaps] == [
        (100 * US, 400 * US, "send", "step", "wait"),
        (900 * US, 100 * US, "step", "the end", "chat m"),
    ]


def test_a_pass_in_which_no_request_was_sent_is_timed_as_a_whole() -> None:
    work = Record("forward", 5, T0 + 100, T0 + 400)
    found = analyze(stitch([PassRecords("once", T0, T0 + 1000, [work])], ids=IdSource(1)))
    check_sums(found)
    assert found.main.wall_ns == 1000 and found.unattributed_ns == 700


def test_a_trace_without_passes_is_analysed_as_one() -> None:
    trace = Trace(ids=IdSource(1))
    root = trace.add("tokentrace import", 0, T0, T0 + 100, -1, envelope=True)
    trace.add("step", 6, T0 + 10, T0 + 90, root, direction="down")
    trace.add("unseen", 1, T0, T0, root, {"tokentrace.unseen": "not recorded"})
    trace.add("idle", 2, T0, T0, root, {"tokentrace.idle": "eager: nothing to compile"})
    found = analyze(trace)
    check_sums(found)
    assert found.main.name == "once" and found.main.wall_ns == 100
    by_number = {layer.layer.number: layer for layer in found.layers}
    assert by_number[6].own_ns == 80
    assert (by_number[1].status, by_number[1].reason) == ("unseen", "not recorded")
    assert (by_number[2].status, by_number[2].reason) == ("idle", "eager: nothing to compile")
    assert by_number[2].evidence == by_number[1].evidence == 0


def test_steps_that_the_profiler_did_not_record_say_nothing_of_the_proportions() -> None:
    """A profiler records the first steps of a long reply; the others must not count as time of layer 5 alone."""

    def shares(recorded: int) -> dict[int, float]:
        ids = IdSource(5)
        deep = request_pass("deep", ids=ids, at=T0 + 10**9, steps=9)
        steps = sorted((r.start_ns, r.end_ns) for r in deep.records if r.name == "step")
        begun = steps[:recorded][-1][1]
        deep.records = [r for r in deep.records if r.layer not in (4, 3) or r.start_ns < begun]
        trace = stitch([request_pass("warm", ids=ids, deep=False, steps=9), deep], ids=ids)
        found = analyze(trace)
        check_sums(found)
        return {row.layer.number: (row.own_ns or 0) / found.main.wall_ns for row in found.layers}

    whole, part = shares(9), shares(3)
    assert whole[3] > 0.1
    assert part == pytest.approx(whole, abs=0.01)


@pytest.mark.parametrize("seen", [3, 4])
def test_what_only_the_deep_pass_saw_below_a_layer_left_out_is_unknown_and_not_nothing(seen: int) -> None:
    gone = {5, 4, 3} - {seen}
    passes = cold_warm_deep()
    for one in passes:
        one.records = [record for record in one.records if record.layer not in gone]
        one.states = [LayerState(s.layer, "unseen", LEFT_OUT) if s.layer in gone else s for s in one.states]
    found = analyze(stitch(passes, ids=IdSource(1)))
    check_sums(found)
    assert found.main.name == "warm" and found.operators, "the deep pass saw operators"
    layers = {layer.layer.number: layer for layer in found.layers}
    assert layers[seen].own_ns is None and layers[seen].source == "seen only in the deep pass"
    assert layers[6].holds == [5, 4, 3], "the steps hold the time of all three"


def test_the_clients_work_on_chunks_is_not_called_nothing_where_it_was_not_measured() -> None:
    once = request_pass("once", deep=False)
    once.records = [r for r in once.records if r.layer == 8 and r.process == CLIENT]
    once.states = [LayerState(8), *(LayerState(n, "unseen", "it lies inside the server") for n in range(1, 8))]
    client = next(layer for layer in analyze(stitch([once], ids=IdSource(1))).layers if layer.layer.number == 8)
    assert client.own_ns_down and client.own_ns_up is None and "not measured" in client.source
    seen = next(layer for layer in analyze(three_passes()).layers if layer.layer.number == 8)
    assert seen.own_ns_up and seen.source == "measured", "the server's writes are work on the way up"
