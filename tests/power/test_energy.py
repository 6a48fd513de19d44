"""Joules and their error bound: the truth lies inside the bound, parts add up to the whole, the rest is refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrace.energy.curve import CannotTell, Stretch, attribute, counter_curve, power_curve, unwrap

MS = 1_000_000


class Profile:
    """Power that is constant between `edges_ns`; `energy(t)` is exact."""

    def __init__(self, edges_ns: Sequence[int], watts: Sequence[float]) -> None:
        self.edges = np.array(edges_ns, dtype=np.float64)
        self.total = np.concatenate(([0.0], np.cumsum(np.diff(self.edges) / 1e9 * np.array(watts))))

    def energy(self, time_ns: float) -> float:
        return float(np.interp(time_ns, self.edges, self.total))


@st.composite
def profiles(draw: st.DrawFn, plateau_ms: int = 0) -> Profile:
    watts = draw(st.lists(st.floats(1, 700), min_size=2, max_size=12))
    lengths = draw(st.lists(st.integers(1, 300), min_size=len(watts), max_size=len(watts)))
    # The bound takes the highest power to show as a mean between two readings once: give it a plateau.
    watts, lengths = [max(watts), *watts], [plateau_ms or 1, *lengths]
    edges = np.concatenate(([0], np.cumsum(lengths))) * MS
    return Profile(edges.astype(int).tolist(), watts)


@settings(max_examples=300, deadline=None)
@given(profiles(plateau_ms=500), st.integers(5, 100), st.integers(1, 40), st.data())
def test_truth_lies_within_the_bound_of_a_counter(
    profile: Profile, period_ms: int, poll_ms: int, data: st.DataObject
) -> None:
    end = int(profile.edges[-1])
    resolution = 0.001
    polls = list(range(0, end + 1, poll_ms * MS))
    # The counter shows the energy at its last update, rounded down.
    shown = [int(profile.energy(t // (period_ms * MS) * (period_ms * MS)) / resolution) * resolution for t in polls]
    curve = counter_curve(polls, shown, resolution_joules=resolution, assumed_period_ns=period_ms * MS)
    first, last = int(curve.times_ns[0]), int(curve.times_ns[-1])
    a = data.draw(st.integers(first, last))
    b = data.draw(st.integers(a, last))
    got = curve.between(a, b)
    assert abs(got.joules - (profile.energy(b) - profile.energy(a))) <= got.error_joules + 1e-6


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(1, 700), min_size=3, max_size=20), st.integers(1, 100), st.data())
def test_truth_lies_within_the_bound_of_an_integral(samples: list[float], period_ms: int, data: st.DataObject) -> None:
    times = [i * period_ms * MS for i in range(len(samples))]
    # Between two samples power jumps from one to the other at an unknown moment.
    edges, watts = [0.0], []
    for i in range(len(samples) - 1):
        jump = times[i] + data.draw(st.floats(0, 1)) * period_ms * MS
        edges += [jump, float(times[i + 1])]
        watts += [samples[i], samples[i + 1]]
    profile = Profile(edges, watts)  # type: ignore[arg-type]
    curve = power_curve(times, samples)
    a = data.draw(st.integers(0, times[-1]))
    b = data.draw(st.integers(a, times[-1]))
    got = curve.between(a, b)
    assert abs(got.joules - (profile.energy(b) - profile.energy(a))) <= got.error_joules + 1e-6


def held_up(data: st.DataObject, starts: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Reads one after the other, some held up: when each looked, the middle of its call, and how long that took."""
    looked, middles, lengths, free = [], [], [], 0
    for start in starts:
        begin = max(start, free)
        length = data.draw(st.sampled_from([0, 10_000, MS, 30 * MS]))
        looked.append(begin + round(data.draw(st.sampled_from([0.0, 0.3, 1.0])) * length))
        middles.append(begin + length // 2)
        lengths.append(length)
        free = begin + length + MS
    return looked, middles, lengths


@settings(max_examples=200, deadline=None)
@given(profiles(plateau_ms=500), st.integers(5, 100), st.integers(5, 40), st.data())
def test_truth_lies_within_the_bound_of_a_counter_whose_reads_were_held_up(
    profile: Profile, period_ms: int, poll_ms: int, data: st.DataObject
) -> None:
    end = int(profile.edges[-1])
    looked, middles, lengths = held_up(data, range(0, end + 1, poll_ms * MS))
    shown = [profile.energy(t // (period_ms * MS) * (period_ms * MS)) for t in looked]
    curve = counter_curve(
        middles, shown, resolution_joules=1e-6, assumed_period_ns=period_ms * MS, reads_ns=lengths
    )  # fmt: skip
    first, last = int(curve.times_ns[0]), int(curve.times_ns[-1])
    edges = [t for t in (*looked, *middles, *(int(e) for e in profile.edges)) if first <= t <= last]
    a, b = sorted(data.draw(st.sampled_from(edges) | st.integers(first, last)) for _ in range(2))
    got = curve.between(a, b)
    assert abs(got.joules - (profile.energy(b) - profile.energy(a))) <= got.error_joules + 1e-6


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1, 700), min_size=3, max_size=20), st.integers(1, 100), st.data())
def test_truth_lies_within_the_bound_of_an_integral_whose_reads_were_held_up(
    samples: list[float], period_ms: int, data: st.DataObject
) -> None:
    looked, middles, lengths = held_up(data, [i * period_ms * MS for i in range(len(samples))])
    edges, watts = [float(looked[0])], []
    for i in range(len(samples) - 1):
        jump = looked[i] + data.draw(st.sampled_from([0.0, 0.5, 1.0])) * (looked[i + 1] - looked[i])
        edges += [jump, float(looked[i + 1])]
        watts += [samples[i], samples[i + 1]]
    profile = Profile(edges, watts)  # type: ignore[arg-type]
    curve = power_curve(middles, samples, reads_ns=lengths)
    first, last = max(looked[0], middles[0]), min(looked[-1], middles[-1])
    ends = [t for t in (*looked, *middles, *map(int, edges)) if first <= t <= last]
    a, b = sorted(data.draw(st.sampled_from(ends) | st.integers(first, last)) for _ in range(2))
    got = curve.between(a, b)
    assert abs(got.joules - (profile.energy(b) - profile.energy(a))) <= got.error_joules + 1e-6


