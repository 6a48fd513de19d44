"""Which process listens where: TCP ports and the agents' unix sockets, from /proc (proc(5), Linux only)."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokentrace.host import proc

_LISTEN = "0A"
_UNIX_LISTENING = 0x10000  # __SO_ACCEPTCON in the flags column
#: How an agent's socket is recognised: a file agent*.sock in a folder tokentrace*.
_AGENT = re.compile(r".*/tokentrace[^/]*/agent[^/]*\.sock")


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket: the address, its owner's uid, and the inode that says which process holds it."""

    address: str
    port: int
    uid: int
    inode: int

    @property
    def reached_at(self) -> str:
        """The address by which it is reached from this machine."""
        return {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(self.address, self.address)


def listeners(pid: int | str = "self") -> list[Listener]:
    """All listening TCP sockets of the process's network. Needs no rights."""
    found = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if len(words) > 9 and words[3] == _LISTEN:
                    address, _, port = words[1].partition(":")
                    found.append(Listener(_address(address), int(port, 16), int(words[7]), int(words[9])))
    return found


def _address(text: str) -> str:
    """Four-byte groups in the machine's byte order, which is little-endian wherever attach works."""
    data = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return str(ipaddress.ip_address(data))


def on_port(port: int, addresses: Iterable[str], pid: int | str = "self") -> list[Listener]:
    """Those that a connection to the port at one of the addresses would reach."""
    wanted = {str(ipaddress.ip_address(one)) for one in addresses}
    found = []
    for one in listeners(pid):
        address = ipaddress.ip_address(one.address)
        mapped = getattr(address, "ipv4_mapped", None)
        names = {one.address, str(mapped)} if mapped else {one.address}
        if one.port == port and (address.is_unspecified or names & wanted):
            found.append(one)
    return found


def holders(inodes: set[int], pids: Iterable[int] | None = None) -> dict[int, set[int]]:
    """Process -> those of the sockets that it holds. A process that we may not look at is left out."""
    found: dict[int, set[int]] = {}
    for pid in proc.all_pids() if pids is None else pids:
        held = socket_inodes(pid) & inodes
        if held:
            found[pid] = held
    return found


def socket_inodes(pid: int) -> set[int]:
    """Inodes of the sockets that the process holds; empty when it may not be looked at."""
    found = set()
    with contextlib.suppress(OSError):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(one.readlink())
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def agent_sockets(pids: Iterable[int]) -> dict[int, str]:
    """Process -> path by which we reach the socket of the agent that waits in it."""
    found = {}
    for pid in pids:
        for path, listens in _agents_of(pid):
            if listens:
                found[pid] = str(proc.inside(pid, path))
    return found


def agent_is_taken(pid: int) -> bool:
    """Whether somebody is connected to the agent in the process. A connection bears the listener's path (unix(7))."""
    return any(not listens for _, listens in _agents_of(pid))


def _agents_of(pid: int) -> Iterator[tuple[str, bool]]:
    """(path, whether it listens) of the process's unix sockets that an agent made."""
    mine = socket_inodes(pid)
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
            words = line.split(None, 7)
            if len(words) == 8 and int(words[6]) in mine and _AGENT.fullmatch(words[7]):
                yield words[7], bool(int(words[3], 16) & _UNIX_LISTENING)


def local_addresses(host: str) -> list[str] | None:
    """The host's addresses when it is this machine, else None; [] when its name is not known."""
    import psutil

    try:
        found = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return []
    own = {one.address.partition("%")[0] for many in psutil.net_if_addrs().values() for one in many}
    here = [one for one in sorted(found) if one in own or _means_here(one)]
    return here or None


def _means_here(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return parsed.is_loopback or parsed.is_unspecified
