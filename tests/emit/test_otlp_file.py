"""A saved trace is the trace: read back equal, readable by others, and the beginning survives a damaged end."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import HealthCheck, given, settings
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from support.traces import T0, run_trace, traces

from tokentrace.emit import otlp_file
from tokentrace.errors import UsageError
from tokentrace.model import IdSource, Span, Trace


def normal(value: Any) -> Any:
    """What a value is allowed to become: tuples lists, numbers beyond 64 bits text, lone surrogates escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    if isinstance(value, dict):
        return {normal(key): normal(item) for key, item in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return "a NaN"
    if type(value) is int and not -(2**63) <= value < 2**63:
        return str(value)
    return (type(value).__name__, value)


def facts(span: Span) -> dict[str, Any]:
    found = {name: getattr(span, name) for name in span.__slots__}
    found["events"] = [(e.time_ns, normal(e.name), normal(e.attributes)) for e in span.events]
    found["links"] = [(link.span_id, normal(link.attributes)) for link in span.links]
    found["attributes"] = normal(span.attributes)
    found["name"], found["status_message"] = normal(span.name), normal(span.status_message)
    return found


def assert_same(left: Trace, right: Trace) -> None:
    assert left.trace_id == right.trace_id
    assert [facts(span) for span in left.spans] == [facts(span) for span in right.spans]
    assert left.meta == right.meta
    for key in {*left.processes, *right.processes}:
        ours = dict(left.processes[key].attributes)
        theirs = dict(right.processes[key].attributes)
        if not {"host.id", "host.name"} & ours.keys():
            # The host was filled in, and stays: a file must say where it comes from.
            theirs.pop("host.id", None)
            theirs.pop("host.name", None)
        assert normal(ours) == normal(theirs)


@given(traces())
@settings(max_examples=70, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_trace_reads_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    path = tmp_path_factory.mktemp("any") / "t.jsonl"
    otlp_file.write(trace, path, {"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "x=1,team=a"})
    assert_same(trace, otlp_file.read(path))


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_run_reads_back_as_it_was(tmp_path: Path, name: str) -> None:
    trace = run_trace(2500)
    otlp_file.write(trace, tmp_path / name)
    assert_same(trace, otlp_file.read(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        otlp_file.write(run_trace(), tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_each_line_is_a_traces_data_message(tmp_path: Path) -> None:
    """protobuf's own JSON parser takes it. It wants base64 where OTLP wants hex ids: they are changed first."""
    trace = run_trace(2500)
    otlp_file.write(trace, tmp_path / "t.jsonl", {})
    lines = (tmp_path / "t.jsonl").read_bytes().splitlines()
    assert len(lines) == 3
    count = 0
    for line in lines:
        data = json.loads(line)
        del data["tokentrace"]
        for resource in data["resourceSpans"]:
            for span in resource["scopeSpans"][0]["spans"]:
                count += 1
                assert len(span["traceId"]) == 32
                assert len(span["spanId"]) == 16
                assert isinstance(span["startTimeUnixNano"], str)
                assert isinstance(span["kind"], int)
                for holder in (span, *span.get("links", ())):
                    for key in ("traceId", "spanId", "parentSpanId"):
                        holder.pop(key, None)
        parsed = ParseDict(data, TracesData())
        assert parsed.resource_spans[0].scope_spans[0].spans
    assert count == len(trace)


def strip(path: Path) -> None:
    """The file as a collector passes it on: without the key that only tokentrace knows."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        del line["tokentrace"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_file_that_went_through_a_collector_keeps_layers_and_tree(tmp_path: Path) -> None:
    trace = run_trace(200)
    otlp_file.write(trace, tmp_path / "t.jsonl", {})
    strip(tmp_path / "t.jsonl")
    found = otlp_file.read(tmp_path / "t.jsonl")
    parent = {s.span_id: trace.span_id[s.parent] if s.parent >= 0 else 0 for s in trace.spans}
    assert {s.span_id: found.span_id[s.parent] if s.parent >= 0 else 0 for s in found.spans} == parent
    assert {s.span_id: (s.layer, s.thread, s.envelope, s.process) for s in found.spans} == {
        s.span_id: (s.layer, s.thread, s.envelope, s.process) for s in trace.spans
    }


def test_spans_of_others_without_a_common_parent_get_a_root(tmp_path: Path) -> None:
    span = {"traceId": "0" * 31 + "1", "name": "chat x", "kind": 3, "startTimeUnixNano": "5", "endTimeUnixNano": 9}
    spans = [
        span | {"spanId": "00000000000000a1", "attributes": [{"key": "n", "value": {"intValue": 7}}]},
        span | {"spanId": "00000000000000a2", "parentSpanId": "00000000000000ff", "endTimeUnixNano": "3"},
        span | {"spanId": "00000000000000a3", "parentSpanId": "00000000000000A1"},
    ]
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    found = list(otlp_file.read(path).spans)
    assert [(s.span_id, s.parent, s.layer) for s in found[1:]] == [(0xA1, 0, 8), (0xA3, 1, 8), (0xA2, 0, 8)]
    assert found[0].envelope
    assert found[1].attributes == {"n": 7}
    assert found[3].attributes["tokentrace.clamped_ns"] == 2
    assert "parent" in found[3].attributes["tokentrace.note"]


@pytest.mark.parametrize("cut", [1, 40, 5000])
def test_a_cut_file_is_the_beginning_of_the_trace(tmp_path: Path, cut: int) -> None:
    trace = run_trace(2500)
    path = tmp_path / "t.jsonl"
    otlp_file.write(trace, path)
    path.write_bytes(path.read_bytes()[:-cut] if cut > 1 else path.read_bytes()[:-1])
    found = otlp_file.read(path)
    if cut == 1:  # only the newline
        assert "lost" not in found.meta
        assert len(found) == len(trace)
        return
    assert found.meta["lost"] == len(trace) - 2000
    assert "line 3" in found.meta["lost_reason"]
    assert [facts(s) for s in found.spans] == [facts(trace.span(row)) for row in range(2000)]


def test_a_cut_compressed_file_is_read_up_to_the_cut(tmp_path: Path) -> None:
    trace = run_trace(6000)
    path = tmp_path / "t.jsonl.gz"
    otlp_file.write(trace, path)
    path.write_bytes(path.read_bytes()[:-200])
    found = otlp_file.read(path)
    assert 0 < found.meta["lost"] == len(trace) - len(found)
    assert "cut or damaged" in found.meta["lost_reason"]


def test_a_damaged_line_in_the_middle_costs_its_own_spans_only(tmp_path: Path) -> None:
    trace = run_trace(2500)
    path = tmp_path / "t.jsonl"
    otlp_file.write(trace, path)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], lines[1][:100], lines[2]]))
    found = otlp_file.read(path)
    assert found.meta["lost"] == 1000
    assert len(found) == len(trace) - 1000
    assert all(span.parent >= 0 for span in list(found.spans)[1:])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no readable span"),
        (b"not json\n", "line 1: not JSON"),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}', "line 1: not OTLP"),
        (b"[1, 2]", "line 1: not OTLP"),
        (b"\x1f\x8b\x08\x00broken", "cut or damaged"),
    ],
)
def test_what_holds_no_trace_is_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        otlp_file.read(path)
    assert caught.value.fix


def test_two_traces_in_one_file_are_refused(tmp_path: Path) -> None:
    one, two = run_trace(20, seed=1), run_trace(20, seed=2)
    path = tmp_path / "two.jsonl"
    path.write_bytes(b"".join([*otlp_file.lines(one, {}), *otlp_file.lines(two, {})]))
    with pytest.raises(UsageError, match="2 traces"):
        otlp_file.read(path)


def test_spans_in_a_loop_are_counted_as_lost(tmp_path: Path) -> None:
    base = {"traceId": "0" * 31 + "1", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    spans = [
        base | {"spanId": "000000000000000a"},
        base | {"spanId": "000000000000000b", "parentSpanId": "000000000000000c"},
        base | {"spanId": "000000000000000c", "parentSpanId": "000000000000000b"},
    ]
    path = tmp_path / "loop.jsonl"
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    found = otlp_file.read(path)
    assert (len(found), found.meta["lost"]) == (1, 2)


def test_a_missing_folder_and_a_missing_file_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder") as caught:
        otlp_file.write(run_trace(20), tmp_path / "none" / "t.jsonl")
    assert "mkdir" in caught.value.fix
    with pytest.raises(UsageError, match="No such file"):
        otlp_file.read(tmp_path / "t.jsonl")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    otlp_file.write(run_trace(20), path)
    before = path.read_bytes()
    broken = run_trace(20, seed=2)
    broken.span_id[5] = "no number"  # type: ignore[call-overload]
    with pytest.raises(ValueError):
        otlp_file.write(broken, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_gzip_is_recognised_by_content(tmp_path: Path) -> None:
    trace = Trace(ids=IdSource(1))
    trace.add("run", 0, T0, T0 + 1, -1)
    path = tmp_path / "t.jsonl"
    path.write_bytes(gzip.compress(b"".join(otlp_file.lines(trace, {}))))
    assert len(otlp_file.read(path)) == 1
