"""What layer 2 says of a compilation that vLLM's JIT monitor reports, and of the monitor itself."""

from __future__ import annotations

from typing import Any

import pytest
from support.answering import Answering, context

from tokentrace.model import Record
from tokentrace.probe import Columns, Raw
from tokentrace.probes.jit import JitProbe, late_sentences

MS = 1_000_000


def late(name: str, compiler: str, phase: str, start: int = 100, length: int = 0, **more: Any) -> Raw:
    data = {"compiler": compiler, "phase": phase, "after_warmup": True, "depth": 0, **more}
    return Raw("jit", name, start, start + length, 3, "7", data)


def collect(raws: list[Raw], monitor: dict[str, Any] | None = None, **header: Any) -> tuple[JitProbe, list[Record]]:
    probe = JitProbe()
    columns = Columns("jit", "7", {"watched": [], "missing": [], "errors": [], **header}, {})
    facts = {} if monitor is None else {"jit_monitor": monitor}
    return probe, list(probe.collect(context(Answering([columns], raws, facts))))


def test_a_compilation_with_a_length_says_that_it_came_after_the_warm_up() -> None:
    probe, (record,) = collect([late("compile", "cutedsl", "flash", length=200 * MS, detail="head_dim=64")])
    assert (record.name, record.end_ns - record.start_ns) == ("compile flash", 200 * MS)
    assert record.attributes["tokentrace.jit.after_warmup"] is True
    assert record.attributes["tokentrace.jit.detail"] == "head_dim=64"
    assert record.attributes["tokentrace.jit.compile_ms"] == 200.0
    assert probe.state.status == "seen"
    assert probe.state.facts["findings"][-1] == (
        "1 kernel was compiled after vLLM's warm-up was over, a spike in latency, which took 200 ms (flash by CuTeDSL)"
        ": send it such a request after each start, or extend its warm-up to this shape"
    )


def test_of_one_that_was_only_reported_no_length_is_made_up() -> None:
    probe, (record,) = collect([late("report", "tilelang", "gemm")])
    assert record.start_ns == record.end_ns and record.name == "compile gemm"
    assert "tokentrace.jit.compile_ms" not in record.attributes
    assert str(record.attributes["tokentrace.jit.length"]).startswith("unknown")
    facts = probe.state.facts
    assert (facts["compilations"], facts["compilations_of_unknown_length"], facts["compile_ns"]) == (1, 1, 0)
    assert "took" not in facts["findings"][-1] and "for an unknown time (gemm by TileLang)" in facts["findings"][-1]


def test_lengths_that_are_known_are_a_lower_bound_beside_one_that_is_not() -> None:
    raws = [late("report", "tilelang", "gemm"), late("compile", "triton", "add", length=30 * MS)]
    (sentence,) = late_sentences(raws)
    assert (
        sentence.startswith("2 kernels were")
        and "took at least 30.0 ms (gemm by TileLang and add by Triton)" in sentence
    )


def test_one_that_ended_the_step_is_an_error_and_no_compilation() -> None:
    probe, (record,) = collect([late("report", "cutedsl", "flash", refused=True)])
    assert (record.name, record.status) == ("compile refused flash", 2)
    assert probe.state.facts["compilations"] == 0
    assert probe.state.facts["findings"][-1].startswith("--jit-monitor-mode error ended 1 step")


def test_what_was_compiled_before_or_by_a_cache_is_no_spike() -> None:
    before = Raw("jit", "compile", 1, 9, 3, "7", {"compiler": "triton", "phase": "add", "depth": 0})
    cached = late("cache", "triton", "add", cache="kernel", result="hit")
    assert late_sentences([before, cached]) == []


@pytest.mark.parametrize(
    ("monitor", "fact", "words"),
    [
        ({"state": "active", "mode": "warn"}, "active (warn)", "is active and reported nothing"),
        ({"state": "inactive", "unwatched": ["CuTeDSL"]}, "inactive", "what CuTeDSL may compile is not seen"),
        ({"state": "not loaded", "unwatched": []}, "not loaded", "eager: nothing to compile"),
    ],
)
def test_how_the_monitor_stands_is_told(monitor: dict[str, Any], fact: str, words: str) -> None:
    probe, _ = collect([], monitor)
    assert probe.state.facts["jit_monitor"] == fact and words in probe.state.reason
    assert probe.state.status == "idle"


def test_an_engine_without_a_monitor_is_not_said_to_lack_one() -> None:
    probe, _ = collect([])
    assert "jit_monitor" not in probe.state.facts and "monitor" not in probe.state.reason


def test_what_one_process_lacks_is_not_covered_by_another() -> None:
    probe = JitProbe()
    one = Columns("jit", "7", {"watched": ["a"], "missing": ["a.x"], "errors": []}, {})
    other = Columns("jit", "8", {"watched": ["a"], "missing": [], "errors": []}, {})
    list(probe.collect(context(Answering([one, other]))))
    assert probe.state.facts["missing"] == ["a.x"] and probe.state.facts["watched"] == ["a"]


def test_the_compiling_of_candidates_is_part_of_tuning_and_not_told_twice() -> None:
    tuned = late("tune", "triton", "add", 100, 900, config="SIZE: 64", candidates=2)
    inside, beside = late("compile", "triton", "add", 150, 300), late("compile", "triton", "other", 2000, 100)
    probe, records = collect([tuned, inside, beside])
    assert [one.name for one in records] == ["compile autotune add", "compile add", "compile other"]
    assert records[0].attributes["tokentrace.jit.candidates"] == 2
    facts = probe.state.facts
    assert (facts["autotunings"], facts["autotune_ns"], facts["compilations"]) == (1, 900, 2)
    tuning, compiling = facts["findings"][-2:]
    assert "1 kernel was tuned" in tuning and compiling.startswith("1 kernel was compiled") and "other" in compiling
