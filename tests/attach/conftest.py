"""Programs to look into, and a private folder of the test's own for sockets and locks."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tokentrace.attach import proc
from tokentrace.attach.found import Found, ServerProcess
from tokentrace.attach.versions import python_of

HERE = Path(__file__).parent


@dataclass
class Program:
    """A running live_program.py."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def as_server(self) -> ServerProcess:
        program = proc.executable(self.pid)
        return ServerProcess(
            self.pid, "single", "live_program", proc.started(self.pid), python_of(self.pid, program), program
        )

    @property
    def found(self) -> Found:
        return Found("http://127.0.0.1:1/v1", "", "", (self.as_server,))

    def end(self) -> dict[str, Any]:
        """Stop it and give what it says of itself."""
        self.process.terminate()
        text, _ = self.process.communicate(timeout=60)
        said: dict[str, Any] = json.loads(text.splitlines()[-1])
        return said


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
