"""Joules from a counter or from samples of power, each with a bound on how wrong it may be. Pure functions.

Both sources become an `EnergyCurve`: energy drawn since the first reading, at known instants. Everything else (the
energy of a request, of its prefill, of one token) is a difference of two values of that curve.

What the bound covers: that the sensor moves only now and then (period), that a movement is noticed late (polling),
that a reading is of some moment between the begin and the end of its call, the resolution and, for averaged power, the
averaging window. It takes power never to exceed the highest mean seen
between two readings. What it does not cover: the sensor's calibration (NVIDIA states +/- 5 % for some boards) and
sensors that look only part of the time; arXiv 2312.02741 measured boards that sample 25 ms of each 100 ms.
Times are integer nanoseconds, energies joules, powers watts.

numpy is imported where it is needed: the doctor reads sensors without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NS = 1e9


class CannotTell(ValueError):
    """The sensor cannot answer for this stretch of time; the message says why, with numbers."""


@dataclass(frozen=True, slots=True)
class Energy:
    """`joules`, wrong by at most `error_joules` in either direction."""

    joules: float
    error_joules: float


@dataclass(frozen=True, slots=True)
class EnergyCurve:
    """Energy since the first point (`joules`, never falling) at `times_ns` (strictly rising), at least two points.

    `late_ns[i]`: the counter may have reached point i this much earlier than it was noted. `spread_w[i]`: how far
    power may lie from the straight line between samples i and i+1 (integration only). `edge_joules`: doubt added at
    each end of a stretch by resolution, averaging and the time between samples. `doubt_ns[i]`: point i was read this
    much earlier or later than it is stamped, at most. `period_ns`: how often the sensor moves; `period_measured` is
    False when that is an assumption because the sensor was not seen moving often enough.
    """

    method: str
    times_ns: Any  # numpy int64
    joules: Any  # numpy float64
    late_ns: Any
    spread_w: Any
    doubt_ns: Any  # numpy int64
    edge_joules: float
    period_ns: int
    period_measured: bool
    averaging_ns: int
    peak_w: float  # the highest mean power between two neighbouring points

    def _place(self, time_ns: int) -> tuple[int, float]:
        """Index of the stretch that holds the instant, and the share of it that has passed (beyond 0..1 outside)."""
        import numpy as np

        i = int(np.searchsorted(self.times_ns, time_ns, side="right")) - 1
        i = min(max(i, 0), len(self.times_ns) - 2)
        length = int(self.times_ns[i + 1]) - int(self.times_ns[i])
        return i, (time_ns - int(self.times_ns[i])) / length

    def at(self, time_ns: int) -> float:
        """Joules since the first point. Beyond the ends the nearest stretch is prolonged; see `slack`."""
        i, share = self._place(time_ns)
        return float(self.joules[i] + share * (self.joules[i + 1] - self.joules[i]))

    def _step(self, i: int) -> tuple[float, float]:
        """Joules of stretch i and the most that its last point may be late, in joules."""
        energy = float(self.joules[i + 1] - self.joules[i])
        late = self.peak_w * float(self.late_ns[i + 1]) / NS
        if i + 2 < len(self.times_ns):
            late = min(late, float(self.joules[i + 2] - self.joules[i + 1]))
        return energy, late

    def slack(self, time_ns: int) -> float:
        """How wrong `at` may be at this instant, in joules."""
        i, share = self._place(time_ns)
        if share < 0 or share > 1:
            end = 0 if share < 0 else -1
            beyond_s = (abs(time_ns - int(self.times_ns[end])) + int(self.doubt_ns[end])) / NS
            return beyond_s * self.peak_w + self.edge_joules
        if self.method == "counter":
            # The counter's own value is exact where it moves; between two moves the energy may have come at any
            # time, so it lies between the two values.
            # A point that was read later than stamped has less before it, one read earlier more behind it.
            energy, late = self._step(i)
            before, behind = self._doubt(i)
            return max(share * energy + before, (1 - share) * energy + late + behind) + self.edge_joules
        length_s = float(self.times_ns[i + 1] - self.times_ns[i]) / NS
        return 0.5 * float(self.spread_w[i]) * length_s * share * (1 - share) + self.edge_joules

    def _doubt(self, i: int) -> tuple[float, float]:
        """What the doubt about the times of stretch i's first and last point may amount to, in joules."""
        return self.peak_w * float(self.doubt_ns[i]) / NS, self.peak_w * float(self.doubt_ns[i + 1]) / NS

    def _within(self, start_ns: int, end_ns: int) -> float:
        """Doubt of an integral from what power did between samples, in joules: half the spread times the time.

        And around each sample, for as long as its read took: there power may have been that of either side.
        """
        import numpy as np

        if self.method == "counter":
            return 0.0
        lengths = np.diff(self.times_ns) / NS
        total = np.concatenate(([0.0], np.cumsum(0.5 * self.spread_w * lengths)))
        between = float(np.interp(end_ns, self.times_ns, total) - np.interp(start_ns, self.times_ns, total))
        # Beyond the first and the last sample nothing is known but the peak.
        sides = np.concatenate(([self.peak_w], self.spread_w, [self.peak_w]))
        around = 2 * self.doubt_ns / NS * (sides[:-1] + sides[1:])
        first, last = self._place(start_ns)[0], self._place(end_ns)[0] + 1
        return between + float(around[first : last + 1].sum())

    def between(self, start_ns: int, end_ns: int) -> Energy:
        """Energy drawn from start to end. Raises ValueError when end lies before start."""
        if end_ns < start_ns:
            raise ValueError(f"the stretch ends {start_ns - end_ns} ns before it starts")
        joules = self.at(end_ns) - self.at(start_ns)
        error = self.slack(start_ns) + self.slack(end_ns) + self._within(start_ns, end_ns)
        i, first = self._place(start_ns)
        j, last = self._place(end_ns)
        if self.method == "counter" and i == j and first >= 0 and last <= 1:
            # Both ends between the same two moves: the energy is anything from none to all of that move.
            energy, late = self._step(i)
            doubt = sum(self._doubt(i))
            error = min(error, max(joules, energy + late + doubt - joules) + 2 * self.edge_joules)
        return Energy(joules, error)

    def require(self, start_ns: int, end_ns: int, what: str = "request") -> Energy:
        """Like `between`, but raises CannotTell when the sensor is too slow for this stretch or did not cover it.
        `what` the stretch is, for that sentence."""
        import numpy as np

        length_ns = end_ns - start_ns
        needed_ns = max(self.period_ns, self.averaging_ns)
        if length_ns < needed_ns:
            how = "averages over" if self.averaging_ns > self.period_ns else "moves every"
            raise CannotTell(
                f"too short: the {what} took {length_ns / 1e6:.1f} ms, the sensor {how} {needed_ns / 1e6:.1f} ms"
            )
        reach_ns = 2 * self.period_ns + int(np.max(self.late_ns))
        missing_ns = max(int(self.times_ns[0]) - start_ns, end_ns - int(self.times_ns[-1]))
        if missing_ns > reach_ns:
            raise CannotTell(
                f"not covered: {missing_ns / 1e6:.1f} ms of the {what} lie outside the sensor's readings "
                f"({len(self.times_ns)} of them, one each {self.period_ns / 1e6:.1f} ms)"
            )
        energy = self.between(start_ns, end_ns)
        if not np.isfinite(energy.joules) or energy.error_joules >= energy.joules:
            raise CannotTell(
                f"too short: {energy.joules:.3g} J would be wrong by up to {energy.error_joules:.3g} J, with a sensor "
                f"that moves every {self.period_ns / 1e6:.1f} ms and a {what} of {length_ns / 1e6:.1f} ms"
            )
        return energy


