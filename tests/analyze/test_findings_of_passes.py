"""What is found where passes of one request are compared: cold with warm, warm with deep."""

from __future__ import annotations

from findings_support import one, run, sentences, three
from support.records import MS, T0, request_pass

from tokentrace.errors import EndpointError
from tokentrace.model import IdSource
from tokentrace.report import build
from tokentrace.stitch import stitch


def test_the_first_request_says_what_it_paid_for() -> None:
    found = run(three())
    assert found.cold_sentence == (
        "The first request took 30.0 ms longer than the warm one: 30.0 ms in the JIT cache (layer 2)."
    )
    assert [(e.layer, e.extra_ns) for e in found.cold_extra] == [(2, 30 * MS)]
    assert one(found, "The first request").evidence == "91.8 ms cold, 61.8 ms warm"


def test_a_cold_pass_that_was_not_slower_is_not_made_to_look_so() -> None:
    ids = IdSource(1)
    passes = [request_pass("cold", ids=ids, deep=False), request_pass("warm", ids=ids, deep=False, at=T0 + 10**9)]
    found = run(passes)
    assert found.cold_sentence == "The first request was no slower than the warm one (61.8 ms)."
    assert "first request" not in sentences(found)


def test_deep_probing_says_how_much_it_stretched_the_request() -> None:
    found = run(three())
    assert found.passes["deep"].dilation == found.passes["deep"].wall_ns / found.passes["warm"].wall_ns
    stretched = one(found, "Deep probing")
    assert stretched.status == "ok" and stretched.evidence == (
        "the prefill step 1.50 times, decode steps 1.50 times (median)"
    )
    assert one(run(three(prefill_ms=200)), "Deep probing").status == "warn"


def test_waiting_longer_in_the_queue_is_not_put_down_to_deep_probing() -> None:
    found = run(three(prefill_ms=40, decode_ms=10, wait_us=80_000))
    told = one(found, "Deep probing")
    assert told.status == "ok" and "stretched the request to 1.00 times its warm time, the waits" in told.sentence
    assert told.evidence.startswith(
        "it waited 80.0 ms in the deep pass and 300 µs in the warm one, the prefill step 1.00"
    )
    assert (found.passes["deep"].dilation or 0) > 2, "of the wall times, as the table has them"
    slow = one(run(three(prefill_ms=200, wait_us=80_000)), "Deep probing")
    assert slow.status == "warn" and "left out; take the shares below a step as rough" in slow.sentence


def test_nothing_is_called_stretched_that_was_faster_or_not_probed() -> None:
    ids = IdSource(1)
    quick = [request_pass("warm", ids=ids, deep=False, prefill_ms=200), request_pass("deep", ids=ids, at=T0 + 10**9)]
    assert "did not slow" in one(run(quick), "Deep probing").sentence
    bare = [request_pass(n, ids=ids, deep=False, at=T0 + k * 10**9) for k, n in enumerate(("warm", "deep"))]
    assert "Deep probing" not in sentences(run(bare))


def test_passes_that_produced_different_tokens_are_told_apart_at_the_first_one() -> None:
    assert "different tokens" not in sentences(run(three()))
    found = run(three(reply=("Hello", "?", " How")))
    # The text differs, the ids (as the tokenizer was seen) do not: ids decide.
    assert "different tokens" not in sentences(found)
    passes = three()
    decodes = [r for r in passes[2].records if r.name == "decode"]
    decodes[1].attributes["tokentrace.token.id"] = 99
    finding = one(run(passes), "different tokens")
    assert finding.status == "warn" and finding.evidence == "first at token 1: cold 17 '!', deep 99 '!'"


def test_without_the_tokenizer_replies_are_compared_as_text() -> None:
    passes = three(reply=("Hello", "?", " How"))
    for each in passes:
        each.records = [r for r in each.records if r.name != "decode"]
    assert one(run(passes), "different tokens").evidence == "first at character 5"


def test_the_prefix_cache_explains_why_the_cold_prefill_differs() -> None:
    ids = IdSource(4)
    passes = [
        request_pass("cold", ids=ids, deep=False, prefill_ms=80),
        request_pass("warm", ids=ids, deep=False, at=T0 + 10**9, cached=5),
        request_pass("deep", ids=ids, at=T0 + 2 * 10**9, cached=5),
    ]
    found = run(passes)
    finding = one(found, "prefix cache served")
    assert finding.sentence == (
        "The prefix cache served 5 of 7 prompt tokens in the warm and deep passes; only the cold pass computed the "
        "whole prompt."
    )
    assert finding.evidence == "time to first token 81.6 ms cold, 41.6 ms warm"
    assert found.cold_sentence.endswith("; the warm one took 5 prompt tokens from the prefix cache.")


def test_an_interrupted_pass_is_compared_with_none_and_heads_no_report() -> None:
    cold, warm, _ = three()
    assert warm.exchange is not None
    warm.exchange.interrupted, warm.exchange.complete = True, False
    warm.exchange.chunks, warm.exchange.text = [], ""
    warm.records = [r for r in warm.records if r.name not in ("step", "decode")]
    found = run([cold, warm])
    assert found.main.name == "cold", "its reply is whole"
    assert found.cold_sentence == "" and found.passes["cold"].dilation is None
    assert not any(word in sentences(found) for word in ("different", "without any content", "first request"))
    assert run([warm]).main.name == "warm", "there is no other"


def test_a_failed_pass_is_told_beside_the_one_that_heads_the_report() -> None:
    cold, warm, _ = three()
    assert warm.exchange is not None
    warm.exchange.error, warm.exchange.complete = EndpointError("the engine was killed", fix="start it"), False
    found = build(stitch([cold, warm], ids=IdSource(9)))
    assert found.headline_pass == "cold" and found.cold == ""
    assert found.error is not None and (found.error.message, found.error.fix) == ("the engine was killed", "start it")


def test_compiling_again_in_the_warm_pass_is_a_warning() -> None:
    ids = IdSource(4)
    passes = [
        request_pass("cold", ids=ids, deep=False, compile_ms=30),
        request_pass("warm", ids=ids, deep=False, at=T0 + 10**9, compile_ms=20),
    ]
    assert one(run(passes), "compiled again").evidence == "compile mlp"
