"""Programs to look into, and a private folder of the test's own for sockets and locks."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_support import HERE, Program


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    """Starts live_program.py in a mode, with any command before it; ends what it started."""
    started: list[subprocess.Popen[str]] = []

    def start(mode: str, *before: str, python: str = sys.executable) -> Program:
        process = subprocess.Popen(
            [*before, python, str(HERE / "live_program.py"), mode], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return Program(process)

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An $XDG_RUNTIME_DIR of the test's own."""
    with tempfile.TemporaryDirectory(prefix="tt-") as made:
        monkeypatch.setenv("XDG_RUNTIME_DIR", made)
        yield Path(made)
