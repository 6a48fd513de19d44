"""A file of spans is read into a trace, and takes little more memory than that trace, in whatever order lines come."""

from __future__ import annotations

import gc
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

from support.traces import run_trace

from tokentrace.emit import otlp_file
from tokentrace.emit._otlp_read import Reader
from tokentrace.model import Trace


def read(lines: list[bytes]) -> Trace:
    reader = Reader("here")
    for number, line in enumerate(lines, 1):
        reader.line(number, line)
    return reader.trace()


def test_reading_takes_little_more_memory_than_the_trace_that_is_read() -> None:
    lines = list(otlp_file.lines(run_trace(4000), {}))
    gc.collect()
    tracemalloc.start()
    try:
        reader = Reader("here")
        for number, line in enumerate(lines, 1):
            reader.line(number, line)
        tracemalloc.reset_peak()
        trace = reader.trace()
        most = tracemalloc.get_traced_memory()[1]
        del reader
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(trace) >= 4000
    assert most < 1.5 * kept


def test_equal_texts_of_many_spans_are_kept_once() -> None:
    trace = read(list(otlp_file.lines(run_trace(2500), {})))
    texts = [value for values in trace.values for value in values if isinstance(value, str)]
    texts += trace.direction
    assert len({id(text) for text in texts}) == len(set(texts))


def test_lines_in_another_order_give_the_same_trace() -> None:
    trace = run_trace(4000)
    lines = list(otlp_file.lines(trace, {}))
    expected = list(read(lines).spans)
    assert [span.span_id for span in expected] == trace.span_id
    random.Random(1).shuffle(lines)
    assert list(read(lines).spans) == expected


def test_a_line_with_a_row_number_that_is_none_changes_nothing_else() -> None:
    trace = run_trace(2500)
    lines = list(otlp_file.lines(trace, {}))
    data = json.loads(lines[1])
    data["tokentrace"]["resources"][0]["rows"][-1] = 2**63
    found = read([json.dumps(data).encode(), lines[1], *reversed(lines[2:]), lines[0]])
    assert list(found.spans) == list(read(lines).spans)


def rows_of(line: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    data = json.loads(line)
    return data, [span for message in data["resourceSpans"] for span in message["scopeSpans"][0]["spans"]]


def test_a_span_that_comes_again_is_the_later_one(tmp_path: Path) -> None:
    """A collector sends again what it got no answer for, and may know more by then."""
    trace = run_trace(60)
    line = next(iter(otlp_file.lines(trace, {})))
    data, spans = rows_of(line)
    chat = next(span for span in spans if span["name"] == "chat smollm2")
    chat["name"], chat["attributes"], chat["events"], chat["kind"] = "chat again", [], [], 1
    del chat["status"]
    found = read([line, json.dumps(data).encode()])
    assert len(found) == len(trace)
    again = next(span for span in found.spans if span.name == "chat again")
    assert (again.attributes, again.events, again.kind, again.status) == ({}, [], 1, 0)
    others = [span for span in found.spans if span.row != again.row]
    assert others == [span for span in read([line]).spans if span.row != again.row]
