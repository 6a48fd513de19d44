"""Where `tokentrace import` writes, and what it refuses to write over; the report beside the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import recordings
from click.testing import CliRunner, Result
from recordings import kernel, launches, trace_file

from tokentrace import importers
from tokentrace.cli import cli
from tokentrace.emit import html
from tokentrace.errors import UsageError
from tokentrace.report import Report

TINY = recordings.SMALL / "a100_simple_add_small.json.gz"
DECODE = recordings.SMALL / "mi300_vllm_decode_full_graph_step.json.gz"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["import", *map(str, arguments)])


def printed(*arguments: str | Path) -> str:
    done = run(*arguments)
    assert done.exit_code == 0, done.exception
    return done.output


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_recording_is_never_overwritten(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(TINY.read_bytes())
    folder, link = tmp_path / "ranks", tmp_path / f"link-{name}"
    folder.mkdir()
    inside = folder / name
    inside.write_bytes(TINY.read_bytes())
    link.symlink_to(path)
    for given, out in ((path, path), (path, link), (folder, inside)):
        done = run(given, "-o", out)
        assert isinstance(done.exception, UsageError) and "would be overwritten" in str(done.exception)
    assert path.read_bytes() == inside.read_bytes() == TINY.read_bytes()
    printed(folder, "-o", folder / "all.jsonl")
    printed(folder, "-o", folder / "all.jsonl"), "what was written before may be written again"


@pytest.mark.parametrize("out", ["x.txt", "none/x.jsonl", "."])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("it was read first")

    monkeypatch.setattr(importers, "load", read)
    assert isinstance(run(TINY, "-o", tmp_path / out).exception, UsageError)


def test_a_page_shows_the_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Report | None] = []
    monkeypatch.setattr(html, "write", lambda trace, path, report: shown.append(report))
    printed(DECODE, "-q", "-o", tmp_path / "page.html")
    assert shown[0] is not None
    assert any("421 of 425 kernels (99.1 %) ran inside a graph" in f.sentence for f in shown[0].findings)


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    assert printed(TINY, "-q", "-o", tmp_path / "x.jsonl") == ""
    assert (tmp_path / "x.jsonl").stat().st_size > 0


def test_the_eight_layers_are_printed_and_in_the_json() -> None:
    text = printed(DECODE, "--no-color")
    for title in ("8 client request", "6 engine queue", "3 kernel launch", "1 chip power"):
        assert any(line.startswith(title) for line in text.splitlines()), title
    told = json.loads(printed(DECODE, "--json"))
    assert told["schema"] == "tokentrace.import/1" and told["wall_ns"] == told["figures"]["span_ns"]
    for layer in told["layers"]:
        if layer["status"] == "seen":
            both = layer["own_ns_down"] + layer["own_ns_up"]
            assert layer["facts"]["own_ns"] == both, layer["title"]
    assert {"passes", "slowest", "coverage", "spans", "trace_id", "files"} <= set(told)


def test_a_share_that_is_not_all_is_not_called_100_per_cent(tmp_path: Path) -> None:
    path = trace_file(tmp_path / "t.json", [kernel("k", 0, 1, 1), kernel("k", 99_999, 1, 2)])
    assert "idle share 99.9 %" in printed(path)


def test_a_power_dump_alone_says_nothing_of_kernels(tmp_path: Path) -> None:
    rows = "".join(f"2026/11/30 10:15:{s:02d}.000, 0, 200.00 W\n" for s in range(10))
    (tmp_path / "power.csv").write_text("timestamp, index, power.draw.instant [W]\n" + rows)
    text = printed(tmp_path / "power.csv")
    assert "kernels" not in text and "GPU busy" not in text and "GPU 0 used 1,800 J" in text


def test_a_full_temporary_folder_is_named(tmp_path: Path) -> None:
    """An nsys export is unpacked before it is read; where there is no room for it, say where."""
    import gzip
    import sqlite3

    source = tmp_path / "x.sqlite"
    with sqlite3.connect(source) as database:
        database.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start, end)")
        database.executemany(
            "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?)", [(n, n + 1) for n in range(20_000)]
        )
    packed = tmp_path / "x.sqlite.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)); import signal; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from tokentrace.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "import", str(packed)], capture_output=True, text=True,
                          timeout=240, check=False)  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "cannot be unpacked" in done.stderr and "TMPDIR" in done.stderr


def test_saved_imports_that_took_longer_differ(tmp_path: Path) -> None:
    """Steps of a recording have no phase, and must not be taken for what runs once."""
    for name, every in (("base", 10), ("new", 20)):
        step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": -5,
                "dur": 40 * every + 20}  # fmt: skip
        path = trace_file(tmp_path / f"{name}.json", [step, *launches(40, every, 8)])
        printed(path, "-q", "-o", tmp_path / f"{name}.jsonl")
    done = CliRunner().invoke(cli, ["diff", str(tmp_path / "base.jsonl"), str(tmp_path / "new.jsonl")])
    assert "No difference" not in done.output
    wall = [line for line in done.output.splitlines() if line.startswith(("the request  ", "the recording  "))]
    assert len(wall) == 1 and "420 us" in wall[0] and "820 us" in wall[0], done.output
