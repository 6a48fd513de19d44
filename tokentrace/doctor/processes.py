"""The server's process on this machine: from its port to its pid, from a pid to its port, and its command line."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tokentrace.attach import roles, sockets
from tokentrace.attach.sockets import Listener
from tokentrace.client.urls import bracketed, is_loopback
from tokentrace.errors import UsageError
from tokentrace.host import proc
from tokentrace.wording import listed, plural

_ENGINES = {"vllm": "vLLM", "tokentrace": "the local engine of tokentrace"}
#: Of a process that names no port, and listens on several, the one that servers use.
_USUAL_PORT = 8000
#: Deeper trees are not a server's.
_DEEPEST = 16


@dataclass(frozen=True, slots=True)
class Server:
    """The process that was taken for a pid, and its base URL. `why` says so where it is another one, "" otherwise."""

    pid: int
    url: str
    why: str = ""


def is_here(host: str) -> bool:
    """Is this one of this machine's own addresses? Asks no name server. A forwarded port may still lead elsewhere."""
    if is_loopback(host) or host.lower() == socket.gethostname().lower():
        return True
    return bool(_literal(host) and sockets.local_addresses(_literal(host)))


def _literal(host: str) -> str:
    bare = host.strip("[]").partition("%")[0]
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return ""


def listening(host: str, port: int) -> int | None:
    """The process that a connection there reaches, None when none is to be seen (another user's, a container's)."""
    literal = _literal(host)
    addresses = [literal] if literal else ["127.0.0.1", "::1"]
    held = sockets.holders({one.inode for one in sockets.on_port(port, addresses)})
    return min(held) if held else None


def server_of(pid: int) -> Server:
    """The server that this process is, is a part of, or started.

    The process itself if it listens; else the server that it is a part of; else the one below it, such as that of a
    shell or of a container's first process; else one above it. Raises UsageError when there is no such process, no
    server, or several below it.
    """
    there(pid)
    held = _held()
    top = roles.top_of(pid)
    if top is not None:
        looked, engine = top
        family = [looked.pid, *(one.pid for one in roles.members(looked, engine, ())), *_below(looked.pid)]
        for one in family:
            if one in held:
                return Server(pid, _url(held[one], looked.arguments), _part(pid, one))
    if pid in held:
        return Server(pid, _url(held[pid], _arguments(pid)))
    if servers := _servers_below(pid, held):
        return _chosen(pid, servers, held)
    for one in _above(pid):
        if one in held:
            why = f"process {pid} ({name_of(pid)}) listens on no port; the one above it, {one} ({name_of(one)}), does"
            return Server(one, _url(held[one], _arguments(one)), why)
    raise UsageError(
        f"process {pid} ({name_of(pid)}) listens on no port that can be seen, nor do its parents and children",
        fix=f"give its address: tokentrace doctor --pid {pid} --url http://127.0.0.1:8000/v1",
    )


def there(pid: int) -> None:
    """Raises UsageError when there is no such process."""
    try:
        ended = proc.status(pid).ended
    except OSError:
        raise UsageError(f"there is no process {pid}", fix="`ps aux | grep vllm` lists them") from None
    if ended:
        raise UsageError(
            f"process {pid} has ended (a zombie: its parent has not taken note yet)", fix="start the server again"
        )


def _part(pid: int, listener: int) -> str:
    if pid == listener:
        return ""
    return f"process {pid} ({name_of(pid)}) is part of the server that listens as process {listener}"


def _chosen(pid: int, servers: Mapping[int, int], held: Mapping[int, list[Listener]]) -> Server:
    """Of the servers below a process: the only one, or the only engine among them. Raises UsageError for several."""
    engines = [one for one in servers if (looked := roles.look(one)) is not None and roles.engine_of(looked)]
    candidates = engines if len(servers) > 1 and engines else list(servers)
    own = f"process {pid} ({name_of(pid)}) listens on no port"
    if len(candidates) > 1:
        told = [f"{one} ({name_of(one)}) on port {_best(held[servers[one]], _arguments(one)).port}"
                for one in sorted(candidates)]  # fmt: skip
        raise UsageError(
            f"{own} itself, and below it there are {len(candidates)} servers: {listed(told)}",
            fix=f"name the one you mean: tokentrace doctor --pid {sorted(candidates)[0]}",
        )
    one = candidates[0]
    others = len(servers) - 1
    only = f"the only engine among {plural(others + 1, 'server')} below it" if others else "the only server below it"
    why = f"{own}; process {one} ({name_of(one)}) is {only} and was looked at instead"
    return Server(one, _url(held[servers[one]], _arguments(one)), why)


