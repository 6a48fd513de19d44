"""What caches did by their files, in the findings of a run: each sentence once, and its time in layer 2."""

from __future__ import annotations

from support.records import ENGINE, MS, T0, request_pass

from tokentrace.analyze import analyze
from tokentrace.model import IdSource, Record
from tokentrace.probe import LayerState
from tokentrace.probes._cache_entries import told
from tokentrace.probes._cache_entries.watch import Use
from tokentrace.stitch import PassRecords, stitch


def with_use(one: PassRecords, use: Use) -> PassRecords:
    one.states = [state for state in one.states if state.layer != 2]
    one.states.append(LayerState(2, facts=told.facts([use], one.name)))
    return one


def test_a_module_that_was_compiled_in_the_request_is_found_with_its_time_in_layer_2() -> None:
    ids = IdSource(4)
    cold = request_pass("cold", ids=ids, deep=False, prefill_ms=90)
    warm = request_pass("warm", ids=ids, deep=False, at=T0 + 10**9)
    step = next(r for r in cold.records if r.name == "step")
    key = {"key": "batch_decode", "result": "miss", "took_ns": 40 * MS}
    missed = Use("FlashInfer", "/cache", miss=1, miss_ns=40 * MS, hit=0, loaded=0, paid=1, paid_ns=7 * MS, keys=[key])
    cold.records.append(
        Record("compile FlashInfer", 2, step.start_ns + 10 * MS, step.start_ns + 50 * MS, process=ENGINE, join="time",
               attributes={"tokentrace.jit.compiler": "FlashInfer", "tokentrace.jit.source": "files"})
    )  # fmt: skip
    later = Use("FlashInfer", "/cache", hit=0, loaded=1, paid=2, paid_ns=47 * MS)
    found = analyze(stitch([with_use(cold, missed), with_use(warm, later)], ids=IdSource(9)))
    sentences = [f.sentence for f in found.findings]
    assert sentences.count("FlashInfer compiled 1 module in the cold pass that its cache did not have, 40.0 ms.") == 1
    # The warm pass counts the module of the cold one to the start as well.
    assert [one for one in sentences if "since the server started" in one] == [
        "1 module of FlashInfer that the cache did not have was compiled since the server started, 7.00 ms."
    ]
    assert sum(ns for (layer, _), ns in found.passes["cold"].own.items() if layer == 2) == 40 * MS
    assert [(e.layer, e.extra_ns) for e in found.cold_extra if e.layer == 2] == [(2, 40 * MS)]


def test_a_module_that_was_compiled_in_the_warm_pass_is_not_put_down_to_guards() -> None:
    ids = IdSource(4)
    cold = request_pass("cold", ids=ids, deep=False)
    warm = request_pass("warm", ids=ids, deep=False, at=T0 + 10**9)
    step = next(r for r in warm.records if r.name == "step")
    warm.records.append(
        Record("compile FlashInfer", 2, step.start_ns + MS, step.start_ns + 9 * MS, process=ENGINE, join="time",
               attributes={"tokentrace.jit.source": "files"})
    )  # fmt: skip
    found = analyze(stitch([cold, with_use(warm, Use("FlashInfer", "/cache", miss=1, miss_ns=8 * MS))], ids=ids))
    told_of = [f for f in found.findings if "FlashInfer" in f.sentence + f.evidence]
    assert [f.sentence for f in told_of] == [
        "FlashInfer compiled 1 module in the warm pass that its cache did not have, 8.00 ms."
    ]
    assert not any("TORCH_LOGS" in f.fix for f in found.findings)
