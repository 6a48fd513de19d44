"""The stream parser follows the HTML standard, however the bytes are cut, and reads every dialect of chunks."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokentrace.client.chunks import read_event, read_object
from tokentrace.client.sse import Comment, Event, SseParser, SseTooLong


def parse(*reads: bytes) -> list[Event | Comment]:
    parser = SseParser()
    return [item for data in reads for item in parser.feed(data)]


def data_of(*reads: bytes) -> list[str]:
    return [item.data for item in parse(*reads) if isinstance(item, Event)]


def test_examples_of_the_standard() -> None:
    # https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6
    assert data_of(b"data: YHOO\ndata: +2\ndata: 10\n\n") == ["YHOO\n+2\n10"]
    first = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"
    assert data_of(first) == ["first event", "second event", " third event"]
    assert data_of(b"data\n\ndata\ndata\n\ndata:") == ["", "\n"]
    assert data_of(b"data:test\n\ndata: test\n\n") == ["test", "test"]


def test_ids_last_until_changed_and_events_do_not() -> None:
    parser = SseParser()
    events = parser.feed(b"id: 7\nevent: a\ndata: x\n\ndata: y\n\nid\ndata: z\n\nretry: 30\nid: 1\x002\n\n")
    assert [(e.id, e.type) for e in events if isinstance(e, Event)] == [("7", "a"), ("7", ""), ("", "")]
    assert parser.retry_ms == 30
    parser.feed(b"retry: 3x\n\n")
    assert parser.retry_ms == 30


def test_blocks_without_data_are_no_events() -> None:
    assert parse(b"id: 7\n\nretry: 3000\n\nevent: ping\n\n\n\n") == []


def test_comments_are_keep_alives() -> None:
    items = parse(b": ping\n\n:\n:no space\ndata: a\n: inside\ndata: b\n\n")
    assert [i.text for i in items if isinstance(i, Comment)] == ["ping", "", "no space", "inside"]
    assert [i.data for i in items if isinstance(i, Event)] == ["a\nb"]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_line_ends(end: bytes) -> None:
    assert data_of(end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""])) == ["a\nb", "c"]


def test_an_event_is_there_with_its_last_byte() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r\n\r") != []  # the LF that may follow is not waited for
    assert parser.feed(b"\ndata: b\n") == []
    assert [e.data for e in parser.feed(b"\n") if isinstance(e, Event)] == ["b"]


def test_byte_order_mark_only_at_the_start() -> None:
    assert data_of(b"\xef\xbb", b"\xbfdata: a\n\n") == ["a"]
    assert data_of(b"data: a\n\n\xef\xbb\xbfdata: b\n\n") == ["a"]


def test_character_split_between_reads() -> None:
    raw = "data: é😊\n\n".encode()
    assert data_of(*(raw[i : i + 1] for i in range(len(raw)))) == ["é😊"]


def test_what_was_cut_off_is_not_an_event() -> None:
    parser = SseParser()
    assert parser.feed(b'data: a\n\ndata: {"b') != []
    rest = parser.close()
    assert rest is not None and rest.data == '{"b'
    assert parser.close() is None


def test_memory_is_bounded() -> None:
    parser = SseParser(max_event_bytes=1000)
    with pytest.raises(SseTooLong):
        for _ in range(100):
            parser.feed(b"x" * 50)
    parser = SseParser(max_event_bytes=1000)
    with pytest.raises(SseTooLong):
        for _ in range(100):
            parser.feed(b"data: " + b"x" * 50 + b"\n")
    parser = SseParser(max_event_bytes=1000)
    for _ in range(100):  # a long stream of short events is no long event
        parser.feed(b": keep-alive\n\ndata: x\n\n")


LINES = st.sampled_from([b"data: a", b"data:b", b"data", b": c", b":", b"id: 7", b"event: e", b"retry: 5", b"", b"",
                         "data: é😊".encode(), b"\xff\xfe", b"unknown: x", b"data: [DONE]", b" data: x"])  # fmt: skip
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r", b"\r\n"]))).map(
    lambda pairs: b"".join(line + end for line, end in pairs)
)


@given(st.binary(max_size=300) | STREAMS, st.lists(st.integers(1, 20), min_size=1, max_size=50))
@example(b"\xef\xbb\xbfdata: a\r\n\r\n", [1])
@example(b"data: a\r\rdata: b\r\n\r\n", [2, 1])
def test_how_the_bytes_are_cut_changes_nothing(stream: bytes, sizes: list[int]) -> None:
    whole, cut = SseParser(), SseParser()
    expected: list[Event | Comment | None] = [*whole.feed(stream), whole.close()]
    found: list[Event | Comment | None] = []
    at = turn = 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        found += cut.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert [*found, cut.close()] == expected
    assert (cut.last_event_id, cut.retry_ms) == (whole.last_event_id, whole.retry_ms)


def line_by_line(stream: bytes) -> list[tuple[str, str]]:
    """The standard's own steps, on the whole text at once: an independent reading to compare with."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    found, data, kind = [], "", ""
    for line in text.split("\n")[:-1]:
        if not line:
            if data:
                found.append((kind, data[:-1]))
            data = kind = ""
            continue
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "data":
            data += value + "\n"
        elif name == "event":
            kind = value
    return found