def test_a_counter_read_at_the_end_of_a_call_that_was_held_up() -> None:
    """100 W; the call from 1.0 s to 1.4 s was held up before it looked, and is stamped with its middle, 1.2 s."""
    quick = [10 * MS * n for n in range(100)]
    middles = [*quick, 1200 * MS, 1410 * MS, 1420 * MS]
    shown = [0.1 * t / MS for t in (*quick, 1400 * MS, 1410 * MS, 1420 * MS)]
    lengths = [*(20_000 for _ in quick), 400 * MS, 20_000, 20_000]
    curve = counter_curve(middles, shown, resolution_joules=1e-6, assumed_period_ns=10 * MS, reads_ns=lengths)
    got = curve.between(500 * MS, 1200 * MS)
    assert abs(got.joules - 70) > 10, "the middle of the call is the wrong moment"
    assert abs(got.joules - 70) <= got.error_joules


def test_a_read_that_took_long_widens_the_bound_and_a_short_one_hardly() -> None:
    polls = list(range(0, 2000 * MS, 20 * MS))
    shown = [0.1 * t / MS for t in polls]
    plain, quick, slow = (
        counter_curve(polls, shown, resolution_joules=1e-6, assumed_period_ns=20 * MS, reads_ns=[length] * len(polls))
        for length in (0, 20_000, 10 * MS)
    )
    errors = [curve.require(500 * MS, 1500 * MS).error_joules for curve in (plain, quick, slow)]
    assert errors[0] < errors[1] < 1.01 * errors[0] and errors[2] > 1.2 * errors[0]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1, 700), st.integers(1, 300)), min_size=1, max_size=10),
    st.integers(20, 1000),
    st.data(),
)
def test_truth_lies_within_the_bound_of_an_averaging_sensor(
    parts: list[tuple[float, int]], window_ms: int, data: st.DataObject
) -> None:
    """Each sample is the mean over the window before it, as NVML's power is on recent boards."""
    lead = window_ms * MS
    # The bound takes the highest and the lowest power to show in the samples once: a plateau of each comes first.
    watts = [max(w for w, _ in parts), min(w for w, _ in parts), *(w for w, _ in parts)]
    lengths = [2 * window_ms, 2 * window_ms, *(n for _, n in parts)]
    edges = [0, *(int(n) * MS for n in np.cumsum(lengths))]
    profile = Profile(edges, watts)
    times = list(range(lead, edges[-1], MS))
    mean = [(profile.energy(t) - profile.energy(t - lead)) / (lead / 1e9) for t in times]
    curve = power_curve(times, mean, averaging_ns=lead)
    a = data.draw(st.integers(lead, times[-1]))
    b = data.draw(st.integers(a, times[-1]))
    got = curve.between(a, b)
    assert abs(got.joules - (profile.energy(b) - profile.energy(a))) <= got.error_joules + 1e-6
    if b - a < lead:
        with pytest.raises(CannotTell, match="averages over"):
            curve.require(a, b)


