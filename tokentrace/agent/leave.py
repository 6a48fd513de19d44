"""How an agent that was put into a live process (a guest) comes, and goes again without a trace.

It leaves as soon as its client has gone, in whatever manner, or when none has come within `control.ALONE_S`: the groups
put every function back, the socket is removed, and its modules, its finder and its thread are gone. What stays is what
Python cannot take back: one small function among those that run after a fork, which by then does nothing and is used
again by the next guest.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokentrace.agent.control import Server

_PACKAGE = __name__.rpartition(".")[0]
#: Where the functions to run after a fork are kept: {package: function}, an attribute of `sys` because it has to
#: outlive every module of ours.
_AFTER_FORK = "_tokentrace_after_fork"


def start_guest(socket_path: str, finder: Any) -> None:
    """Start the agent of this process as a guest; `finder` (on sys.meta_path) served its modules. Raises AgentError."""
    from tokentrace import agent

    agent.start(socket_path, guest=lambda server: leave(server, finder))


def leave(server: Server, finder: Any) -> None:
    """Take the agent out of this process. Runs on the agent's own thread, as the last thing that it does."""
    from tokentrace import agent

    with contextlib.suppress(OSError):
        server.listener.close()
    if server.pid == os.getpid():  # in a forked child the socket is the parent's
        with contextlib.suppress(OSError):
            Path(server.path).unlink()
    atexit.unregister(agent.remove_socket)
    agent.forget()
    getattr(sys, _AFTER_FORK, {}).pop(_PACKAGE, None)
    with contextlib.suppress(ValueError):
        sys.meta_path.remove(finder)
    for name in [one for one in sys.modules if one == _PACKAGE or one.startswith(f"{_PACKAGE}.")]:
        sys.modules.pop(name, None)


def watch_forks(call: Callable[[], None]) -> None:
    """Have `call` run in every child that this process forks from now on."""
    calls: dict[str, Callable[[], None]] | None = getattr(sys, _AFTER_FORK, None)
    if calls is None:
        calls = {}
        setattr(sys, _AFTER_FORK, calls)
        # Without this module's globals, which it would keep alive.
        run = FunctionType(_run_all.__code__, {"__builtins__": builtins}, "tokentrace_after_fork", (calls,))
        os.register_at_fork(after_in_child=run)
    calls[_PACKAGE] = call


def _run_all(calls: dict[str, Callable[[], None]]) -> None:
    for call in list(calls.values()):
        call()
