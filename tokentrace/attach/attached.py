"""Gets as deep into a found server as is possible, says how deep that is and why, and undoes it at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tokentrace.agent_client import AgentClient
from tokentrace.attach import private, sockets
from tokentrace.attach.found import Depth, Found, ServerProcess
from tokentrace.attach.inject import Injected, Way, put_agent
from tokentrace.attach.obstacles import halted, no_agent, obstacle
from tokentrace.attach.why import LeftAlone, Why, in_one, why_not_deeper
from tokentrace.errors import AttachError, EngineError, UsageError
from tokentrace.host import proc
from tokentrace.wording import listed

METHODS = ("auto", "agent", "borrow", "gdb", "outside")
#: A guest takes itself out within this time of our going.
LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class Inside:
    """One process with an agent in it that is connected to us. `way` is "" where the agent was there already."""

    process: ServerProcess
    agent: AgentClient
    way: Way | str = ""
    held_ns: int = 0
    socket: str = ""


@dataclass(slots=True)
class Attached:
    """A server as deep as we got. A context manager: leaving it takes out what was put in.

    `left_alone` are the processes that have no agent. `whys` say why it is not deeper, `reason` and `fix` the same in
    one; there are none when the whole server was found and every process has an agent now. `notes` are sentences for
    the user about how it went.
    """

    found: Found
    depth: Depth
    method: str = "auto"
    inside: list[Inside] = field(default_factory=list)
    left_alone: list[LeftAlone] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def agents(self) -> list[AgentClient]:
        return [one.agent for one in self.inside]

    def agent_of(self, role: str) -> AgentClient | None:
        """The first agent in a process of that role."""
        return next((one.agent for one in self.inside if one.process.role == role), None)

    @property
    def whys(self) -> list[Why]:
        return why_not_deeper(self.found, self.method, [one.why for one in self.left_alone])

    @property
    def reason(self) -> str:
        return in_one(self.whys).reason

    @property
    def fix(self) -> str:
        return in_one(self.whys).fix

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> list[str]:
        """Detach: every function is put back and what was put in leaves. Safe to call twice; never raises.

        Gives sentences on what could not be seen to have left.
        """
        inside, self.inside = self.inside, []
        for one in inside:
            one.agent.close()
        stayed = [one for one in inside if one.way and not _has_left(one)]
        self._stack.close()
        return [_stayed(one.process.pid) for one in stayed]


def _stayed(pid: int) -> str:
    if proc.is_stopped(pid):
        return f"the agent in process {pid} leaves when the process goes on, which is stopped: kill -CONT {pid}"
    return f"the agent in process {pid} has not been seen to leave"


def check_method(method: str) -> None:
    """Raises UsageError when there is no such method."""
    if method not in METHODS:
        raise UsageError(f"there is no method {method!r}", fix=f"choose one of {', '.join(METHODS)}")


def refusal(found: Found, method: str) -> AttachError | None:
    """Why `open` would refuse the server, as far as that can be told; None if it would not. Touches nothing."""
    stopped = halted(found.processes)
    if stopped is not None or method == "outside":
        return stopped
    if found.processes and (taken := private.taken(found.processes[0].pid)) is not None:
        return taken
    for process in found.processes:
        if process.pid in found.sockets and sockets.agent_is_taken(process.pid):
            return AttachError(
                f"another tokentrace is connected to the agent in process {process.pid}", fix=private.END_FIRST
            )
    return None


def open(found: Found, *, method: str = "auto") -> Attached:
    """Connect to the agents that wait in the server, or put them into its processes, or stay outside.

    `method`: auto takes the deepest way that works and falls back to "outside" with its reason; agent, borrow and gdb
    must work in every process; outside touches no process. Raises AttachError: the method asked for does not work,
    another tokentrace is attached, or a process of the server is stopped. UsageError: no such method.
    """
    check_method(method)
    stopped = halted(found.processes)
    if stopped is not None:
        raise stopped
    attached = Attached(found, "outside", method)
    if method == "outside":
        return attached
    if not found.processes:
        if method != "auto":
            raise AttachError(found.reason or "none of the server's processes can be seen", fix=found.fix)
        return attached
    try:
        attached._stack.enter_context(private.only_one(found.processes[0].pid))
        _connect(attached)
        waited = [str(one.process.pid) for one in attached.inside]
        if waited and method not in ("auto", "agent"):
            attached.notes.append(f"an agent waits in process {listed(waited)}: it was taken, not --method {method}")
        have = {one.process.pid for one in attached.inside}
        missing = [one for one in found.processes if one.pid not in have]
        if method == "agent":
            attached.left_alone += [LeftAlone(one, no_agent(one)) for one in missing]
        else:
            _put_in(attached, method, missing)
        if method != "auto" and attached.left_alone:
            against = in_one([one.why for one in attached.left_alone])
            raise AttachError(against.reason, fix=against.fix)
    except BaseException:
        attached.close()
        raise
    if not attached.inside:
        attached._stack.close()
    return attached


def _connect(attached: Attached) -> None:
    """To the agents that wait in the server already. Raises AttachError when one of them serves another tokentrace."""
    found = attached.found
    for process in found.processes:
        path = found.sockets.get(process.pid)
        if path is None:
            continue
        try:
            agent = AgentClient.connect(path, 2.0)
        except EngineError as error:
            raise AttachError(f"the agent that waits in process {process.pid}: {error}", fix=error.fix) from error
        attached.inside.append(Inside(process, agent, socket=path))
    if attached.inside:
        attached.depth = "agent"


def _put_in(attached: Attached, method: str, missing: Sequence[ServerProcess]) -> None:
    """Into the processes that have none. What stands against one process leaves the others as they are; a method that
    was asked for goes into none of them then, for it is refused."""
    # Nothing is put anywhere before all were looked at, so that what is refused is told of a server as it was.
    against = [(one, obstacle(one, only_hard=method != "auto")) for one in missing]
    attached.left_alone += [LeftAlone(one, why) for one, why in against if why is not None]
    if attached.left_alone and method != "auto":
        return
    for process in [one for one, why in against if why is None]:
        try:
            done = put_agent(process, method)
        except AttachError as error:
            attached.left_alone.append(LeftAlone(process, Why(str(error), error.fix)))
            if method != "auto":
                return
            continue
        attached.inside.append(_inside(process, done))
        attached.depth = "injected"
        attached.notes += [done.note] if done.note else []
    order = {one.pid: number for number, one in enumerate(attached.found.processes)}
    attached.inside.sort(key=lambda one: order[one.process.pid])
    attached.left_alone.sort(key=lambda one: order[one.process.pid])


def _inside(process: ServerProcess, done: Injected) -> Inside:
    return Inside(process, done.agent, done.way, done.held_ns, str(done.socket))


def _has_left(one: Inside) -> bool:
    """A guest removes its socket as one of the last things it does; one whose process was killed cannot."""
    deadline = time.monotonic() + LEAVE_S
    while Path(one.socket).exists() and time.monotonic() < deadline:
        if proc.has_ended(one.process.pid):
            return True
        if proc.is_stopped(one.process.pid):
            break
        time.sleep(0.002)
    return not Path(one.socket).exists()