@given(STREAMS)
def test_agrees_with_the_standard_s_steps(stream: bytes) -> None:
    assert [(e.type, e.data) for e in parse(stream) if isinstance(e, Event)] == line_by_line(stream)


def kinds(value: object) -> list[tuple[str, str]]:
    return [(p.kind, p.text) for p in read_event(Event(json.dumps(value))).pieces]


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def test_kinds_of_chunks() -> None:
    assert kinds(delta(role="assistant", content="")) == [("role", "assistant")]
    assert kinds(delta(content="Hi")) == [("content", "Hi")]
    assert kinds(delta(content=None, reasoning_content="hm")) == [("reasoning", "hm")]
    assert kinds(delta(content="", reasoning="hm")) == [("reasoning", "hm")]
    assert kinds(delta(reasoning_details=[{"text": "a"}, {"text": "b"}])) == [("reasoning", "ab")]
    assert kinds(delta(content=[{"type": "text", "text": "Hi"}])) == [("content", "Hi")]
    assert kinds(delta(content=[{"type": "thinking", "thinking": [{"text": "hm"}]}])) == [("reasoning", "hm")]
    assert kinds(delta(refusal="No.")) == [("content", "No.")]
    assert kinds(delta(tool_calls=[{"function": {"name": "f", "arguments": "{"}}])) == [("tool", "f{")]
    assert kinds(delta(function_call={"arguments": "}"})) == [("tool", "}")]
    assert kinds({"choices": [{"text": "Hi", "finish_reason": "stop"}]}) == [("content", "Hi"), ("finish", "stop")]
    assert kinds({"choices": [], "usage": {"prompt_tokens": 1}}) == [("usage", "")]
    assert kinds({"choices": [], "x_groq": {"usage": {"prompt_tokens": 1}}}) == [("usage", "")]
    assert kinds({"choices": []}) == kinds({"choices": None}) == kinds({}) == [("other", "")]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"error": {"message": "no", "code": 400}}, "no"),
        ({"error": "no"}, "no"),
        ({"error": "overloaded", "error_type": "x", "message": "no"}, "no"),
        ({"object": "error", "message": "no", "code": 400}, "no"),
        ({"detail": "no"}, "no"),
        ({"detail": [{"loc": ["body"], "msg": "no"}]}, "body: no"),
        ({"message": "no"}, "no"),
    ],
)
def test_shapes_of_errors(value: dict[str, object], said: str) -> None:
    reading = read_event(Event(json.dumps(value)))
    assert reading.error is not None
    assert ("error", said) in [(p.kind, p.text) for p in reading.pieces]


def test_no_error_where_there_is_none() -> None:
    assert read_object({"error": None, "choices": []}).error is None
    assert read_object({"error": {}, "choices": []}).error is None
    assert read_object({"choices": [], "message": "x"}).error is None


def test_an_error_event_need_not_be_json() -> None:
    assert read_event(Event("it broke", "error")).error == {"message": "it broke"}
    assert read_event(Event('{"reason": 5}', "error")).error == {"reason": 5}


def test_json_as_python_servers_write_it() -> None:
    reading = read_event(Event('{"choices":[{"delta":{"content":"a\\ud83d"},"logprobs":NaN}]}'))
    assert not reading.malformed
    assert reading.pieces[0].text == "a?"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["choices", "delta", "content", "usage", "error", "index", "finish_reason",
                                         "message", "tool_calls", "function", "reasoning", "type", "x_groq", "text"]),
                        inner, max_size=5)))  # fmt: skip
def test_no_json_makes_it_fail(value: object) -> None:
    assert read_event(Event(json.dumps(value))).pieces


@given(st.text())
def test_no_text_makes_it_fail(text: str) -> None:
    assert read_event(Event(text)).pieces
