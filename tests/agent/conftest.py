"""Sockets in private folders, and programs with the agent in them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import agent_host
import pytest

from tokentrace.agent import core
from tokentrace.agent.control import Server
from tokentrace.agent.core import register_group
from tokentrace.agent_client import AgentClient

HERE = Path(__file__).parent


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of mode 0700 with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="tt-") as made:
        yield Path(made)


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    """An agent in this process, with the group "work"."""
    register_group("work", agent_host.WorkGroup)
    started = Server(str(folder / "agent.sock"))
    started.start()
    yield started
    with AgentClient.connect(started.path) as client:  # waits until the last one's things are put away
        client.begin_pass()
    core._factories.pop("work", None)


@pytest.fixture
def host(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts agent_host.py on a socket; ends what it started."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path | str = folder / "agent.sock") -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}
        process = subprocess.Popen(
            [sys.executable, str(HERE / "agent_host.py"), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
