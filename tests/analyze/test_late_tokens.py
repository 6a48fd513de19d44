"""A late token is put down to the side that was late, where the server was seen to write."""

from __future__ import annotations

from typing import Any

import pytest
from findings_support import one, run, sentences
from support.records import MS, RID, US, request_pass

from tokentrace.analyze import analyze
from tokentrace.analyze._written import written
from tokentrace.exchange import Chunk
from tokentrace.model import Event, IdSource, Record
from tokentrace.stitch import PassRecords, stitch

REPLY = tuple(f" w{number}" for number in range(16))


def streamed(**more: Any) -> PassRecords:
    return request_pass("once", steps=16, reply=REPLY, **more)


def writes(once: PassRecords) -> list[Any]:
    return [r for r in once.records if r.name == "write chunk"]


def read_late(once: PassRecords, first: int, by_ns: int) -> None:
    """The client reads everything from this piece on in one go."""
    exchange = once.exchange
    assert exchange is not None
    at = exchange.chunks[-1].time_ns + by_ns
    for number, chunk in enumerate(exchange.chunks[first:]):
        chunk.time_ns = at + number * 5 * US
    moved = exchange.chunks[-1].time_ns + 300 * US - exchange.end_ns
    exchange.end_ns += moved
    for record in once.records:
        if record.name in ("stream", "chat smollm2"):
            record.end_ns += moved
    once.end_ns += moved


def with_sizes(once: PassRecords) -> None:
    """What the client read and the server wrote, with the sizes of the pieces: the role with no text, each token, and a
    finish in the last one."""
    exchange = once.exchange
    assert exchange is not None
    chat = next(r for r in once.records if r.name == "chat smollm2")
    role = Record("write chunk", 8, writes(once)[0].start_ns - 9 * US, writes(once)[0].start_ns - 8 * US, flow=True,
                  request=RID, parent_key=f"request-http:{RID}", attributes={"tokentrace.bytes": 99})  # fmt: skip
    chat.events.append(Event("tokentrace.role", exchange.chunks[0].time_ns, {"tokentrace.bytes": 99}))
    for number, (chunk, write) in enumerate(zip(exchange.chunks, writes(once), strict=True)):
        chunk.size_bytes = write.attributes["tokentrace.bytes"] = 200 + number
        chat.events.append(Event("tokentrace.token", chunk.time_ns, {
            "tokentrace.token.text": chunk.text, "tokentrace.bytes": chunk.size_bytes}))  # fmt: skip
    chat.events.append(Event("tokentrace.finish", exchange.chunks[-1].time_ns, {"tokentrace.bytes": 0}))
    once.records.append(role)


@pytest.mark.parametrize("sizes", [False, True], ids=["no sizes", "sizes"])
def test_pieces_that_the_server_wrote_in_time_are_late_on_the_way(sizes: bool) -> None:
    once = streamed()
    read_late(once, 7, 130 * MS)
    if sizes:
        with_sizes(once)
    found = run([once])
    finding = one(found, "Token 7")
    assert (finding.layer, finding.status) == (8, "warn"), sentences(found)
    assert "the server had written it 2" in finding.sentence and "10.0 ms apart (median)" in finding.evidence
    assert "median is 0 ns" not in sentences(found) and "step 1" not in finding.evidence
    assert "in bursts" not in sentences(found), "the same said twice"


def reply_later(once: PassRecords) -> None:
    """The tenth piece and all behind it arrive 60 ms later, and so does the end."""
    assert once.exchange is not None
    for chunk in once.exchange.chunks[9:]:
        chunk.time_ns += 60 * MS
    once.exchange.end_ns += 60 * MS
    once.end_ns += 60 * MS


def test_a_token_that_the_server_wrote_late_is_tied_to_the_step_that_was_slow() -> None:
    once = streamed()
    steps = [r for r in once.records if r.name == "step"]
    edge = steps[9].end_ns
    for record in once.records:  # this step takes longer, and everything behind it comes later
        record.end_ns += 60 * MS * (record.end_ns >= edge)
        record.start_ns += 60 * MS * (record.start_ns >= edge)
    reply_later(once)
    finding = one(run([once]), "Token 9")
    assert finding.layer == 6 and finding.sentence.endswith("came 70.0 ms after the one before, the median is 10.0 ms.")
    assert finding.evidence == "step 109 (decode) took 70.0 ms"


