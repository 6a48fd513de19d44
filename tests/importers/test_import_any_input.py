"""Whatever the bytes: refused in one sentence, or what is readable with the lost counted."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
import recordings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recordings import TINY, written

from tokentrace.errors import UsageError
from tokentrace.importers import _pieces, load
from tokentrace.importers.columns import Lost

FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


@FIXTURE
@given(content=st.binary(max_size=300))
def test_random_bytes(tmp_path: Path, content: bytes) -> None:
    for prefix in (b"", b"[", b'{"traceEvents":[', b"\x1f\x8b\x08", b"SQLite format 3\0", b'{"rocprofiler-sdk-tool":'):
        path = written(tmp_path / "x.json", prefix + content)
        try:
            recordings.check_tree(load(path).trace)
        except UsageError as error:
            assert error.fix


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


FIELD = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])


EVENT = st.dictionaries(FIELD, JSON, max_size=8).map(
    lambda event: {"ph": "X", "cat": "kernel", "ts": 5, "dur": 2, **event}
)


ARGS = st.dictionaries(
    st.sampled_from(["correlation", "External id", "device", "stream", "bytes", "grid", "Input Dims"]), JSON, max_size=5
)


@FIXTURE
@given(events=st.lists(st.builds(lambda e, a: {**e, "args": a}, EVENT, ARGS) | EVENT | JSON, min_size=1, max_size=6))
def test_any_json_in_any_field(tmp_path: Path, events: list[Any]) -> None:
    path = written(tmp_path / "x.json", json.dumps({"traceEvents": events}))
    try:
        found = load(path)
    except UsageError as error:
        assert error.fix
    else:
        recordings.check_tree(found.trace)
        json.dumps(found.figures), json.dumps(found.steps)


@pytest.mark.parametrize("name", ["mi250_minitoy_train_small.json.gz", "mi300_vllm_decode_full_graph_step.json.gz"])
def test_flipped_bytes_of_a_recording(tmp_path: Path, name: str) -> None:
    plain = gzip.decompress((recordings.SMALL / name).read_bytes())
    whole = load(recordings.SMALL / name)
    generator = random.Random(20)
    for _ in range(60):
        damaged = bytearray(plain)
        for _ in range(generator.choice((1, 1, 3, 30))):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            found = load(written(tmp_path / "x.json", bytes(damaged)))
        except UsageError as error:
            assert error.fix
            continue
        assert found.figures["kernels"] <= whole.figures["kernels"] + 1
        assert found.source["events"] + found.lost["events"] >= whole.source["events"] // 2
        recordings.check_tree(found.trace)


def test_flipped_bytes_of_packed_and_sqlite_recordings(tmp_path: Path) -> None:
    sources = [TINY.read_bytes()]
    if recordings.LARGE is not None:
        sources.append(gzip.decompress((recordings.LARGE / "nsys-ai/mock.sqlite.gz").read_bytes()))
    generator = random.Random(7)
    for content in sources:
        for _ in range(40):
            damaged = bytearray(content)
            for _ in range(5):
                damaged[generator.randrange(len(damaged))] = generator.randrange(256)
            try:
                recordings.check_tree(load(written(tmp_path / "x.bin", bytes(damaged))).trace)
            except UsageError as error:
                assert error.fix


@settings(deadline=None, max_examples=80)
@given(
    names=st.lists(
        st.sampled_from(["a", 'x"},{"ph', "}, {", "\\", "]", "é\u2028", "[{", "k" * 50]), min_size=1, max_size=60
    ),
    indent=st.sampled_from([None, 0, 2]),
    chunk=st.sampled_from([7, 64, 333, 1 << 20]),
    shape=st.sampled_from(["list", "dict", "tail"]),
)
def test_pieces_are_the_whole_however_they_are_cut(
    names: list[str], indent: int | None, chunk: int, shape: str
) -> None:
    events = [recordings.kernel(name, n, 1, n, nested=[{"ph": 1}, {"a": [{}]}]) for n, name in enumerate(names)]
    tree: Any = events if shape == "list" else {"deviceProperties": [{"name": "x"}], "traceEvents": events}
    if shape == "tail":
        tree |= {"baseTimeNanoseconds": 5, "more": [{"ph": "X"}, {"ph": "X", "ts": 1}]}
    text = json.dumps(tree, indent=indent, ensure_ascii=False).encode()
    lost = Lost()
    reader = _pieces.Reader("x", lost)
    stream = iter([text[at : at + chunk] for at in range(0, len(text), chunk)])
    got = [event for piece in reader.pieces(stream, None) for event in piece]
    assert [event.name for event in got] == names
    assert [event.args.correlation for event in got if event.args] == list(range(len(names)))
    assert (lost.events, lost.reasons) == (0, [])
