"""Agent: the part that runs inside a serving process. Standard library only.

`start` opens a private socket and does nothing else until somebody connects to it. From then on the groups that are
asked for wrap functions of the engine (or start a profiler), write down what happens, and hand it over; see `control`
for the conversation and `core` for the records.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from threading import get_native_id
from typing import TYPE_CHECKING

from tokentrace.agent.core import AgentError, Emit, GroupUnavailable, Recorder, here, register_group, replace_groups

if TYPE_CHECKING:
    from tokentrace.agent.control import Server

__all__ = [
    "AgentError",
    "Emit",
    "GroupUnavailable",
    "Recorder",
    "register_group",
    "replace_groups",
    "running",
    "start",
]

_server: Server | None = None
_template = ""
_watching_forks = False


def start(socket_path: str, guest: Callable[[Server], None] | None = None) -> None:
    """Open the control socket of this process, on a thread of its own.

    `{pid}` in the path becomes the process's number; then children that this process forks open one of their own,
    without it they have none. Nothing happens when it is open already. `guest` takes the agent out of the process
    when its client has gone (see `leave`). Raises AgentError.
    """
    global _server, _template, _watching_forks
    path = socket_path.replace("{pid}", str(os.getpid()))
    if _server is not None and _server.pid == os.getpid():
        if _server.path != path:
            raise AgentError(f"the agent listens on {_server.path} already", "use that one")
        return
    from tokentrace.agent.control import Server
    from tokentrace.agent.leave import watch_forks

    server = Server(path)
    server.guest = guest
    server.start()
    _server, _template = server, socket_path
    if not _watching_forks:
        import atexit

        _watching_forks = True
        watch_forks(_after_fork)
        atexit.register(remove_socket)


def running() -> Server | None:
    """The agent of this process, if it was started."""
    return _server if _server is not None and _server.pid == os.getpid() else None


def _after_fork() -> None:
    """A forked child has the parent's wrappers and none of its threads."""
    global _server
    here.thread = get_native_id()  # the forking thread has another one here
    server, _server = _server, None
    if server is None:
        return
    server.abandon()
    if server.guest is not None:
        with contextlib.suppress(Exception):
            server.guest(server)
    elif "{pid}" in _template:
        with contextlib.suppress(Exception):  # the child must go on whatever becomes of its agent
            start(_template)


def forget() -> None:
    """Know of no agent any more; for the one that leaves."""
    global _server, _watching_forks
    _server, _watching_forks = None, False


def remove_socket() -> None:
    """At the end of the process."""
    if _server is not None and _server.pid == os.getpid():
        with contextlib.suppress(OSError):
            Path(_server.path).unlink()