def test_a_request_that_no_step_served_for_a_while_is_said_to_have_waited() -> None:
    once = streamed()
    edge = next(r for r in once.records if r.attributes.get("tokentrace.step.index") == 109).start_ns
    for record in once.records:
        record.end_ns += 60 * MS * (record.end_ns > edge)
        record.start_ns += 60 * MS * (record.start_ns >= edge)
    reply_later(once)
    finding = one(run([once]), "Token 9")
    assert finding.layer == 6 and finding.evidence == "no step served it for 60.0 ms before step 109"


def test_pieces_without_text_between_two_tokens_are_no_delay_of_the_client() -> None:
    """Bytes of an unfinished character are written with no text: the token after them came when it was whole."""
    once = streamed(decode_ms=30)
    assert once.exchange is not None
    once.exchange.chunks = [c for n, c in enumerate(once.exchange.chunks) if n not in (8, 9, 10, 11)]
    finding = one(run([once]), "Chunk 8")  # which tokens are in it is not known
    assert finding.layer == 6, finding.sentence


def test_whose_a_late_token_is_cannot_be_told_from_outside() -> None:
    once = streamed()
    once.records = [r for r in once.records if r.layer == 8 and r.process != "4711"]
    assert once.exchange is not None
    for chunk in once.exchange.chunks[9:]:
        chunk.time_ns += 60 * MS
    once.exchange.end_ns += 60 * MS
    finding = one(run([once]), "Chunk 9")
    assert (finding.layer, finding.status) == (8, "unknown") and "not seen" in finding.evidence


def test_bursts_are_the_servers_where_it_wrote_them_so() -> None:
    once = streamed()
    assert once.exchange is not None
    start = once.exchange.start_ns
    at = [40 + 35 * (n // 4) + 0.02 * (n % 4) for n in range(16)]
    for time, write in zip(at, writes(once), strict=True):
        write.start_ns, write.end_ns = start + int(time * MS), start + int(time * MS) + 5 * US
    once.exchange.chunks = [Chunk(start + int(t * MS) + 10 * US, "content", "x") for t in at]
    finding = one(run([once]), "in bursts")
    assert finding.layer == 6 and finding.sentence == "The server wrote the tokens in bursts."


def test_bursts_are_of_the_way_where_the_server_wrote_one_by_one() -> None:
    once = streamed(decode_ms=3)  # no single token is worth a sentence of its own
    assert once.exchange is not None
    for group in range(0, 16, 4):  # read four at a time, when the last of them has come
        last = once.exchange.chunks[group + 3].time_ns
        for number, chunk in enumerate(once.exchange.chunks[group : group + 4]):
            chunk.time_ns = last + number * US
    found = run([once])
    finding = one(found, "one by one")
    assert (finding.layer, finding.status) == (8, "warn"), sentences(found)


def test_each_piece_is_known_by_its_size_where_one_without_text_came_between() -> None:
    """Everything was read at the end, and the server wrote an empty piece after the sixth token."""
    once = streamed()
    assert once.exchange is not None
    once.exchange.chunks[6].text = ""
    read_late(once, 0, MS)
    with_sizes(once)
    trace = stitch([once], ids=IdSource(1))
    view = analyze(trace).main.view
    expected = [r.start_ns - view.start_ns for n, r in enumerate(writes(once)[:-1]) if n != 6]
    sent = written(trace, view)
    assert sent is not None and [start for start, _ in sent] == expected


def test_time_behind_the_servers_last_write_is_not_the_engines() -> None:
    once = streamed(wait_us=1)
    assert "last write" not in sentences(run([once]))
    read_late(once, 7, 130 * MS)
    found = run([once])
    finding = one(found, "behind the server's last write")
    assert (finding.layer, finding.status) == (8, "warn") and finding.sentence.startswith("130 ms")
    assert "belongs to no layer that was seen" not in sentences(found)
