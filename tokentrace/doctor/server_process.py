"""Layer 6 without a request: which process serves, and does it run at all?"""

from __future__ import annotations

from collections.abc import Iterable

from tokentrace.doctor import processes
from tokentrace.doctor.check import Check, Result, Situation, fail, ok, skip, unknown, warn
from tokentrace.wording import listed


def _process(s: Situation) -> Iterable[Result]:
    if s.mode == "machine":
        yield _servers_here()
    elif not s.here:
        yield skip("TT620", "the server runs on another machine")
    elif s.pid is None:
        where = f"on port {s.endpoint.port}" if s.endpoint is not None else "there"
        yield unknown(
            "TT620",
            f"no process that may be seen listens {where}",
            "if the server runs as another user or in a container, run tokentrace doctor there",
        )
    elif halted := processes.halted(s.pid):
        # A connection is still taken, by the kernel; what was asked is never answered.
        yield fail("TT620", f"the server cannot answer: its {halted.told}", halted.fix, *filter(None, [s.taken]))
    elif s.taken:
        yield ok("TT620", s.taken)
    else:
        yield ok("TT620", f"process {s.pid} ({processes.name_of(s.pid)}) serves, and is not stopped")


def _servers_here() -> Result:
    """Nobody named a server; those of known engines that run here are told, for they may be what was meant."""
    found = processes.running()
    if not found:
        return skip("TT620", "no server was named, and none of a known engine runs here")
    for pid, _ in found:
        if halted := processes.halted(pid):
            return warn("TT620", f"a server here cannot answer: its {halted.told}", halted.fix)
    told = [f"process {pid} ({processes.name_of(pid)}) on port {port}" for pid, port in found]
    look = f"tokentrace doctor --pid {found[0][0]}"
    return ok("TT620", f"a server runs here and was not asked: {listed(told, 2)} ({look})")


CHECKS = (
    Check(
        "TT620",
        "server's process",
        "The process that serves is not stopped: by Ctrl-Z, a signal or a debugger. The kernel takes connections for a "
        "stopped process, so the port looks open. Where --pid names a shell or a container's first process, this tells "
        "which server below it was looked at, and why.",
        "listening sockets, the tree of processes and their states in /proc",
        "kill -CONT PID, or end the debugger.",
        _process,
    ),
)
