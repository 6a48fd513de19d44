"""One run a side: what a busier machine does to all parts alike is no verdict; what stands out of that still is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_diff_structure import MS, T0, sample, trace

from tokentrace.analyze import analyze
from tokentrace.compare import compare_samples
from tokentrace.compare.evenness import even_of
from tokentrace.compare.processor import Processor, hint, of_rows
from tokentrace.compare.sample import Sample, of_pass
from tokentrace.energy.device import Tokens, Window
from tokentrace.model import IdSource, Trace
from tokentrace.probes._cpu import CpuReading, CpuWatch
from tokentrace.probes._power_report import cpu_record
from tokentrace.wording import duration


def stretched(made: Trace, factor: Callable[[float], float]) -> Sample:
    """The same pass on a machine that takes `factor(t)` times as long at the share t of it."""
    start, end = made.start_ns[0], made.end_ns[0]
    at = np.linspace(start, end, 2_001)
    grown = start + np.concatenate([[0], np.cumsum(np.diff(at) * [factor(t) for t in np.linspace(0, 1, 2_000)])])
    for times in (made.start_ns, made.end_ns):
        for row, value in enumerate(times):
            times[row] = int(np.interp(value, at, grown))
    return of_pass(made, analyze(made), "once", "x")


def wavy(seed: int, level: float) -> Callable[[float], float]:
    """A load around `level` that comes and goes."""
    drawn = np.random.default_rng(seed).normal(0, 0.05, 12)
    return lambda t: level * (1 + float(drawn[min(int(t * 12), 11)]))


@pytest.mark.parametrize("level", [1.5, 2.5, 0.4])
def test_a_machine_that_is_busier_is_not_called_a_slower_program(level: float) -> None:
    base, new = stretched(trace(), wavy(1, 1.0)), stretched(trace(), wavy(2, level))
    found = compare_samples([base], [new])
    assert found.verdict.status == "unknown" and "alike" in found.verdict.sentence, found.verdict.sentence
    assert found.even.main == pytest.approx(level - 1, abs=0.1 * level)
    assert found.wall.beyond_noise is None and not found.exceeds(0.1, None)
    assert found.undecided(0.1, None) is (level > 1)


@pytest.mark.parametrize("level", [1.0, 1.5])
def test_what_stands_out_of_a_busier_machine_is_named(level: float) -> None:
    base = stretched(trace(), wavy(1, 1.0))
    module = compare_samples([base], [stretched(trace(slow={"layers.1.mlp": 900_000}), wavy(2, level))])
    assert (module.verdict.status, module.verdict.key) == ("slower", "layers.1.mlp"), module.verdict.sentence
    encode = compare_samples([base], [stretched(trace(encode=20 * MS), wavy(2, level))])
    assert (encode.verdict.status, encode.verdict.layer) == ("slower", 7), encode.verdict.sentence


def test_a_span_that_stands_out_where_the_rest_changed_alike_is_named() -> None:
    """Too little of the difference to call the whole slower, and too much to say that all parts changed alike."""
    base = stretched(trace(), wavy(1, 1.0))
    found = compare_samples([base], [stretched(trace(encode=2 * MS), wavy(2, 3.0))])
    (row,) = (row for row in found.levels["spans"] if row.key == "7/encode")
    assert row.beyond_noise and row.difference_ns < 0.5 * found.wall.difference_ns
    verdict = found.verdict
    assert (verdict.status, verdict.layer, verdict.level, verdict.key) == ("shifted", 7, "spans", "7/encode")
    assert verdict.sentence.startswith("In the tokenizer (layer 7) `encode` took "), verdict.sentence
    assert "other parts changed alike" in verdict.sentence and "all its parts alike" not in verdict.sentence
    assert found.wall.beyond_noise is None and found.undecided(0.1, None) and verdict.fix
    back = compare_samples([stretched(trace(encode=2 * MS), wavy(2, 3.0))], [base]).verdict
    assert back.key == "7/encode" and " less (" in back.sentence


def test_a_part_that_was_held_up_once_is_the_machine() -> None:
    base, held = sample(jitter=500), trace(jitter=500)
    name = held.names.index("layers.1.mlp")
    at = [row for row in range(len(held)) if held.name[row] == name][3]
    cut = held.end_ns[at]
    for times in (held.start_ns, held.end_ns):
        for row, value in enumerate(times):
            if (value >= cut and row != at) or (row == at and times is held.end_ns):
                times[row] = value + 2 * MS
    found = compare_samples([base], [of_pass(held, analyze(held), "once", "x")])
    part = next(one for one in found.levels["modules"] if one.key == "layers.1.mlp")
    assert part.difference_ns == pytest.approx(2 * MS) and part.beyond_noise is False


def test_several_runs_and_recordings_are_judged_as_they_are() -> None:
    slow = [stretched(trace(seed=n), wavy(n, 1.5)) for n in (1, 2, 3, 4)]
    found = compare_samples([stretched(trace(seed=n), wavy(n, 1.0)) for n in (5, 6, 7, 8)], slow)
    assert found.verdict.status == "slower" and found.even.main == 0
    base, new = Sample("a", "import", "import", 5), Sample("b", "import", "import", 9)
    assert even_of([base], [new]).main == 0


def test_all_alike_names_the_figure_both_reasons_and_what_would_tell() -> None:
    base, new = stretched(trace(), wavy(1, 1.0)), stretched(trace(), wavy(2, 3.0))
    base.given, new.given = ("runs/a b", ""), ("n1", "warm")
    found = compare_samples([base], [new]).verdict
    assert f"{new.wall_ns / base.wall_ns:.3g} times as long" in found.sentence
    assert "busier or slower machine" in found.sentence and "threads, precision, device" in found.sentence
    assert "tokentrace diff 'runs/a b',BASE2,BASE3 n1:warm,NEW2:warm,NEW3:warm" in found.fix
    known = compare_samples([base, stretched(trace(seed=3), wavy(3, 1.0))], [new]).verdict
    assert (known.status, known.fix) == ("slower", "")


# Figures of real pairs on two cores: a busy machine, all matrix products done three times, a sleep in each layer.
@pytest.mark.parametrize(
    ("base", "new", "told"),
    [
        ((0.477, 0.477, 0.469, 2), (0.493, 2.470, 1.232, 2), "The machine's load is the likelier cause"),
        ((0.493, 2.470, 1.232, 2), (0.477, 0.477, 0.469, 2), "The machine's load is the likelier cause"),
        ((0.520, 3.960, 1.991, 2), (1.160, 10.60, 5.311, 2), "The work itself, or a processor that runs slower"),
        ((0.520, 3.960, 1.991, 2), (0.582, 7.220, 3.621, 2), "It waited, for the processor or for something else"),
        ((0.480, 0.490, 0.480, 2), (0.500, 0.600, 1.440, 2), "It waited, and not for other programs"),
        ((0.620, 5.900, 2.950, 2), (0.508, 3.950, 2.031, 2), "The model used 620 ms, then 508 ms"),
    ],
)
def test_processor_time_hints_at_the_reason(base: tuple[Any, ...], new: tuple[Any, ...], told: str) -> None:
    text = hint(Processor(*base), Processor(*new))
    assert text.startswith(told), text
    assert duration(base[0] * 1e9) in text and duration(new[0] * 1e9) in text
    assert hint(None, Processor(*new)) == hint(Processor(*base), Processor(*base)) == ""


def test_what_the_power_layer_keeps_of_the_processor_is_what_a_comparison_reads() -> None:
    second, watch = 10**9, CpuWatch(pids=(os.getpid(),))
    watch.readings = [CpuReading(T0, 2.0, 50.0, 3000.0), CpuReading(T0 + 2 * second, 3.0, 53.5, 3000.0)]
    record = cpu_record(watch, Window(T0, T0 + 2 * second, "chat"), Tokens(4, "usage"), "no sensor")
    assert record is not None
    made = Trace(ids=IdSource(1))
    made.add("pass once", 0, T0, T0 + 2 * second, -1, envelope=True)
    made.add(record.name, record.layer, record.start_ns, record.end_ns, 0, record.attributes)
    assert of_rows(made, range(len(made))) == Processor(1.0, 3.5, 2.0, int(record.attributes["tokentrace.cpu.cores"]))


def test_a_large_difference_within_the_noise_of_single_runs_says_how_to_know() -> None:
    base, new = stretched(trace(), wavy(1, 1.0)), stretched(trace(), wavy(2, 1.0))
    for one in (base, new):
        one.drifts = [0.5]  # its passes differed by half
    assert compare_samples([base], [new]).verdict.fix == ""
    new.steps[2].wall_ns += base.wall_ns // 4
    new.wall_ns += base.wall_ns // 4
    found = compare_samples([base], [new]).verdict
    assert found.status == "same" and "tokentrace diff" in found.fix
