"""The suffix chooses the format; a name without one, or a format that cannot be read back, is one sentence."""

from __future__ import annotations

import gzip
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.traces import run_trace

from tokentrace import emit
from tokentrace.errors import UsageError


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.jsonl", "otlp-file"),
        ("a.jsonl.gz", "otlp-file"),
        ("A.JSONL", "otlp-file"),
        ("a.json", "jaeger"),
        ("a.jaeger.json", "jaeger"),
        ("a.jaeger.json.gz", "jaeger"),
        ("a.perfetto.json", "perfetto"),
        ("a.trace.json", "perfetto"),
        ("a.trace.json.gz", "perfetto"),
    ],
)
def test_the_suffix_chooses_the_format(tmp_path: Path, name: str, format: str) -> None:
    assert emit.format_of(name) == format
    emit.save(run_trace(60), tmp_path / name)
    raw = (tmp_path / name).read_bytes()
    text = gzip.decompress(raw) if name.endswith(".gz") else raw
    marks = {"otlp-file": "resourceSpans", "jaeger": "data", "perfetto": "traceEvents"}
    assert marks[format] in json.loads(text.splitlines()[0] if format == "otlp-file" else text)


@pytest.mark.parametrize("name", ["trace", "trace.txt", "trace.gz", "json"])
def test_an_unknown_suffix_lists_the_known_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="suffix") as caught:
        emit.save(run_trace(20), tmp_path / name)
    assert ".jsonl" in caught.value.fix
    assert ".jaeger.json" in caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_a_format_by_name_wins_over_the_suffix(tmp_path: Path) -> None:
    emit.save(run_trace(20), tmp_path / "t.txt", format="otlp-file")
    assert len(emit.load(tmp_path / "t.txt")) == len(run_trace(20))
    with pytest.raises(UsageError, match="no format 'svg'"):
        emit.save(run_trace(20), tmp_path / "t.txt", format="svg")


@pytest.mark.parametrize("name", ["t.jaeger.json", "t.perfetto.json"])
def test_a_file_for_a_viewer_is_refused_by_name(tmp_path: Path, name: str) -> None:
    emit.save(run_trace(20), tmp_path / name)
    with pytest.raises(UsageError, match="does not hold the whole trace") as caught:
        emit.load(tmp_path / name)
    assert ".jsonl" in caught.value.fix


def test_loading_gives_what_was_saved(tmp_path: Path) -> None:
    trace = run_trace(200)
    emit.save(trace, tmp_path / "t.jsonl.gz")
    found = emit.load(tmp_path / "t.jsonl.gz")
    assert list(found.spans) == list(trace.spans)
    assert found.meta == trace.meta
    assert found.processes == trace.processes


def test_a_saved_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    emit.save(run_trace(20), tmp_path / "t.jsonl")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("other", "t.jsonl")}
    assert len(modes) == 1


@pytest.mark.parametrize("name", ["step.json", "step.pt.trace.json.gz", "profile.sqlite"])
def test_export_of_a_recording_names_import(tmp_path: Path, name: str) -> None:
    # Not "written for Jaeger": that is what the suffix would mean for a file of ours.
    (tmp_path / name).write_bytes(b'{"traceEvents": []}')
    command = [sys.executable, "-c", "from tokentrace.cli import main; main()", "export", name, "--to", "jaeger"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240, check=False)
    assert done.returncode == 2
    assert "Jaeger" not in done.stderr and f"tokentrace import {name}" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_recording_is_not_called_a_file_for_a_viewer(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{"traceEvents": []}')
    with pytest.raises(UsageError) as refused:
        emit.load(path)
    assert "is no trace" in str(refused.value) and refused.value.fix.startswith(f"tokentrace import {path}")
    emit.save(run_trace(5), tmp_path / "x.jaeger.json")
    with pytest.raises(UsageError, match="was written for Jaeger"):
        emit.load(tmp_path / "x.jaeger.json")


def test_importing_emit_loads_no_exporter() -> None:
    heavy = ("grpc", "httpx", "numpy", "orjson", "google")
    code = f"import sys, tokentrace.emit; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