def _servers_below(pid: int, held: Mapping[int, list[Listener]]) -> dict[int, int]:
    """Server's top process -> the process of it that listens; of all that run below `pid`."""
    found: dict[int, int] = {}
    taken: set[int] = set()
    for one in _below(pid):
        sockets_of = {listener.inode for listener in held.get(one, ())}
        if sockets_of and not sockets_of <= taken:  # workers hold their parent's sockets too
            top = roles.top_of(one)
            found.setdefault(top[0].pid if top is not None else one, one)
            taken |= sockets_of
    return found


def _held(pids: Iterable[int] | None = None) -> dict[int, list[Listener]]:
    """Process -> the TCP ports on which it listens; of these processes, or of every one that may be looked at."""
    listeners = {one.inode: one for one in sockets.listeners()}
    held = sockets.holders(set(listeners), pids)
    return {pid: [listeners[inode] for inode in sorted(inodes)] for pid, inodes in held.items()}


def _below(pid: int) -> list[int]:
    """Children and theirs, parents first."""
    children: dict[int, list[int]] = {}
    for one in proc.all_pids():
        with contextlib.suppress(OSError):
            children.setdefault(proc.status(one).parent, []).append(one)
    found = list(children.get(pid, ()))
    for one in found:
        found += children.get(one, ())
    return found


def _above(pid: int) -> Iterator[int]:
    """Parents of the same user, the nearest first; never the machine's first process, which is everybody's parent."""
    with contextlib.suppress(OSError):
        state = proc.status(pid)
        for _ in range(_DEEPEST):
            above = state.parent
            if above <= 1 or proc.status(above).uid != state.uid:
                return
            yield above
            state = proc.status(above)


def _arguments(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return proc.command_line(pid)
    return []


def _best(listeners: Iterable[Listener], arguments: Iterable[str]) -> Listener:
    """The port that the command names, else the usual one, else the lowest."""
    words = list(arguments)
    named = {value for flag, value in pairwise(words) if flag in ("--port", "-p")}
    named |= {word.partition("=")[2] for word in words if word.startswith("--port=")}
    return min(listeners, key=lambda one: (str(one.port) not in named, one.port != _USUAL_PORT, one.port))


def _url(listeners: Iterable[Listener], arguments: Iterable[str]) -> str:
    one = _best(listeners, arguments)
    return f"http://{bracketed(one.reached_at)}:{one.port}/v1"


def name_of(pid: int) -> str:
    """What a process is, in a word or two. Never its arguments: they may hold a key."""
    looked = roles.look(pid)
    if looked is not None and (engine := roles.engine_of(looked)):
        return _ENGINES[engine]
    with contextlib.suppress(OSError):
        return proc.name_of(pid)
    return "gone"


def running() -> list[tuple[int, int]]:
    """(pid, port) of every inference server of a known engine that listens here and may be looked at."""
    named = [one for pid in proc.all_pids() if (one := roles.look(pid)) is not None and roles.engine_of(one)]
    if not named:
        return []
    held = _held([one.pid for one in named])
    found = []
    for one in named:
        if one.pid in held and ((top := roles.top_of(one.pid)) is None or top[0].pid == one.pid):
            found.append((one.pid, _best(held[one.pid], one.arguments).port))
    return found


@dataclass(frozen=True, slots=True)
class Halted:
    """A process that does not run: `how` is "stopped" or "held by a debugger", `tracer` the debugger's pid or 0."""

    pid: int
    how: str
    tracer: int = 0

    @property
    def told(self) -> str:
        return f"process {self.pid} ({name_of(self.pid)}) is {self.how}"

    @property
    def fix(self) -> str:
        if self.tracer:
            return f"end the debugger that holds it: process {self.tracer} ({name_of(self.tracer)})"
        return f"kill -CONT {self.pid}"


def halted(pid: int) -> Halted | None:
    """Which process of the server does not run, by the state that /proc tells: T by a signal, t by a debugger."""
    for one in (pid, *_below(pid)):
        with contextlib.suppress(OSError):
            state = proc.status(one)
            if state.state in ("T", "t"):
                held = state.state == "t" or bool(state.tracer)
                return Halted(one, "held by a debugger" if held else "stopped", state.tracer)
    return None


def environment(pid: int) -> Mapping[str, str] | None:
    """The process's variables as it was started with; None when they cannot be read or it has written over them."""
    from tokentrace.doctor.machine import view

    seen = view.of_process(pid)
    return None if seen.hidden else seen.environ


def model_of(pid: int) -> str:
    """The model folder that its command line names, "" when there is none on this machine."""
    import psutil

    from tokentrace.doctor.machine import command

    try:
        process = psutil.Process(pid)
        model, cwd = command.parse(process.cmdline()).model, Path(process.cwd())
    except (psutil.Error, OSError):
        return ""
    folder = cwd / model
    return str(folder) if model and folder.is_dir() else ""
