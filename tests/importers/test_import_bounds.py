"""Hostile and unreadable files end soon, in one sentence; an import that is broken off leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import recordings
from click.testing import CliRunner

from tokentrace.cli import cli
from tokentrace.errors import UsageError
from tokentrace.importers import _pieces, load

TINY = recordings.SMALL / "a100_simple_add_small.json.gz"
EVENT = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":0,"ts":1,"dur":1},'


def bomb(path: Path, begin: bytes, unit: bytes, size: int) -> Path:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    with path.open("wb") as file:
        file.write(packer.compress(begin))
        for _ in range(0, size, len(unit)):
            file.write(packer.compress(unit))
        file.write(packer.flush())
    return path


@pytest.mark.parametrize("unit", [EVENT * 4000, b"[" * (1 << 20), b"a" * (1 << 20)], ids=["events", "lists", "text"])
def test_a_bomb_is_refused_before_it_has_unpacked_much(
    unit: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bomb(tmp_path / "bomb.json.gz", b'{"traceEvents":[', unit, 300 << 20)
    looked_at: list[int] = []
    take = _pieces.Reader._take

    def counted(self: _pieces.Reader, text: bytes, last: bool = False) -> tuple[list[_pieces.Event], bytes]:
        looked_at.append(len(text))
        return take(self, text, last)

    monkeypatch.setattr(_pieces.Reader, "_take", counted)
    with pytest.raises(UsageError):
        load(path)
    assert sum(looked_at) < 256 << 20, "the work is bounded by what is unpacked, not by its square"


def test_a_recording_that_repeats_itself_is_no_bomb(tmp_path: Path) -> None:
    path = bomb(tmp_path / "small.json.gz", b'{"traceEvents":[', EVENT * 4000, 8 << 20)
    assert load(path).figures["kernels"] > 100_000


@pytest.mark.parametrize("folder", [False, True])
def test_a_file_or_folder_without_the_right_to_read_is_one_sentence(folder: bool, tmp_path: Path) -> None:
    """As a process that has not every right: root drops them first."""
    inside = tmp_path / "ranks" / "rank0.json.gz"
    inside.parent.mkdir()
    inside.write_bytes(TINY.read_bytes())
    shut = inside.parent if folder else inside
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(0o755)
    shut.chmod(0)
    code = (
        "import os, sys, click.testing, tokentrace.importers.report, tokentrace.runs, tokentrace.emit\n"
        "from tokentrace.cli import cli, import_\n"
        "os.getuid() or os.setuid(65534)\n"
        "done = click.testing.CliRunner().invoke(cli, ['import', sys.argv[1]])\n"
        "print(type(done.exception).__name__, done.exception)"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code, str(shut)], capture_output=True, text=True, timeout=240,
                              check=False)  # fmt: skip
    finally:
        shut.chmod(0o755)
    assert done.stdout.startswith("UsageError") and "cannot be read: Permission denied" in done.stdout, done


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_in_a_long_import_ends_it_without_a_trace(tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    out.write_text("what was there before")
    code = (
        "import time\nfrom tokentrace.importers import _source\n"
        "def endless(path, lost):\n"
        "    yield b'{\"traceEvents\":['\n"
        "    print('reading', flush=True)\n"
        f"    while True:\n        yield {EVENT!r} * 100\n        time.sleep(0.01)\n"
        "_source.chunks, _source.head = endless, lambda path, size=0: b'{\"traceEvents\":['\n"
        "from tokentrace.cli import main\nmain()"
    )
    command = [sys.executable, "-c", code, "import", str(TINY), "-o", str(out)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None and running.stdout.readline() == "reading\n"
    os.kill(running.pid, signal.SIGINT)
    _, told = running.communicate(timeout=240)
    assert running.returncode == 130 and "Traceback" not in told, told
    assert out.read_text() == "what was there before" and list(tmp_path.iterdir()) == [out]


def test_a_folder_tells_of_the_file_that_it_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(TINY.read_bytes())
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b'{"other": 1}'))
    done = CliRunner().invoke(cli, ["import", str(tmp_path)])
    assert done.exit_code == 0 and "b.json.gz is JSON, but no profiler trace" in done.output


def test_times_whose_sums_would_not_fit_are_refused(tmp_path: Path) -> None:
    """Twelve kernels of a century each add up to less than nothing in 64 bits."""
    rows = [recordings.kernel(f"k{n}", n, 4 * 10**15, n) for n in range(12)]
    with pytest.raises(UsageError, match="holds times that cannot be"):
        load(recordings.trace_file(tmp_path / "t.json", rows))


def test_a_window_beyond_all_times_holds_the_rest(tmp_path: Path) -> None:
    path = recordings.trace_file(tmp_path / "t.json", recordings.launches(3, 100, 5))
    assert load(path, window=(100_000, 10**30)).figures["kernels"] == 2


@pytest.mark.parametrize("number", [-(2**70), -1, 2**45, 2**64])
def test_a_number_of_rocprof_that_does_not_fit_is_no_number(number: int, tmp_path: Path) -> None:
    """Two records whose ids do not fit have nothing to do with each other."""
    record = {"start_timestamp": 5, "end_timestamp": 9, "correlation_id": {"internal": number}}
    records = {"kernel_dispatch": [{**record, "dispatch_info": {"kernel_id": 1}}],
               "memory_copy": [{**record, "bytes": number}],
               "hip_api": [{**record, "correlation_id": {"internal": number + 1}}]}  # fmt: skip
    tool = {"metadata": {"pid": 1}, "agents": [], "kernel_symbols": [], "strings": {}, "buffer_records": records}
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [tool]}))
    figures = load(path).figures
    assert (figures["kernels"], figures["orphan_kernels"], figures["busy_ns"]) == (1, 1, 4)
