"""What the tests of attach share: a running program, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokentrace.attach.found import Found, ServerProcess
from tokentrace.attach.versions import python_of
from tokentrace.host import proc

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
        text, _ = self.process.communicate(timeout=200)
        said: dict[str, Any] = json.loads(text.splitlines()[-1])
        return said


def tokentrace(*arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run the command; it never prints a traceback."""
    command = [sys.executable, "-c", "from tokentrace.cli import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert "Traceback" not in done.stderr + done.stdout
    return done
