"""What caches did, in words: with figures where they are known, and with what is not known where they are not."""

from __future__ import annotations

from typing import Any

import pytest

from tokentrace.probes._cache_entries import told
from tokentrace.probes._cache_entries.watch import Use

S = 1_000_000_000


def use(compiler: str = "FlashInfer", **figures: Any) -> Use:
    return Use(compiler, f"/cache/{compiler}", **figures)


def key(name: str, took_ns: int | None, result: str = "miss") -> dict[str, Any]:
    return {"key": name, "result": result, "took_ns": took_ns}


def test_nothing_happened_nothing_is_said() -> None:
    quiet = [use(), use("CUDA", held=300, note="hits are not told by its files"), use("MIOpen", miss=None)]
    assert told.line(quiet) == "" and told.findings(quiet, "cold") == told.of_the_start(quiet) == []


def test_a_miss_names_the_longest_and_counts_the_rest() -> None:
    missed = use(miss=7, miss_ns=100 * S, keys=[key("decode", 60 * S), key("prefill", 40 * S)], more=5)
    (finding,) = told.findings([missed], "cold")
    assert finding.sentence == "FlashInfer compiled 7 modules in the cold pass that its cache did not have, 1.67 min."
    assert finding.evidence == "decode 1.00 min, prefill 40.0 s and 5 more, by .ninja_log, in /cache/FlashInfer"
    assert finding.status == "warn" and "/cache/FlashInfer" in finding.fix
    assert told.line([missed]) == (
        "FlashInfer: 7 modules compiled, 1.67 min (decode 1.00 min, prefill 40.0 s and 5 more)"
    )
    assert "during the request" in told.findings([missed], "once")[0].sentence


@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        ("CUDA", "CUDA compiled 2 modules in the warm pass that its cache did not have; how long is not told."),
        ("HIP", "HIP compiled 2 steps of compilations in the warm pass that its cache did not have; how long is not "
                "told."),
        ("MIOpen", "MIOpen compiled 2 kernels in the warm pass that its cache did not have; how long is not told."),
        ("MIOpen db", "MIOpen looked for solvers of 2 problems in the warm pass that its database did not have; how "
                      "long is not told."),
    ],
)  # fmt: skip
def test_without_a_time_none_is_made_up(compiler: str, words: str) -> None:
    (finding,) = told.findings([use(compiler, miss=2, untimed=2, keys=[key("a", None), key("b", None)])], "warm")
    assert finding.sentence == words and finding.evidence == f"a and b, in /cache/{compiler}"


def test_a_time_that_is_known_in_part_is_a_lower_bound() -> None:
    (finding,) = told.findings([use("DeepGEMM", miss=2, miss_ns=S, untimed=1, complete=False)], "cold")
    assert finding.sentence == (
        "DeepGEMM compiled at least 2 kernels in the cold pass that its cache did not have, at least 1.00 s."
    )


def test_hits_and_what_the_start_paid_and_found() -> None:
    hit = use(
        hit=1, saved_ns=9 * S, keys=[key("decode", 9 * S, "hit")], paid=1, paid_ns=5 * S, found=3, found_ns=30 * S
    )
    findings = [*told.findings([hit], "cold"), *told.of_the_start([hit])]
    assert [(f.sentence, f.status) for f in findings] == [
        ("1 module of FlashInfer came from the cache in the cold pass, which saved 9.00 s of compiling.", "ok"),
        ("1 module of FlashInfer that the cache did not have was compiled since the server started, 5.00 s.", "ok"),
        ("3 modules of FlashInfer were in the cache when the server started, which saved 30.0 s of compiling.", "ok"),
    ]
    assert findings[0].evidence == "decode 9.00 s, by .ninja_log, in /cache/FlashInfer"
    assert told.line([hit]) == "FlashInfer: 1 module loaded, which saved 9.00 s of compiling (decode 9.00 s)"
