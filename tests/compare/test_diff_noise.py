"""When a difference counts: not for equal sides, however one of them misbehaves; and no later than it must."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import request_pass

from tokentrace import runs
from tokentrace.compare import compare
from tokentrace.compare.noise import Scatter, Side, _ranks, drift, floor, holm, rank_p, scatter, shift, size_p
from tokentrace.model import IdSource
from tokentrace.report import build
from tokentrace.stitch import stitch

sides = st.lists(st.integers(0, 10**9), min_size=1, max_size=6, unique=True)


@given(st.integers(1, 6), st.integers(1, 6))
def test_the_exact_distribution_is_that_of_all_orders(m: int, n: int) -> None:
    counted = [0] * (m * n + 1)
    for places in combinations(range(m + n), m):
        counted[sum(place - number for number, place in enumerate(places))] += 1
    assert _ranks(m, n) == counted


def test_the_order_test_agrees_with_what_is_printed_in_tables() -> None:
    # Two-sided critical values of U at 5 %, for 4/4, 5/5 and 8/8 measurements: 0, 2, 13.
    assert rank_p([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(2 / 70)
    assert rank_p([1, 2, 3, 4, 6.5], [5, 6, 7, 8, 9]) <= 0.05 < rank_p([1, 2, 3, 4, 7.5], [5, 6, 7, 8, 9])
    assert rank_p([1, 2], [3, 4]) == pytest.approx(1 / 3)


@settings(deadline=None)
@given(sides, sides)
def test_sides_are_treated_alike(base: list[int], new: list[int]) -> None:
    one, other = shift(base, new), shift(new, base)
    assert one.difference == -other.difference
    assert one.p_size == other.p_size
    if one.low is not None and one.high is not None:
        assert one.low <= one.high
        assert (other.low, other.high) == (-one.high, -one.low)
        assert one.confidence is not None and 0 <= one.confidence < 1


def test_one_wild_run_neither_makes_nor_hides_a_difference() -> None:
    quiet, slow = [509.0, 517.0, 475.0, 500.0, 495.0], [644.0, 635.0, 1140.0, 650.0, 640.0]
    found = shift(quiet, slow)
    assert found.separated and found.p_size is not None and found.p_size < 0.01
    wild = shift(quiet, [505.0, 1140.0, 512.0, 480.0, 498.0])
    assert not wild.separated


@pytest.mark.parametrize(("m", "n"), [(2, 3), (3, 3), (5, 5)])
def test_equal_sides_are_seldom_called_different(m: int, n: int) -> None:
    random = np.random.default_rng(11)
    for draw in (random.standard_normal, lambda size: np.exp(0.5 * random.standard_normal(size))):
        wrong = 0
        for _ in range(400):
            base, new = list(draw(m)), list(draw(n))
            found = shift(base, new)
            assert found.p_size is not None
            wrong += found.separated and found.p_size <= 0.05
        assert wrong <= 0.08 * 400


def test_a_large_difference_is_seen_with_three_runs() -> None:
    assert size_p([100, 101, 99.5], [140, 139, 141]) < 0.01
    # However far they lie apart: equal sides were seen so a finite number of times, never.
    assert 0 < size_p([5, 5, 5], [6, 6, 6]) < 1e-4
    assert 0 < size_p([1, 2, 3], [10**9, 10**9 + 1, 10**9 + 2]) < 1e-4
    assert size_p([5, 5, 5], [5, 5, 5]) == 1.0


@pytest.mark.parametrize(("m", "n"), [(10, 10), (50, 50), (3, 60), (200, 15)])
def test_of_any_number_of_runs_one_row_of_three_hundred_can_be_told(m: int, n: int) -> None:
    random = np.random.default_rng(5)
    base, new = random.normal(100, 1, m), random.normal(200, 1, n)
    assert holm({"doubled": size_p(list(base), list(new)), **dict.fromkeys(range(299), 1.0)}, 0.05 / 6) == {"doubled"}
    same = random.normal(100, 1, n)
    assert size_p(list(base), list(same)) > 0.001


def test_many_rows_are_not_tested_as_if_each_were_alone() -> None:
    assert holm({"a": 0.001, "b": 0.04, "c": 0.5}) == {"a"}
    assert holm({"a": 0.04}) == {"a"}
    assert holm({}) == set()


def test_one_run_a_side_uses_its_own_steps_and_says_when_there_are_none() -> None:
    steps = {("decode", n): 1000 + (n % 2) * 20 for n in range(10)}
    variance, known = scatter(steps)
    assert known is not None and 0.005 < known.share < 0.02 and known.mean_ns == 1010
    assert math.sqrt(variance) == pytest.approx(math.sqrt(10) * 10.5, rel=0.05)
    assert floor(Side({("", 0): 500}), Side({("", 0): 900})) is None
    tenth = Scatter(0.1, 1000.0)
    assert floor(Side({("", 0): 500}, tenth), Side({("", 0): 900}, tenth)) == pytest.approx(math.hypot(50, 90))
    # Four times as long as a step: as four steps in a row, not as one that varies as a whole.
    assert scatter({("", 0): 4000}, tenth)[0] == pytest.approx(4 * 100**2)
    assert floor(Side({("", 0): 500}, again=[470]), Side({("", 0): 500})) == pytest.approx(30)


def test_drift_between_passes_is_that_of_the_same_steps() -> None:
    one = {("prefill", 0): 9000, **{("decode", n): 100 for n in range(5)}}
    other = {("prefill", 0): 100, **{("decode", n): 110 for n in range(4)}, ("decode", 4): 5000}
    assert drift(one, other) == pytest.approx(0.1)
    assert drift({("decode", 0): 1}, {("decode", 0): 2}) is None


def test_a_rows_p_is_that_of_the_weaker_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four against four that lie wholly apart: no order of eight runs is rarer than 2 of 70."""
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    names = []
    for number in range(8):
        ids = IdSource(number + 1)
        once = request_pass("once", ids=ids, decode_ms=10 if number < 4 else 30, wait_us=300 + 10 * number)
        made = stitch([once], ids=ids, meta={"prompt": "Hi"})
        names.append(runs.save(made, made, build(made)).name)
    found = compare(names[:4], names[4:]).to_json()
    wall = found["wall"]
    assert wall["beyond_noise"] is True
    assert wall["p"] == wall["p_order"] == pytest.approx(2 / 70) and 0 < wall["p_size"] < 1e-4
    for row in (row for rows in found["levels"].values() for row in rows):
        assert row["p"] is None or row["p"] >= 2 / 70
    one = compare(names[:1], names[4:5]).to_json()["wall"]
    assert one["p"] is one["p_order"] is one["p_size"] is None
