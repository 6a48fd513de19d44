"""What is found in one request: only what the data shows, with what it rests on."""

from __future__ import annotations

from findings_support import one, run, sentences, three
from support.records import MS, RID, T0, US, request_pass

from tokentrace.analyze import analyze
from tokentrace.errors import EndpointError
from tokentrace.exchange import Chunk
from tokentrace.model import IdSource, Record
from tokentrace.probe import LEFT_OUT, Finding, LayerState
from tokentrace.stitch import stitch


def test_a_failed_request_is_the_first_finding() -> None:
    error = EndpointError("the server refused the key", fix="check OPENAI_API_KEY", layer=8)
    found = run([request_pass("once", error=error)])
    assert found.findings[0] == Finding(
        8, "The request failed: the server refused the key", "3 chunks of the reply had arrived",
        "check OPENAI_API_KEY", "fail",
    )  # fmt: skip


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


def test_a_token_count_that_the_server_does_not_share_is_told() -> None:
    once = request_pass("once")
    encode = next(r for r in once.records if r.name == "encode")
    encode.attributes["tokentrace.tokens.count"] = 7
    assert "The tokenizer made" not in sentences(run([once]))
    encode.attributes["tokentrace.tokens.count"] = 6
    assert one(run([once]), "The tokenizer made").sentence == (
        "The tokenizer made 6 prompt tokens, the server's usage says 7."
    )


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
    for record in once.records:
        record.process = "1"
    told = one(run([once]), "were cut")
    assert told.status == "unknown" and "clocks" not in told.sentence, "one process has one clock"
