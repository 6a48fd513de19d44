"""The slowest part in one sentence, and steps, tokens and operators as tables."""

from __future__ import annotations

from findings_support import one, run, three
from support.records import CLIENT, IDS, MS, RID, US, request_pass

from tokentrace.analyze import analyze
from tokentrace.model import IdSource, Record
from tokentrace.stitch import stitch
from tokentrace.wording import duration, share


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
    for decode_ms, told in ((1, "The wait for the first token took 4"), (90, "The reply's stream took 18")):
        once = request_pass("once", deep=False, decode_ms=decode_ms)
        once.records = [r for r in once.records if r.layer == 8 and r.process == CLIENT]
        assert run([once]).slowest.startswith(told), run([once]).slowest


def test_a_gap_over_the_wait_and_the_stream_is_in_both() -> None:
    once = request_pass("once", deep=False, prefill_ms=40, decode_ms=30)
    once.records = [r for r in once.records if r.layer == 8 and r.process == CLIENT]
    found = run([once])
    stream = next(r for r in once.records if r.name == "stream")
    assert found.gaps[0].length_ns > stream.end_ns - stream.start_ns and found.gaps[0].around == "wait and stream"
    assert run([request_pass("once", deep=False, wait_us=1)]).gaps[0].around != "wait and stream"


def test_a_live_run_without_its_request_is_no_recording() -> None:
    once = request_pass("once", steps=6, decode_ms=20)
    once.records = [r for r in once.records if r.layer in (7, 5)]
    for mode, whole in (("local", "the pass"), ("import", "the recording")):
        assert f"% of {whole}" in analyze(stitch([once], ids=IdSource(1), meta={"mode": mode})).slowest


def test_a_reply_in_one_piece_is_waited_for_as_a_whole() -> None:
    once = request_pass("once", deep=False, steps=1, prefill_ms=90)
    once.records = [r for r in once.records if r.layer == 8 and r.process == CLIENT]
    assert once.exchange is not None
    once.exchange.streamed = False
    assert run([once]).slowest.startswith("The wait for the reply took 9")


def test_the_operator_inside_decoding_is_of_its_steps_alone() -> None:
    """A prefill that another operator fills says nothing of where decoding spends its time."""
    once = request_pass("once", steps=6, prefill_ms=45, decode_ms=10)
    edge = next(r for r in once.records if r.name == "step").end_ns
    for record in once.records:
        if record.name == "leaf aten::mm" and record.start_ns < edge:
            record.name = "leaf aten::addmm"
    found = run([once])
    assert found.operators[0].name == "aten::mm" and found.operators[1].name == "aten::addmm"
    assert found.slowest.startswith("Decoding took 50.0 ms")
    mine = [r for r in once.records if r.layer in (4, 3) and r.start_ns >= edge]
    leaves = sum(r.end_ns - r.start_ns for r in mine if r.layer == 3)
    assert f"inside, aten::mm had {share(leaves, sum(r.end_ns - r.start_ns for r in mine if r.layer == 4))} of" in (
        found.slowest
    )


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
