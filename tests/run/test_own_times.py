"""Own times are a partition of the request: to the nanosecond, whatever the spans."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrace import analyze
from tokentrace.model import IdSource, Trace

SPANS = st.lists(st.tuples(st.integers(2, 8), st.integers(0, 1000), st.integers(0, 400), st.booleans()), max_size=40)


@settings(max_examples=300, deadline=None)
@given(SPANS)
def test_own_and_unattributed_add_up(spans: list[tuple[int, int, int, bool]]) -> None:
    trace = Trace(1, IdSource(1))
    trace.add("tokentrace run", 0, 0, 1000, -1, envelope=True)
    one = trace.add("pass once", 0, 0, 1000, 0, {"tokentrace.pass": "once"}, envelope=True)
    chat = trace.add("chat m", 8, 100, 900, one, envelope=True)
    for layer, start, length, up in spans:
        trace.add("x", layer, start, start + length, chat, direction="up" if up else "down")
    [times] = analyze.passes(trace).values()
    assert times.wall_ns == 800
    assert sum(times.own_ns.values()) + times.unattributed_ns == 800
    # The naive way: look at every nanosecond.
    expected: dict[tuple[int, str], int] = {}
    for at in range(100, 900):
        active = [(layer, -start, up) for layer, start, length, up in spans if start <= at < start + length]
        if active:
            layer = min(a[0] for a in active)
            expected[layer, ""] = expected.get((layer, ""), 0) + 1
    for layer in range(2, 9):
        assert times.layer_ns(layer) == expected.get((layer, ""), 0)


@given(st.integers(0, 10**12), st.dictionaries(st.tuples(st.integers(3, 5), st.just("down")), st.integers(0, 10**9)))
def test_split_adds_up(total: int, shares: dict[tuple[int, str], int]) -> None:
    parts = analyze.split(total, shares)
    assert sum(parts.values()) == (total if sum(shares.values()) else 0)
