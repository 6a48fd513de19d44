"""What /proc says of a process. Reading only; see proc(5). Standard library only, for the injecting child needs it.

What is in a process (its files, its memory, its variables) needs the rights of a debugger for those of other users
(ptrace access mode read). Every function raises OSError when the process is gone or may not be looked at, unless it
says otherwise.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_MAP = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ \d+ *(.*)")
_ESCAPED = re.compile(rb"\\([0-7]{3})")
#: Zombie: nobody has asked about its end yet. Dead: seen for a moment while it goes.
_ENDED = ("Z", "X", "x")
_EXITING = 0x4


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

    @property
    def ended(self) -> bool:
        """One that its parent has not asked about yet (a zombie) has ended too."""
        return self.state in _ENDED


@dataclass(frozen=True, slots=True)
class Mapped:
    """One line of /proc/PID/maps."""

    start: int
    end: int
    access: str
    offset: int
    path: str  # as the process names it; "" anonymous; "[heap]", "[stack]"; "… (deleted)" no longer there


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


def has_ended(pid: int) -> bool:
    """Whether the process is gone, or has ended and waits for its parent to ask. Never raises: one that may not be
    looked at is there."""
    try:
        return status(pid).ended
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False


def is_ending(pid: int) -> bool:
    """Whether it has ended, or will run nothing more: the kernel takes down its memory and files, which may take
    seconds (PF_EXITING, include/linux/sched.h). Never raises, like `has_ended`."""
    if has_ended(pid):
        return True
    try:
        return bool(int(_stat(pid)[6]) & _EXITING)
    except OSError:
        return has_ended(pid)


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped it (SIGSTOP). Never raises: one that may not be looked at is not."""
    try:
        return status(pid).state == "T"
    except OSError:
        return False


def command_line(pid: int) -> list[str]:
    """The arguments; a process that renamed itself shows its title as the only one."""
    data = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ")
    return [part.decode("utf-8", "replace") for part in data.split(b"\0")] if data else []


def environment(pid: int, wanted: Iterable[str]) -> dict[str, str]:
    """Those of the variables that the process was started with. No other is kept: among them may be keys."""
    names = {name.encode() for name in wanted}
    pairs = (entry.partition(b"=") for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    return {name.decode(): os.fsdecode(value) for name, _, value in pairs if name in names}


def name_of(pid: int) -> str:
    """Its program's name, 15 characters at most."""
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()


def start_ticks(pid: int) -> int:
    """When it started, in clock ticks since boot: with the pid, the identity of a process."""
    return int(_stat(pid)[19])


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat behind the program's name."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def started_ns(pid: int) -> int:
    """When it started, unix ns, to 10 ms."""
    return start_ticks(pid) * 1_000_000_000 // os.sysconf("SC_CLK_TCK") + _boot_ns()


@lru_cache(maxsize=1)
def _boot_ns() -> int:
    """When the machine started by today's clock, to a tick. Asked once, so that a process keeps its start.

    A pause between the two clocks makes it early, so the latest of some is taken.
    """
    latest = max(time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) for _ in range(5))
    return round(latest, -7)


def started(pid: int) -> float:
    """The same, unix seconds."""
    return started_ns(pid) / 1e9


def executable(pid: int) -> str:
    """Path of what it runs, as it sees it."""
    return str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)")


def namespace(pid: int | str, kind: str) -> str:
    """The namespace's identity, such as "pid:[4026531836]"."""
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def maps(pid: int) -> list[Mapped]:
    """Empty of one that has just ended."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_bytes().split(b"\n"):
        got = _MAP.fullmatch(line)
        if got:
            start, end, access, offset, path = got.groups()
            found.append(Mapped(int(start, 16), int(end, 16), access.decode(), int(offset, 16), _as_named(path)))
    return found


def _as_named(path: bytes) -> str:
    """A path of the kernel's tables, which write unusual letters as octal numbers."""
    return os.fsdecode(_ESCAPED.sub(lambda found: bytes((int(found[1], 8) & 255,)), path))


def files_mapped(pid: int) -> frozenset[str]:
    """Paths of the files that it has mapped, its libraries among them. Raises ProcessLookupError when it has ended."""
    found = maps(pid)
    if not found:
        raise ProcessLookupError(f"process {pid} has ended")
    return frozenset(one.path for one in found if one.path.startswith("/"))


def threads(pid: int) -> list[int]:
    return sorted(int(one.name) for one in Path(f"/proc/{pid}/task").iterdir())


def all_pids() -> list[int]:
    return sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit())


def running(names: Collection[str]) -> Iterator[tuple[int, str]]:
    """(pid, name) of the processes here of these programs that have not ended, as far as they can be seen."""
    cut = {name[:15] for name in names}
    for pid in all_pids():
        try:
            name = name_of(pid)
        except OSError:
            continue
        if name in cut and not has_ended(pid):
            yield pid, name


def inside(pid: int, path: str) -> Path:
    """The process's `path` as we can open it, whatever its root folder and mounts are."""
    return Path(f"/proc/{pid}/root{path}") if other_root(pid) else Path(path)


def other_root(pid: int, proc: str = "/proc") -> bool:
    """Whether its files are others than ours: another mount namespace, or another root folder. False where that may
    not be looked at. `proc` is where the machine's /proc lies."""
    theirs, ours = Path(proc, str(pid)), Path("/proc/self")
    try:
        # Two roots may be one folder, with other things mounted below it, and be called "/" without being one.
        return (
            (theirs / "ns/mnt").readlink() != (ours / "ns/mnt").readlink()
            or (theirs / "root").readlink() != (ours / "root").readlink()
            or not (theirs / "root").samefile(ours / "root")
        )
    except OSError:
        return False


def root_of(pid: int) -> tuple[str, str]:
    """(root folder, mount table) by which we reach its files; our own where they are the same."""
    return (f"/proc/{pid}/root", f"/proc/{pid}/mountinfo") if other_root(pid) else ("/", "/proc/self/mountinfo")