def unwrap(values: Sequence[float], range_: float | None) -> list[float]:
    """A counter that starts again at 0 after `range_`, made monotonic. At most one wrap between two readings.

    RAPL counters are 32 bits of an energy unit, so `max_energy_range_uj` is passed every few minutes under load.
    Raises CannotTell when the counter went back and its range is not known, or went back further than its range.
    """
    result: list[float] = []
    carry = 0.0
    for index, value in enumerate(values):
        if index and value < values[index - 1]:
            if not range_:
                raise CannotTell(
                    f"the energy counter went back from {values[index - 1]:g} to {value:g} and its range is unknown"
                )
            if values[index - 1] > range_:
                raise CannotTell(f"the energy counter stood at {values[index - 1]:g}, above its range of {range_:g}")
            carry += range_
        result.append(value + carry)
    return result


def _halves(reads_ns: Sequence[int], count: int) -> list[int]:
    """Half the length of each read, rounded up; 0 where it is not told. Raises ValueError for another number."""
    if reads_ns and len(reads_ns) != count:
        raise ValueError("as many lengths of reads as readings are needed")
    return [(length + 1) // 2 for length in reads_ns] or [0] * count


def counter_curve(
    times_ns: Sequence[int],
    joules: Sequence[float],
    *,
    resolution_joules: float,
    assumed_period_ns: int,
    wrap_joules: float | None = None,
    reads_ns: Sequence[int] = (),
) -> EnergyCurve:
    """The curve of a total-energy counter that was polled. Readings that show no movement only tell how late the
    next one is. `reads_ns`: how long each read took, its time being the middle of that. Raises CannotTell when there
    are fewer than two different values.
    """
    import numpy as np

    if len(times_ns) != len(joules):
        raise ValueError("as many times as readings are needed")
    values = unwrap(joules, wrap_joules)
    kept: list[int] = []
    for i in range(len(values)):
        if (not kept or values[i] > values[kept[-1]]) and (not kept or times_ns[i] > times_ns[kept[-1]]):
            kept.append(i)
    if len(kept) < 2:
        span_ms = (times_ns[-1] - times_ns[0]) / 1e6 if len(times_ns) > 1 else 0.0
        raise CannotTell(f"the energy counter did not move in {len(times_ns)} readings over {span_ms:.1f} ms")
    times = np.array([times_ns[i] for i in kept], dtype=np.int64)
    gaps = np.diff(times)
    # The first reading stood at its value for an unknown time, so the first gap says nothing about the period.
    measured = len(gaps) >= 3
    period = int(np.median(gaps[1:])) if measured else max(assumed_period_ns, int(gaps.min()))
    half = _halves(reads_ns, len(times_ns))
    doubt = np.array([half[i] for i in kept], dtype=np.int64)
    late = [period + half[kept[0]]]
    late += [times_ns[i] - times_ns[i - 1] + half[i] + half[i - 1] for i in kept[1:]]
    # Two points may lie closer together than their stamps, so the mean between them may have been higher. Of a stretch
    # that is mostly doubt half is taken: one read that was held up must not make the peak anything.
    lengths = np.maximum(gaps - doubt[1:] - doubt[:-1], gaps / 2)
    energy = np.array([values[i] - values[0] for i in kept], dtype=np.float64)
    return EnergyCurve(
        method="counter",
        times_ns=times,
        joules=energy,
        late_ns=np.array(late, dtype=np.int64),
        spread_w=np.zeros(len(gaps)),
        doubt_ns=doubt,
        edge_joules=resolution_joules,
        period_ns=period,
        period_measured=measured,
        averaging_ns=0,
        peak_w=float(np.max(np.diff(energy) / lengths)) * NS,
    )


def power_curve(
    times_ns: Sequence[int],
    watts: Sequence[float],
    *,
    averaging_ns: int = 0,
    resolution_w: float = 0.0,
    assumed_period_ns: int = 0,
    reads_ns: Sequence[int] = (),
) -> EnergyCurve:
    """The curve of sampled power by the trapezoid rule. `reads_ns`: how long each read took, its time being the middle.

    The bound takes power between two samples to lie between them (plus resolution): a spike that begins and ends
    between two samples is invisible to any sampling. Samples that are means over the past `averaging_ns` shift
    energy by at most half that window at each end. When within its period a sensor looked is not known, so at each end
    of a stretch half a period at the highest power is in doubt. Raises CannotTell with fewer than two samples.
    """
    import numpy as np

    if len(times_ns) != len(watts):
        raise ValueError("as many times as samples are needed")
    order = sorted(range(len(times_ns)), key=lambda i: times_ns[i])
    order = [i for n, i in enumerate(order) if n == 0 or times_ns[i] > times_ns[order[n - 1]]]
    if len(order) < 2:
        raise CannotTell(f"{len(order)} sample of power is not enough to integrate")
    times = np.array([times_ns[i] for i in order], dtype=np.int64)
    power = np.array([watts[i] for i in order], dtype=np.float64)
    gaps = np.diff(times)
    energy = np.concatenate(([0.0], np.cumsum(0.5 * (power[1:] + power[:-1]) * gaps / NS)))
    half = _halves(reads_ns, len(times_ns))
    period = max(int(np.median(gaps)), assumed_period_ns)
    edge = 0.25 * (averaging_ns / NS) * float(power.max() - power.min()) + 0.5 * (period / NS) * float(power.max())
    return EnergyCurve(
        method="integration",
        times_ns=times,
        joules=energy,
        late_ns=np.zeros(len(times), dtype=np.int64),
        spread_w=np.abs(np.diff(power)) + resolution_w,
        doubt_ns=np.array([half[i] for i in order], dtype=np.int64),
        edge_joules=edge,
        period_ns=period,
        period_measured=period > assumed_period_ns,
        averaging_ns=averaging_ns,
        peak_w=float(power.max()),
    )


@dataclass(frozen=True, slots=True)
class Stretch:
    """One engine step (or the wait for one token): `share` of its energy is this request's, by tokens scheduled."""

    start_ns: int
    end_ns: int
    phase: str  # prefill, decode
    share: float = 1.0
    batch: int = 1


@dataclass(slots=True)
class Attribution:
    """Where the request's energy went. The four parts add up to `total`; `tokens` add up to `decode`.

    `others` belongs to requests that shared a step; `outside` was drawn while no step of this request ran (waiting,
    transport, host work). `token_resolved` is False when steps are shorter than the sensor's period: a token's
    share is then the mean power around it times its time, not a measurement of that token.
    """

    total: Energy
    prefill: Energy
    decode: Energy
    others: float
    outside: float
    tokens: list[float] = field(default_factory=list)
    token_resolved: bool = False
    shared_by: int = 1


def attribute(curve: EnergyCurve, start_ns: int, end_ns: int, stretches: Sequence[Stretch]) -> Attribution:
    """Split the energy of a request over its steps. Stretches are clipped to the request and to each other (the
    earlier one keeps the overlap). Raises CannotTell like `EnergyCurve.require`.
    """
    import numpy as np

    total = curve.require(start_ns, end_ns)
    clean: list[Stretch] = []
    cursor = start_ns
    for s in sorted(stretches, key=lambda s: (s.start_ns, s.end_ns)):
        begin, end = max(s.start_ns, cursor), min(s.end_ns, end_ns)
        if end > begin:
            clean.append(Stretch(begin, end, s.phase, min(max(s.share, 0.0), 1.0), s.batch))
            cursor = end
    sums = {"prefill": 0.0, "decode": 0.0}
    errors = {"prefill": 0.0, "decode": 0.0}
    tokens: list[float] = []
    others = outside = 0.0
    cursor = start_ns
    for s in clean:
        outside += curve.between(cursor, s.start_ns).joules
        energy = curve.between(s.start_ns, s.end_ns).joules
        sums[s.phase] += energy * s.share
        others += energy * (1 - s.share)
        if s.phase == "decode":
            tokens.append(energy * s.share)
        cursor = s.end_ns
    outside += curve.between(cursor, end_ns).joules
    for run in _runs(clean):
        errors[run[0].phase] += _run_error(curve, run)
    lengths = [s.end_ns - s.start_ns for s in clean if s.phase == "decode"]
    return Attribution(
        total=total,
        prefill=Energy(sums["prefill"], errors["prefill"]),
        decode=Energy(sums["decode"], errors["decode"]),
        others=others,
        outside=outside,
        tokens=tokens,
        token_resolved=bool(lengths) and float(np.median(lengths)) >= 2 * max(curve.period_ns, curve.averaging_ns),
        shared_by=max((s.batch for s in clean), default=1),
    )


def _runs(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    runs: list[list[Stretch]] = []
    for s in stretches:
        if runs and runs[-1][0].phase == s.phase:
            runs[-1].append(s)
        else:
            runs.append([s])
    return runs


def _run_error(curve: EnergyCurve, run: Sequence[Stretch]) -> float:
    """Doubt of a run of steps of one phase: of its two ends, and of what was drawn in the pauses between steps."""
    whole = curve.between(run[0].start_ns, run[-1].end_ns)
    inside = sum(curve.between(s.start_ns, s.end_ns).joules for s in run)
    pauses_s = (run[-1].end_ns - run[0].start_ns - sum(s.end_ns - s.start_ns for s in run)) / NS
    pauses = whole.joules - inside
    doubt = max(pauses, curve.peak_w * pauses_s - pauses) if pauses_s > 0 else 0.0
    return max(s.share for s in run) * (whole.error_joules + doubt)
