"""Percentiles say how sure they are, and are refused where so few measurements cannot carry them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentrace.bench.stats import _weighted, figure, success_interval


def singles(values: list[float]) -> list[list[float]]:
    return [[value] for value in values]


def test_percentiles_are_those_of_the_data() -> None:
    values = list(np.random.default_rng(1).exponential(50.0, 500))
    found = figure(singles(values), "ns").quantiles
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        one = found[name]
        assert one.value == pytest.approx(np.quantile(values, q))
        assert one.low is not None and one.high is not None
        assert one.low <= one.value <= one.high


@pytest.mark.parametrize(
    ("count", "known"), [(1, []), (9, ["p50"]), (20, ["p50", "p90"]), (100, ["p50", "p90", "p99"])]
)
def test_a_percentile_beyond_the_data_is_refused_with_the_number_it_takes(count: int, known: list[str]) -> None:
    found = figure(singles([float(n) for n in range(count)]), "ns").quantiles
    assert [name for name, one in found.items() if one.value is not None] == (known if count > 1 else [])
    if "p99" not in known:
        assert "it takes 100" in found["p99"].why and str(count) in found["p99"].why


def test_an_end_that_the_data_cannot_show_is_open() -> None:
    p90 = figure(singles([float(n) for n in range(20)]), "ns").quantiles["p90"]
    assert p90.value is not None and p90.low is not None
    assert p90.high is None and "how far above" in p90.why
    assert figure(singles([float(n) for n in range(36)]), "ns").quantiles["p90"].high is not None
    assert figure(singles([1.0, 2.0, 3.0]), "ns").quantiles["p50"].low is None


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    held = 0
    for number in range(200):
        one = figure(singles(list(random.lognormal(0, 0.5, 40))), "ns", seed=number).quantiles["p50"]
        assert one.low is not None and one.high is not None
        held += one.low <= 1.0 <= one.high
    assert 180 <= held <= 200


def test_gaps_of_one_reply_are_not_taken_for_independent() -> None:
    # Ten replies, each with its own pace: four hundred gaps tell no more than ten measurements.
    random = np.random.default_rng(3)
    paces = random.normal(50, 10, 10)
    groups = [list(pace + random.normal(0, 0.1, 40)) for pace in paces]
    together = figure(groups, "ns").quantiles["p50"]
    apart = figure(singles([v for g in groups for v in g]), "ns").quantiles["p50"]
    assert together.low is not None and together.high is not None
    assert apart.low is not None and apart.high is not None
    assert together.high - together.low > 3 * (apart.high - apart.low)


def test_the_same_data_give_the_same_figures() -> None:
    values = singles(list(np.random.default_rng(5).normal(10, 1, 50)))
    assert figure(values, "ns", 1).as_dict() == figure(values, "ns", 1).as_dict()


def test_nothing_measured_is_not_zero() -> None:
    found = figure([[], []], "ns")
    assert found.mean is None and found.count == 0
    assert all(one.value is None and one.why for one in found.quantiles.values())


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 4)), min_size=1, max_size=30), st.floats(0, 1))
def test_a_weighted_percentile_is_that_of_the_written_out_list(pairs: list[tuple[float, int]], q: float) -> None:
    pairs = sorted([*pairs, (0.5, 1)])
    written = [value for value, times in pairs for _ in range(times)]
    ends = np.cumsum([times for _, times in pairs])
    found = _weighted(np.array([v for v, _ in pairs]), ends, q * (len(written) - 1))
    assert found == pytest.approx(float(np.quantile(written, q)), rel=1e-6, abs=1e-6)


def test_success_of_all_is_no_certainty() -> None:
    low, high = success_interval(20, 20)
    assert 0.8 < low < 0.9 and high == pytest.approx(1.0)
    assert success_interval(0, 0) == (0.0, 1.0)
