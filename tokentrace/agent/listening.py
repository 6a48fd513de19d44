"""The unix socket that the agent listens on: private, and never in the place of anything else."""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
from pathlib import Path

from tokentrace.agent.core import AgentError

_PEER = struct.Struct("iII")  # struct ucred: pid, uid, gid


def readable(sockets: list[socket.socket], timeout_s: float | None) -> list[socket.socket]:
    """Those with something to read. poll, because select knows no descriptor above 1023, and busy servers have them."""
    poll = select.poll()
    for one in sockets:
        poll.register(one, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
    return [one for one in sockets if one.fileno() in ready]


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other end as the kernel knows them; -1 where the system cannot say, and the file's mode
    alone keeps others out."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return -1, -1
    pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _PEER.size))
    return pid, uid


def listen(path: str) -> socket.socket:
    """A listening socket of mode 0600 in a folder of mode 0700. Raises AgentError."""
    file = Path(path)
    folder = file.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except OSError as error:
        raise AgentError(f"{folder} cannot be made: {error.strerror}", "choose another folder") from error
    if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o077:
        raise AgentError(f"{folder} is open to other users", f"chmod 700 {folder}, or choose another folder")
    if file.exists():
        _remove_stale(file)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
        file.chmod(0o600)
        listener.listen(4)
    except OSError as error:
        listener.close()
        raise AgentError(
            f"the socket {path} cannot be made: {error}", "use a shorter path in a folder of yours"
        ) from error
    finally:
        os.umask(before)
    return listener


def _remove_stale(file: Path) -> None:
    """A socket that nobody listens on is a dead process's; a live one stays."""
    if not stat.S_ISSOCK(file.lstat().st_mode):
        raise AgentError(f"{file} is there and is no socket", "choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(file))
        except OSError:
            file.unlink(missing_ok=True)
            return
    raise AgentError(f"another process listens on {file}", "choose another path")
