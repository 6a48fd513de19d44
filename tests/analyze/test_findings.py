"""Findings, comparisons and tables: only what the data shows, with what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from support.records import CLIENT, IDS, MS, RID, T0, US, request_pass

from tokentrace.analyze import Analysis, analyze
from tokentrace.errors import EndpointError
from tokentrace.exchange import Chunk
from tokentrace.model import IdSource, Record
from tokentrace.probe import LEFT_OUT, Finding, LayerState
from tokentrace.report import build
from tokentrace.stitch import PassRecords, stitch
from tokentrace.wording import duration, share


def run(passes: Sequence[PassRecords]) -> Analysis:
    return analyze(stitch(passes, ids=IdSource(9)))


def sentences(found: Analysis) -> str:
    return "\n".join(f"{f.status}: {f.sentence} ({f.evidence})" for f in found.findings)


def one(found: Analysis, word: str) -> Finding:
    fitting = [f for f in found.findings if word in f.sentence]
    assert len(fitting) == 1, sentences(found)
    return fitting[0]


def three(ids: IdSource | None = None, **more: object) -> list[PassRecords]:
    ids = ids or IdSource(4)
    deep = {"prefill_ms": 60, "decode_ms": 15}
    return [
        request_pass("cold", ids=ids, deep=False, compile_ms=30),
        request_pass("warm", ids=ids, deep=False, at=T0 + 10**9),
        request_pass("deep", ids=ids, at=T0 + 2 * 10**9, **{**deep, **more}),  # type: ignore[arg-type]
    ]


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


def test_a_failed_request_is_the_first_finding() -> None:
    error = EndpointError("the server refused the key", fix="check OPENAI_API_KEY", layer=8)
    found = run([request_pass("once", error=error)])
    assert found.findings[0] == Finding(
        8, "The request failed: the server refused the key", "3 chunks of the reply had arrived",
        "check OPENAI_API_KEY", "fail",
    )  # fmt: skip


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


def test_time_of_no_layer_is_told_with_its_longest_gap() -> None:
    once = request_pass("once")
    once.records = [r for r in once.records if r.layer > 6 or r.name in ("request", "submit")]
    found = run([once])
    finding = one(found, "belongs to no layer")
    assert finding.status == "warn" and "between submit and decode, in request" in finding.evidence


def test_what_lies_in_the_server_is_unknown_when_only_the_client_was_seen() -> None:
    once = request_pass("once")
    once.records = [r for r in once.records if r.process == "100"]
    found = run([once])
    finding = one(found, "cannot be seen from here")
    assert finding.status == "unknown" and "tokentrace run without --url" in finding.fix
    assert "belongs to no layer" not in sentences(found)


def test_time_in_layers_that_the_user_left_out_is_not_put_down_to_the_network() -> None:
    once = request_pass("once", deep=False)
    once.records = [r for r in once.records if r.layer == 8]
    once.states = [LayerState(8), *(LayerState(n, "unseen", LEFT_OUT, f"add {n} to --layers") for n in range(1, 8))]
    found = analyze(stitch([once], ids=IdSource(1), meta={"mode": "local"}))
    told = one(found, "belongs to no layer that was looked at")
    assert told.fix == "leave --layers away" and told.evidence == "--layers left out 7, 6, 5, 4, 3, 2 and 1"
    assert "network" not in sentences(found)
    assert "network" in sentences(analyze(stitch([once], ids=IdSource(1), meta={"mode": "url"})))


def test_waiting_in_the_queue_is_told_when_it_dominates() -> None:
    assert "queue" not in sentences(run([request_pass("once")]))
    finding = one(run([request_pass("once", wait_us=60_000)]), "waited in the engine's queue")
    assert finding.evidence == "60.0 ms of 101 ms"


def test_sharing_steps_and_preemption_are_told() -> None:
    once = request_pass("once")
    steps = [r for r in once.records if r.name == "step"]
    steps[1].attributes["tokentrace.step.batch_size"] = 3
    steps[2].attributes["tokentrace.step.preempted"] = 1
    found = run([once])
    assert one(found, "also served other requests").sentence == "1 of 3 steps also served other requests."
    assert one(found, "took KV blocks away").status == "warn"


def test_a_reply_that_arrives_at_once_at_the_end_is_being_held_back() -> None:
    once = request_pass("once", steps=6)
    assert once.exchange is not None
    assert "arrived" not in sentences(run([once]))
    end = once.exchange.end_ns
    once.exchange.chunks = [
        Chunk(end - (6 - n) * 10 * US, "content", c.text) for n, c in enumerate(once.exchange.chunks)
    ]
    finding = one(run([once]), "almost at once")
    assert finding.status == "warn" and "its decode steps took 50.0 ms" in finding.evidence


def test_a_reply_that_the_server_itself_sends_at_once_is_not_put_down_to_a_proxy() -> None:
    once = request_pass("once", steps=6)
    assert once.exchange is not None
    end = once.exchange.end_ns
    once.exchange.chunks = [
        Chunk(end - (6 - n) * 10 * US, "content", c.text) for n, c in enumerate(once.exchange.chunks)
    ]
    writes = [r for r in once.records if r.name == "write chunk"]
    for number, record in enumerate(writes[1:], 2):  # the first one only opened the reply
        record.start_ns, record.end_ns = end - (8 - number) * 10 * US, end - (8 - number) * 10 * US + US
    outputs = Record("process outputs", 6, T0 + 50 * MS, T0 + 85 * MS, parent_key=f"request:{RID}", request=RID,
                     flow=True, direction="up", envelope=True)  # fmt: skip
    once.records = [*once.records, outputs]
    finding = one(run([once]), "almost at once")
    assert finding.sentence.startswith("The server sent the reply almost at once") and not finding.fix
    assert finding.evidence.endswith("; the longest `process outputs` took 35.0 ms") and finding.layer == 6


def test_bursts_are_named_without_a_cause_that_the_data_cannot_show() -> None:
    once = request_pass("once", steps=6)
    assert once.exchange is not None
    start = once.exchange.start_ns
    at = (10, 10.01, 10.02, 35, 35.01, 35.02, 35.03)
    once.exchange.chunks = [Chunk(start + int(t * MS), "content", "x") for t in at]
    assert one(run([once]), "in bursts").evidence == "5 of 6 chunks came right behind the one before"


def test_a_late_token_is_tied_to_the_step_before_it() -> None:
    once = request_pass("once", steps=6)
    assert once.exchange is not None
    chunks = once.exchange.chunks
    for chunk in chunks[4:]:
        chunk.time_ns += 60 * MS
    once.exchange.end_ns += 60 * MS
    finding = one(run([once]), "came")
    assert finding.sentence.startswith("Token 4 ' I' came 70.0 ms after the one before")
    assert "step" in finding.evidence


def test_a_token_count_that_the_server_does_not_share_is_told() -> None:
    once = request_pass("once")
    encode = next(r for r in once.records if r.name == "encode")
    encode.attributes["tokentrace.tokens.count"] = 7
    assert "The tokenizer made" not in sentences(run([once]))
    encode.attributes["tokentrace.tokens.count"] = 6
    assert one(run([once]), "The tokenizer made").sentence == (
        "The tokenizer made 6 prompt tokens, the server's usage says 7."
    )


def test_compiling_again_in_the_warm_pass_is_a_warning() -> None:
    ids = IdSource(4)
    passes = [
        request_pass("cold", ids=ids, deep=False, compile_ms=30),
        request_pass("warm", ids=ids, deep=False, at=T0 + 10**9, compile_ms=20),
    ]
    assert one(run(passes), "compiled again").evidence == "compile mlp"


def test_compiling_that_one_request_waited_for_is_told_with_where_it_lay() -> None:
    once = request_pass("once", deep=False, compile_ms=90)
    (compiled,) = (r for r in once.records if r.layer == 2)
    compiled.attributes["tokentrace.jit.function"] = "mlp"
    found = run([once])
    told = one(found, "to be compiled")
    assert told.sentence == "The request waited 90.0 ms (59 %) for something to be compiled, inside `forward`."
    assert (told.layer, told.status, told.evidence) == (2, "warn", "mlp")
    assert found.slowest.endswith("1 step of 7 tokens; inside, compiling took 90.0 ms.")
    little = request_pass("once", deep=False, compile_ms=3)
    assert "to be compiled" not in sentences(run([little])) and "compiling" not in run([little]).slowest
    assert "to be compiled" not in sentences(run(three())), "three passes are compared"


def test_clocks_that_do_not_agree_are_told() -> None:
    once = request_pass("once")
    server = next(r for r in once.records if r.name.startswith("POST"))
    server.start_ns -= 5 * MS
    assert one(run([once]), "clocks may not agree").status == "unknown"


def test_the_slowest_part_is_named_with_the_operator_inside() -> None:
    found = run(three(prefill_ms=60))
    assert found.slowest == (
        "Prefill took 40.0 ms, 65 % of the request: 1 step of 7 tokens; inside, aten::mm had 99.9 % of the operators' "
        "time."
    )
    slow = run([request_pass("once", steps=6, decode_ms=20, wait_us=1)])
    assert slow.slowest.startswith("Decoding took 100 ms, 71 % of the request: 5 steps of 20.0 ms (median); inside")
    waiting = run([request_pass("once", wait_us=900_000)])
    assert waiting.slowest == "`queue wait` (layer 6) took 900 ms, 94 % of the request."


def test_a_decode_step_with_anothers_prompt_in_its_batch_is_one_of_the_requests_decode_steps() -> None:
    once = request_pass("once", steps=6)
    steps = [r for r in once.records if r.name == "step"]
    more = {"tokentrace.step.phase": "mixed", "tokentrace.step.batch_size": 2, "tokentrace.step.scheduled_tokens": 38}
    steps[3].attributes.update(more)
    found = run([once])
    assert [s.role for s in found.steps] == ["prefill", *["decode"] * 5] and found.steps[3].phase == "mixed"
    assert found.slowest.startswith("Decoding took 50.0 ms, 54 % of the request: 5 steps of 10.0 ms (median); inside")
    edge = steps[3].end_ns
    for record in once.records:
        record.end_ns += 30 * MS * (record.end_ns >= edge)
        record.start_ns += 30 * MS * (record.start_ns >= edge)
    once.end_ns += 30 * MS
    assert "the longest 40.0 ms (step 103), which also held the prefill of another request (37 tokens)" in (
        run([once]).slowest
    )
    steps[3].attributes["tokentrace.step.siblings"] = 1
    assert "which also held the prefill of its other replies (37 tokens)" in run([once]).slowest


def test_a_prompt_that_shares_its_step_with_others_decoding_is_a_prefill() -> None:
    once = request_pass("once", steps=2, prefill_ms=80)
    (first, second) = (r for r in once.records if r.name == "step")
    first.attributes.update({"tokentrace.step.phase": "mixed", "tokentrace.step.batch_size": 3,
                             "tokentrace.step.scheduled_tokens": 6, "tokentrace.step.request_tokens": 4})  # fmt: skip
    second.attributes.update({"tokentrace.step.phase": "mixed", "tokentrace.step.request_tokens": 3})
    found = run([once])
    assert [s.role for s in found.steps] == ["prefill", "prefill"], "the prompt has seven tokens"
    second.attributes["tokentrace.step.phase"] = "decode"
    assert "1 step of 4 tokens, which also held decoding of other requests (2 tokens)" in run([once]).slowest


def test_a_step_under_way_when_the_request_ends_gives_the_reply_nothing() -> None:
    once = request_pass("once", steps=4, deep=False)
    last = max((r for r in once.records if r.name == "step"), key=lambda r: r.start_ns)
    for record in once.records:
        if record.envelope:
            record.end_ns = min(record.end_ns, last.start_ns + 9 * MS)
    found = run([once])
    assert [s.after_end for s in found.steps] == [False, False, False, True]
    assert found.slowest.startswith("Prefill took 40.0 ms")
    assert not any(s.after_end for s in run([request_pass("once", steps=4)]).steps)


def test_a_reply_of_one_token_that_was_cut_off_is_counted_in_the_singular() -> None:
    once = request_pass("once", steps=1)
    assert once.exchange is not None
    once.exchange.finish_reason = "length"
    assert one(run([once]), "cut off at the token limit").evidence == "1 output token"


def test_from_outside_the_server_the_slowest_is_the_wait_or_the_stream() -> None:
    for decode_ms, told in ((1, "The wait for the reply's first byte took 4"), (90, "The reply's stream took 18")):
        once = request_pass("once", deep=False, decode_ms=decode_ms)
        once.records = [r for r in once.records if r.layer == 8 and r.process == CLIENT]
        assert run([once]).slowest.startswith(told), run([once]).slowest


def test_steps_tokens_and_operators_as_tables() -> None:
    found = run(three())
    assert [(s.index, s.phase, s.wall_ns, s.tokens) for s in found.steps] == [
        (100, "prefill", 40 * MS, 7), (101, "decode", 10 * MS, 1), (102, "decode", 10 * MS, 1),
    ]  # fmt: skip
    assert all((s.forward_ns or 0) > 9 * MS and s.sample_ns == 490 * US for s in found.steps)
    assert [(t.index, t.id, t.text) for t in found.tokens] == [
        (0, IDS[0], "Hello"), (1, IDS[1], "!"), (2, IDS[2], " How"),
    ]  # fmt: skip
    assert [t.itl_ns for t in found.tokens] == [None, 10_030_000, 10_030_000]
    top = found.operators[0]
    assert (top.name, top.calls, found.operators_pass) == ("aten::mm", 18, "deep")  # the leaf is the operator itself
    deep = found.passes["deep"].own
    assert sum(o.own_ns for o in found.operators) == sum(ns for (n, _), ns in deep.items() if n in (4, 3))


def test_tokens_without_ids_are_the_chunks_and_ids_are_not_guessed() -> None:
    once = request_pass("once")
    once.records = [r for r in once.records if r.name != "decode" or r.attributes["tokentrace.token.index"] != 1]
    found = run([once])
    assert [(t.id, t.text) for t in found.tokens] == [(None, "Hello"), (None, "!"), (None, " How")]


def test_an_end_token_without_text_has_an_id_and_no_arrival() -> None:
    once = request_pass("once", steps=7, reply=("a", "b", "c", "d", "e", "f", ""))
    assert once.exchange is not None
    once.exchange.chunks = once.exchange.chunks[:6]
    last = run([once]).tokens[-1]
    assert (last.id, last.text, last.arrival_ns, last.itl_ns) == (2, "", None, None)


def test_forms_have_the_values_of_this_run() -> None:
    found = run(three())
    assert found.forms[7, "down"] == ('"Hi"', "7 ids [1, 9690, …]")
    assert found.forms[7, "up"] == ("19556", '"Hello"')
    assert found.forms[6, "up"] == ("sampled token", f"id {IDS[0]}")
    assert found.forms[5, "up"] == ("logits[1,49152]", "19556")
    assert found.forms[3, "down"] == ("operator", "12 leaf operators")
    assert found.forms[2, "down"] == ("graph", "compiled code")  # nobody said more, so the words of layers.yaml


def test_a_kernel_is_counted_as_a_kernel() -> None:
    once = request_pass("once")
    step = next(r for r in once.records if r.name == "step")
    kernel = Record("kernel gemm", 3, step.start_ns + MS, step.start_ns + 2 * MS, parent_key=step.key, request=RID,
                    flow=True, direction="down")  # fmt: skip
    once.records = [*once.records, kernel]
    found = run([once])
    assert found.forms[3, "down"][1] == "1 kernel, 12 leaf operators"


def test_numbers_read_well() -> None:
    assert [duration(n) for n in (0, 999, 1_000, 99_949, 999_499, 1_500_000, 59_900_000_000, 90_000_000_000)] == [
        "0 ns", "999 ns", "1.00 µs", "99.9 µs", "999 µs", "1.50 ms", "59.9 s", "1.50 min",
    ]  # fmt: skip
    assert duration(-1_500_000) == "-1.50 ms"
    assert [share(p, 100_000) for p in (0, 1, 3_210, 87_400, 99_960, 99_999, 100_000)] == [
        "0 %", "<0.1 %", "3.2 %", "87 %", "99.9 %", "99.9 %", "100 %",
    ]  # fmt: skip
