"""The server's process on this machine: from its port to its pid, from a pid to its port, and its command line."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Mapping
from pathlib import Path

from tokentrace.client.urls import bracketed, is_loopback
from tokentrace.errors import UsageError


def is_here(host: str) -> bool:
    """Is this one of this machine's own addresses? A forwarded port may still lead elsewhere."""
    import psutil

    if is_loopback(host) or host.lower() == socket.gethostname().lower():
        return True
    try:
        wanted = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            with contextlib.suppress(ValueError):
                if ipaddress.ip_address(one.address.partition("%")[0]) == wanted:
                    return True
    return False


def listening(port: int) -> int | None:
    """The process that listens on this port, None when none is to be seen (another user's, a container's)."""
    found = [pid for pid, _, at in _listeners() if at == port]
    return min(found) if found else None


def _listeners() -> list[tuple[int, str, int]]:
    """(pid, address, port) of every listening socket whose process is to be seen."""
    import psutil

    try:
        found = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    return [(c.pid, str(c.laddr[0]), int(c.laddr[1])) for c in found if c.status == "LISTEN" and c.pid and c.laddr]


def url_of(pid: int) -> str | None:
    """The base URL of the server that this process is a part of: its own port, or that of a parent or child.

    Raises UsageError when there is no such process.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True), *process.parents()]
    except psutil.NoSuchProcess:
        raise UsageError(f"there is no process {pid}", fix="`ps aux | grep vllm` lists them") from None
    except (psutil.Error, OSError):
        return None
    pids = [p.pid for p in family if p.pid > 1]
    mine = [one for one in _listeners() if one[0] in pids]
    for _, address, port in sorted(mine, key=lambda one: pids.index(one[0])):
        host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(address, address)
        return f"http://{bracketed(host)}:{port}/v1"
    return None


def stopped(pid: int) -> str:
    """Says which process of the server is stopped (by a signal, a debugger or a paused container); "" for none."""
    import psutil

    words = {psutil.STATUS_STOPPED: "stopped", psutil.STATUS_TRACING_STOP: "held by a debugger"}
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            if one.status() in words:
                return f"process {one.pid} ({one.name()}) is {words[one.status()]}"
    except (psutil.Error, OSError):
        return ""
    return ""


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
