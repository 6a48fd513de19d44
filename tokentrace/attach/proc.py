"""What /proc says of a process. Reading only; see proc(5). Standard library only, for the injecting child needs it.

Every function raises OSError when the process is gone or may not be looked at.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_MAP = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ (\d+)\s*(.*)")
NAMESPACES = ("user", "pid", "mnt", "net")


@dataclass(frozen=True, slots=True)
class Status:
    """Lines of /proc/PID/status. Capabilities are bit masks; `pids` are its numbers from our namespace inwards."""

    parent: int
    uid: int
    tracer: int
    seccomp: int
    permitted: int
    effective: int
    pids: tuple[int, ...]
    state: str


@dataclass(frozen=True, slots=True)
class Mapped:
    """One line of /proc/PID/maps."""

    start: int
    end: int
    access: str
    offset: int
    path: str  # "" anonymous; "[heap]", "[stack]"


def status(pid: int) -> Status:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def number(name: str, base: int = 10) -> int:
        words = lines.get(name, "").split()
        return int(words[0], base) if words else 0

    return Status(
        parent=number("PPid"),
        uid=number("Uid"),
        tracer=number("TracerPid"),
        seccomp=number("Seccomp"),
        permitted=number("CapPrm", 16),
        effective=number("CapEff", 16),
        pids=tuple(int(word) for word in lines.get("NSpid", "").split()),
        state=lines.get("State", "").strip()[:1],
    )


def command_line(pid: int) -> list[str]:
    """The arguments; a process that renamed itself shows its title as the only one."""
    data = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ")
    return [part.decode("utf-8", "replace") for part in data.split(b"\0")] if data else []


def start_ticks(pid: int) -> int:
    """When it started, in clock ticks since boot: with the pid, the identity of a process."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(text.rpartition(")")[2].split()[19])


def started(pid: int) -> float:
    """When it started, unix seconds."""
    return _boot_time() + start_ticks(pid) / os.sysconf("SC_CLK_TCK")


@lru_cache(maxsize=1)
def _boot_time() -> int:
    found = re.search(r"^btime (\d+)", Path("/proc/stat").read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) if found else 0


def executable(pid: int) -> str:
    """Path of what it runs, as it sees it."""
    return str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)")


def namespace(pid: int | str, kind: str) -> str:
    """The namespace's identity, such as "pid:[4026531836]"."""
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def maps(pid: int) -> list[Mapped]:
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        got = _MAP.match(line)
        if got:
            start, end, access, offset, _, path = got.groups()
            found.append(Mapped(int(start, 16), int(end, 16), access, int(offset, 16), path.strip()))
    return found


def threads(pid: int) -> list[int]:
    return sorted(int(one.name) for one in Path(f"/proc/{pid}/task").iterdir())


def all_pids() -> list[int]:
    return sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit())


def inside(pid: int, path: str) -> Path:
    """The process's `path` as we can open it, whatever its root folder and mounts are."""
    return Path(f"/proc/{pid}/root{path}") if other_root(pid) else Path(path)


def other_root(pid: int) -> bool:
    """Whether its files are others than ours: another mount namespace, or another root folder."""
    try:
        root = Path(f"/proc/{pid}/root").readlink()
        return namespace(pid, "mnt") != namespace("self", "mnt") or root != Path("/proc/self/root").readlink()
    except OSError:
        return False