@settings(max_examples=200, deadline=None)
@given(profiles(plateau_ms=400), st.data())
def test_the_parts_add_up_to_the_request(profile: Profile, data: st.DataObject) -> None:
    end = int(profile.edges[-1])
    polls = list(range(0, end + 1, 10 * MS))
    curve = counter_curve(polls, [profile.energy(t) for t in polls], resolution_joules=1e-6, assumed_period_ns=10 * MS)
    count = data.draw(st.integers(0, 12))
    stretches = []
    for n in range(count):
        start = data.draw(st.integers(-MS, end))
        length = data.draw(st.integers(0, 200 * MS))
        phase = "prefill" if n == 0 else "decode"
        stretches.append(Stretch(start, start + length, phase, data.draw(st.floats(0, 1)), 2))
    a, b = end // 5, int(polls[-1])
    got = attribute(curve, a, b, stretches)
    parts = got.prefill.joules + got.decode.joules + got.others + got.outside
    assert parts == pytest.approx(got.total.joules, abs=1e-6)
    assert sum(got.tokens) == pytest.approx(got.decode.joules, abs=1e-6)
    assert min([got.prefill.joules, got.decode.joules, got.others, got.outside, *got.tokens]) >= -1e-9


def test_steps_longer_than_the_sensor_are_told_apart() -> None:
    """Prefill at 600 W for 0.5 s, three tokens of 0.3 s at 200 W: each figure within its own error."""
    profile = Profile([0, 1000 * MS, 1500 * MS, 2400 * MS, 3000 * MS], [100, 600, 200, 100])
    polls = list(range(0, 3000 * MS + 1, 5 * MS))
    shown = [profile.energy(t // (20 * MS) * (20 * MS)) for t in polls]
    curve = counter_curve(polls, shown, resolution_joules=0.001, assumed_period_ns=20 * MS)
    steps = [Stretch(1000 * MS, 1500 * MS, "prefill")]
    steps += [Stretch((1500 + 300 * i) * MS, (1800 + 300 * i) * MS, "decode") for i in range(3)]
    got = attribute(curve, 1000 * MS, 2400 * MS, steps)
    assert curve.period_ns == 20 * MS and curve.period_measured
    assert abs(got.prefill.joules - 300) <= got.prefill.error_joules < 40
    assert abs(got.decode.joules - 180) <= got.decode.error_joules < 40
    assert len(got.tokens) == 3 and got.token_resolved
    assert all(abs(t - 60) < 20 for t in got.tokens)


def test_tokens_faster_than_the_sensor_are_marked() -> None:
    polls = list(range(0, 3000 * MS, 20 * MS))
    shown = [200.0 * (t // (100 * MS)) / 10 for t in polls]
    curve = counter_curve(polls, shown, resolution_joules=0.001, assumed_period_ns=100 * MS)
    steps = [Stretch((500 + 20 * i) * MS, (519 + 20 * i) * MS, "decode") for i in range(50)]
    got = attribute(curve, 500 * MS, 1500 * MS, steps)
    assert not got.token_resolved
    # 50 tokens in 1 s at 200 W: the phase is known well although no single token is.
    assert abs(got.decode.joules - 190) <= got.decode.error_joules < 100


def test_a_shared_step_is_billed_by_tokens() -> None:
    polls = list(range(0, 2000 * MS, 10 * MS))
    curve = counter_curve(polls, [0.1 * t / MS for t in polls], resolution_joules=1e-6, assumed_period_ns=10 * MS)
    got = attribute(curve, 0, 1900 * MS, [Stretch(0, 1900 * MS, "decode", share=0.25, batch=4)])
    assert got.decode.joules == pytest.approx(47.5) and got.others == pytest.approx(142.5) and got.shared_by == 4


def test_a_short_request_is_refused_with_numbers() -> None:
    polls = list(range(0, 5000 * MS, 100 * MS))
    shown = [50.0 * (t // (1000 * MS)) for t in polls]
    curve = counter_curve(polls, shown, resolution_joules=0.001, assumed_period_ns=100 * MS)
    with pytest.raises(CannotTell, match=r"150\.0 ms.*1000\.0 ms"):
        curve.require(2000 * MS, 2150 * MS)


def test_a_figure_no_better_than_its_error_is_refused() -> None:
    polls = list(range(0, 1000 * MS, 100 * MS))
    curve = counter_curve(polls, [1.0 * i for i in range(10)], resolution_joules=20.0, assumed_period_ns=100 * MS)
    with pytest.raises(CannotTell, match="wrong by up to"):
        curve.require(100 * MS, 500 * MS)


def test_a_request_outside_the_readings_is_refused() -> None:
    polls = list(range(0, 1000 * MS, 10 * MS))
    curve = counter_curve(polls, [0.1 * i for i in range(100)], resolution_joules=1e-6, assumed_period_ns=10 * MS)
    with pytest.raises(CannotTell, match="not covered"):
        curve.require(500 * MS, 2000 * MS)
    # A tail shorter than two periods is prolonged, and the doubt of it is in the error.
    inside, beyond = curve.require(500 * MS, 990 * MS), curve.require(500 * MS, 1005 * MS)
    assert beyond.joules == pytest.approx(5.05) and beyond.error_joules > inside.error_joules


@pytest.mark.parametrize("readings", [[], [5.0], [5.0, 5.0, 5.0]])
def test_a_counter_that_stands_still_is_refused(readings: list[float]) -> None:
    with pytest.raises(CannotTell, match="did not move"):
        counter_curve([i * MS for i in range(len(readings))], readings, resolution_joules=0.001, assumed_period_ns=MS)


def test_a_single_sample_cannot_be_integrated() -> None:
    with pytest.raises(CannotTell, match="not enough"):
        power_curve([0], [100.0])


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0, 1000))
def test_wraps_are_undone(steps: list[float], start: float) -> None:
    range_ = 1000.0
    true = start + np.concatenate(([0.0], np.cumsum(steps)))
    shown = [float(v % range_) for v in true]
    got = np.array(unwrap(shown, range_))
    assert np.allclose(got - got[0], true - true[0], atol=1e-6)


def test_a_counter_that_goes_back_without_a_range_is_refused() -> None:
    with pytest.raises(CannotTell, match="went back"):
        unwrap([5.0, 3.0], None)
    with pytest.raises(CannotTell, match="above its range"):
        unwrap([5000.0, 3.0], 1000.0)
