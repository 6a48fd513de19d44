"""Damaged, hostile and strange files: one sentence, or what is readable with the lost counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import recordings
from recordings import TINY, refused, written

from tokentrace.importers import _pieces, _source, chrome, load
from tokentrace.importers.columns import Lost


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty file"),
        (b"   \n ", "holds nothing"),
        (gzip.compress(b""), "holds nothing"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 3\n", "Git LFS pointer"),
        (b"{}", "no list 'traceEvents'"),
        (b'{"a": [1, 2, {"ph": 3}]}', "no list 'traceEvents'"),
        (b"[1, 2, 3]", "damaged"),
        (b"[]", "holds no events"),
        (b'{"traceEvents": []}', "holds no events"),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}', "none of its 1 entries"),
        (b'[{"name": "Anna", "age": 3}]', "holds no events"),
        (b"hello world", "neither JSON"),
        (b"\x1f\x8b\x08\x00 rubbish" * 9, "cannot be unpacked"),
        (b"SQLite format 3\0" + b"\0" * 4000, "sqlite"),
        (b'{"rocprofiler-sdk-tool": [{"metadata": ', "too damaged"),
        (b"\xff\xfe[\x00]\x00", "neither JSON"),
    ],
)
def test_what_is_no_recording_is_refused_in_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    assert says in refused(written(tmp_path / "x.json", content))


def test_missing_files_folders_and_steps(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "no.json")
    assert "there is no recording in" in refused(tmp_path)
    assert "there is no step 7" in refused(TINY, step=7)
    assert "rank 5 is not among" in refused(TINY, rank=5)
    assert "START before END" in refused(TINY, window=(5, 5))
    assert "no events in this window" in refused(TINY, window=(10**15, 10**15 + 1))


def test_a_sqlite_file_of_another_kind(tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        database.execute("create table t (a)")
    assert "no Nsight Systems export" in refused(tmp_path / "x.sqlite")


def test_a_sqlite_schema_with_damaged_names_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start, end)")
    content = path.read_bytes()
    path.write_bytes(
        content.replace(b"CREATE TABLE CUPTI_ACTIVITY", b"CREATE TABxE C\xda\xffPTI_ACTIVITY").replace(
            b"CUPTI_ACTIVITY_KIND_KERNELC", b"C\xda\xffTI_ACTIVITY_KIND_KERNELC"
        )
    )
    assert "damaged sqlite file" in refused(path)


def test_rows_of_an_nsys_export_without_a_time_are_counted(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as database:
        for table, rows in {"KERNEL": "(10, 20), (30, null)", "RUNTIME": "(1, 2), (3, null)"}.items():
            database.execute(f"create table CUPTI_ACTIVITY_KIND_{table} (start, end)")
            database.execute(f"insert into CUPTI_ACTIVITY_KIND_{table} values {rows}")
    seen: list[int] = []
    found = load(path, progress=seen.append)
    assert found.figures["kernels"] == 1
    assert found.lost == {"events": 2, "reason": "rows without a time"}
    assert seen == sorted(seen) and seen[-1] == path.stat().st_size


def nsys_export(path: Path, **tables: list[tuple[Any, ...]]) -> Path:
    """An export with these tables; the columns are those that tests need."""
    import sqlite3

    columns = {
        "KERNEL": "start, end, deviceId, streamId, correlationId, globalPid, shortName",
        "RUNTIME": "start, end, globalTid, correlationId, nameId",
        "GRAPH_TRACE": "start, end, deviceId, streamId, correlationId, globalPid, graphId",
    }
    with sqlite3.connect(path) as database:
        database.execute("create table StringIds (id, value)")
        names = [(1, "k"), (2, "cudaLaunchKernel"), (3, "cudaGraphLaunch")]
        database.executemany("insert into StringIds values (?, ?)", names)
        for table, rows in tables.items():
            database.execute(f"create table CUPTI_ACTIVITY_KIND_{table} ({columns[table]})")
            marks = ", ".join("?" * len(columns[table].split(",")))
            database.executemany(f"insert into CUPTI_ACTIVITY_KIND_{table} values ({marks})", rows)
    return path


def test_graphs_recorded_as_a_whole_are_not_read_as_an_idle_gpu(tmp_path: Path) -> None:
    """What 'nsys profile' does unless asked otherwise: a graph is one row, its kernels are not there."""
    thread, process = 5 << 24 | 1, 5 << 24
    calls = [(n * 100_000, n * 100_000 + 2_000, thread, n, 2) for n in range(20)]
    calls += [(n * 100_000 + 5_000, n * 100_000 + 8_000, thread, 100 + n, 3) for n in range(20)]
    kernels = [(n * 100_000 + 6_000, n * 100_000 + 9_000, 0, 7, n, process, 1) for n in range(20)]
    graphs = [(n * 100_000 + 10_000, n * 100_000 + 98_000, 0, 7, 100 + n, process, 4) for n in range(20)]
    found = load(nsys_export(tmp_path / "a.sqlite", KERNEL=kernels, RUNTIME=calls, GRAPH_TRACE=graphs))
    text = "\n".join(f"{f.status} {f.sentence} {f.fix}" for f in found.findings)
    assert "20 graph executions were recorded as a whole" in text and "--cuda-graph-trace=node" in text
    assert "how long it was idle is unknown, for graphs ran whose kernels were not recorded" in text
    assert "aunch-bound" not in text and "gap" not in text and found.figures["idle_share"] is None
    alone = load(nsys_export(tmp_path / "b.sqlite", RUNTIME=calls[20:], GRAPH_TRACE=graphs))
    text = "\n".join(f.sentence for f in alone.findings)
    assert "blind" not in text and "20 graph executions" in text
    plain = load(nsys_export(tmp_path / "c.sqlite", KERNEL=kernels, RUNTIME=calls[:20]))
    assert plain.figures["idle_share"] is not None and any("aunch-bound" in f.sentence for f in plain.findings)


def test_published_damaged_files() -> None:
    facts = json.loads(recordings.large("malformed_facts.json").read_text())
    assert "Git LFS" in refused(recordings.large("malformed/lfs_pointer.pt.trace.json.gz"))
    for name, truth in facts.items():
        if "complete_events" not in truth:
            continue
        found = load(recordings.large(name))
        assert found.source["events"] == truth["complete_events"]
        assert found.figures["kernels"] == truth["complete_kernels"]
        recordings.check_tree(found.trace)
    cut = load(recordings.large("malformed/DERIVED_truncated_plain.json"))
    assert cut.lost["events"] == 1 and "cut" in cut.lost["reason"]
    assert any("damaged" in f.sentence and f.status == "warn" for f in cut.findings)
    assert load(recordings.large("malformed/DERIVED_trailing_comma.json")).lost == {"events": 0, "reason": ""}


@pytest.mark.parametrize("length", [{}, {"dur": None}, {"dur": "long"}])
def test_a_duration_that_cannot_be_read_is_told(length: dict[str, Any], tmp_path: Path) -> None:
    rows = [recordings.kernel("k", 10, 5, 1), recordings.kernel("l", 20, 5, 2)]
    del rows[1]["dur"]
    found = load(recordings.trace_file(tmp_path / "t.json", [rows[0], {**rows[1], **length}]))
    assert found.figures["kernels"] == 2 and found.figures["busy_ns"] == 5_000
    assert found.lost == {"events": 0, "reason": "1 event without a readable duration, taken as 0"}


def test_what_a_reason_is_called_does_not_make_it_a_cut() -> None:
    lost = Lost()
    lost.add(0, "cut.json is lost, and was not read to its end")
    assert not lost.tears(10)
    lost.add(0, "the file is shorter than it was", torn=True)
    assert lost.tears(10)


def test_a_hole_of_zeros_is_told(tmp_path: Path) -> None:
    """What a disk that ran full or a crash leaves: zeros within a string, which swallows the events up to its end."""
    whole = json.dumps({"traceEvents": [recordings.kernel(f"k{n}", n * 10, 5, n) for n in range(300)]})
    at = whole.index('"k100"') + 3
    found = load(written(tmp_path / "x.json", whole[:at] + "\0" * 2000 + whole[at + 2000 :]))
    assert 250 < found.figures["kernels"] < 300 and found.lost["events"] >= 1
    assert "damaged" in found.lost["reason"]


def test_a_cut_recording_says_nothing_about_an_idle_gpu(tmp_path: Path) -> None:
    """Profilers write kernels last: what a cut file lacks must not read as a GPU that had nothing to do."""
    host = [e for n in range(40) for e in (recordings.op("aten::mm", n * 10, 8),
                                           recordings.call("cudaLaunchKernel", n * 10 + 1, 2, n))]  # fmt: skip
    device = [recordings.kernel("gemm", n * 10 + 4, 9, n) for n in range(40)]
    whole = json.dumps({"traceEvents": [*host, *device]})
    full = load(written(tmp_path / "whole.json", whole))
    assert full.figures["idle_share"] is not None
    for kept, name in ((whole.index('"gemm"', whole.index('"gemm"') + 1500), "some"), (whole.index('"gemm"'), "none")):
        found = load(written(tmp_path / f"{name}.json", whole[:kept]))
        assert found.figures["idle_share"] is None and found.figures["kernels"] < 40
        assert all(device["idle_share"] is None for device in found.figures["devices"])
        text = "\n".join(f"{f.status} {f.sentence} {f.fix}" for f in found.findings)
        assert "unknown" in text and "launch-bound" not in text.lower() and "ran on the CPU" not in text
        assert "of the time" not in text.replace("how much of the time", "") and "blind" not in text


@pytest.mark.parametrize(("kernels", "known"), [(150, True), (40, False)])
def test_of_a_hundred_kernels_one_may_be_missing(tmp_path: Path, kernels: int, known: bool) -> None:
    """A damaged event may have been a kernel, however many other events there are."""
    host = [recordings.op("aten::view", n, 0.5) for n in range(2000)]
    rows = [row for n in range(kernels) for row in (recordings.call("cudaLaunchKernel", n * 10 + 1, 2, n),
                                                    recordings.kernel("gemm", n * 10 + 4, 9, n))]  # fmt: skip
    one = json.dumps({"traceEvents": [*host, *rows]}).replace('"dur": 9', '"du\x00": 9', 1)
    found = load(written(tmp_path / "one.json", one))
    text = "\n".join(f.sentence for f in found.findings)
    assert (found.figures["idle_share"] is not None) == known
    assert "The GPU was busy" in text and ("at least" not in text) == known


def test_an_endless_event_is_given_up(tmp_path: Path) -> None:
    good = json.dumps(recordings.op("aten::mm", 1, 2))
    with mock.patch.object(_pieces, "_EVENT_LIMIT", 1 << 20), mock.patch.object(_source, "CHUNK", 1 << 16):
        found = load(written(tmp_path / "x.json", f'[{good}, {{"ph": "X", "name": "' + "a" * (3 << 20)))
    assert found.source["events"] == 1 and "longer than" in found.lost["reason"]


def test_nan_control_characters_and_huge_ids(tmp_path: Path) -> None:
    events = (
        '[{"ph":"X","cat":"kernel","name":"a\x01\x1b[31mb","pid":0,"tid":0,"ts":1.5,"dur":NaN,"args":{"x":NaN}},'
        '{"ph":"X","cat":"kernel","name":"c\\u202e\\ud800","pid":0,"tid":0,"ts":NaN,"dur":1},'
        '{"ph":"X","cat":"kernel","name":null,"pid":true,"tid":{},"ts":3,"dur":1,'
        '"args":{"correlation":123456789012345678901234567890,"device":1e400,"stream":[]}},'
        '{"ph":"X","cat":"kernel","name":"d","pid":0,"tid":0,"ts":4,"dur":-5,"args":[]}]'
    )
    found = load(written(tmp_path / "x.json", events))
    assert found.figures["kernels"] == 3 and found.lost["events"] == 1
    assert "without a readable time" in found.lost["reason"] and "negative duration" in found.lost["reason"]
    text = "".join(found.trace.names)
    assert not any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 or ord(c) == 0x202E for c in text)
    recordings.check_tree(found.trace)


def test_deep_nesting_and_long_numbers(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    long = "9" * 10_000
    events = (
        f'[{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1,"args":{{"x":{deep}}}}},'
        f'{{"ph":"X","cat":"cpu_op","name":"b","pid":1,"tid":1,"ts":{long},"dur":1}},'
        f'{{"ph":"X","cat":"cpu_op","name":"c","pid":1,"tid":1,"ts":5,"dur":1,"args":{{"External id":{long}}}}},'
        '{"ph":"X","cat":"cpu_op","name":"d","pid":1,"tid":1,"ts":7,"dur":1}]'
    )
    found = load(written(tmp_path / "x.json", events))
    assert found.figures["kernels"] == 0 and found.lost["events"] >= 1
    assert {"op d"} <= set(found.trace.names)


def test_a_damaged_event_costs_that_event_only(tmp_path: Path) -> None:
    texts = [json.dumps(recordings.kernel(f"k{n}", n * 10, 5, n)) for n in range(100)]
    for broken in (
        texts[50][:-20],
        texts[50].replace('"dur"', '"du'),
        texts[50].replace(":", "", 1),
        "\x00\x00\x00",
        "{{",
    ):
        damaged = ",\n".join([*texts[:50], broken, *texts[51:]])
        found = load(written(tmp_path / "x.json", f'{{"traceEvents": [{damaged}]}}'))
        assert found.figures["kernels"] in (98, 99), broken
        assert found.lost["events"] >= 1 or broken in ("\x00\x00\x00", "{{")


def test_read_reports_progress() -> None:
    seen: list[int] = []
    chrome.read(TINY, progress=seen.append)
    assert seen and seen[-1] == len(gzip.decompress(TINY.read_bytes()))
