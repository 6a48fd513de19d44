"""What /proc says of a process, read from real ones."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tokentrace.host import proc

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

WAITER = "import sys; print(flush=True); sys.stdin.read()"
#: Maps the file that it is given, and waits.
MAPPER = (
    "import mmap, sys; file = open(sys.argv[1], 'rb'); kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); "
    "print(flush=True); sys.stdin.read()"
)


@contextmanager
def waiting(*arguments: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A Python that is there wholly: a program that has just begun may not have its variables yet."""
    with subprocess.Popen(
        [sys.executable, "-c", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        yield process
        process.communicate(b"\n")


@pytest.mark.parametrize(
    "name", ["plain.so", "two\nlines.so", "a form\x0cfeed.so", "not-\udcff-utf8.so", "(deleted).so"]
)
def test_a_mapped_file_bears_the_name_that_it_has(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    size = 2 * mmap.PAGESIZE
    file.write_bytes(b"x" * size)
    with waiting(MAPPER, str(file)) as process:
        assert str(file) in proc.files_mapped(process.pid)
        (here,) = (one for one in proc.maps(process.pid) if one.path == str(file))
        assert (here.access, here.offset) == ("r--s", 0) and here.end - here.start == size
        file.unlink()  # its name may be another file's by now
        assert str(file) not in proc.files_mapped(process.pid)


def test_one_that_nobody_has_asked_about_yet_has_ended() -> None:
    with waiting(WAITER) as process:
        assert not proc.has_ended(process.pid) and not proc.status(process.pid).ended
        assert not proc.is_ending(process.pid)
        name = proc.name_of(process.pid)
        assert (process.pid, name) in list(proc.running([name]))
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{process.pid}").exists()
        assert proc.has_ended(process.pid) and proc.status(process.pid).ended
        assert process.pid not in [pid for pid, _ in proc.running([name])]
    assert proc.has_ended(process.pid)


def test_a_process_has_one_start_however_often_it_is_asked() -> None:
    before = time.time_ns()
    with waiting(WAITER) as process:
        started = proc.started_ns(process.pid)
        assert before - 50_000_000 <= started <= time.time_ns()  # the kernel counts ticks of 10 ms
        assert proc.started_ns(process.pid) == started and proc.started(process.pid) == started / 1e9
    with pytest.raises(OSError):
        proc.started_ns(process.pid)


def test_only_the_variables_that_are_asked_for_are_kept() -> None:
    environment = {**os.environ, "CUDA_CACHE_PATH": "/c=d", "SECRET": "key"}
    with waiting(WAITER, env=environment) as process:
        assert proc.environment(process.pid, ["CUDA_CACHE_PATH", "UNSET"]) == {"CUDA_CACHE_PATH": "/c=d"}
