"""Which thread may be borrowed: one that waits in the kernel, holds no lock of the interpreter and is not in a hurry.

A thread parked in epoll, poll, a sleep, a socket or a semaphore has released the interpreter's lock (or never held
it) and holds no lock of malloc or of the dynamic linker. A futex is taken only when it looks like a semaphore or a
condition variable that is waited for without limit: a wait with a limit, on a value other than 0, or on a word inside
the interpreter's own image may be the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokentrace.host import proc

#: x86-64 numbers (asm/unistd_64.h) of the calls a thread may be borrowed from.
READ, POLL, SELECT, NANOSLEEP, ACCEPT, RECVFROM, RECVMSG, FUTEX = 0, 7, 23, 35, 43, 45, 47, 202
CLOCK_NANOSLEEP, EPOLL_WAIT, PSELECT, PPOLL, EPOLL_PWAIT, ACCEPT4, EPOLL_PWAIT2 = 230, 232, 270, 271, 281, 288, 441
_NAMES = {
    READ: "read",
    POLL: "poll",
    SELECT: "select",
    NANOSLEEP: "nanosleep",
    ACCEPT: "accept",
    RECVFROM: "recvfrom",
    RECVMSG: "recvmsg",
    CLOCK_NANOSLEEP: "clock_nanosleep",
    EPOLL_WAIT: "epoll_wait",
    PSELECT: "pselect",
    PPOLL: "ppoll",
    EPOLL_PWAIT: "epoll_pwait",
    ACCEPT4: "accept4",
    EPOLL_PWAIT2: "epoll_pwait2",
}
EPOLLS = (EPOLL_WAIT, EPOLL_PWAIT, EPOLL_PWAIT2)
_SLEEPS = (POLL, PPOLL, SELECT, PSELECT, CLOCK_NANOSLEEP, NANOSLEEP)
_FUTEX_WAIT_BITSET, _FUTEX_COMMAND = 9, 0x7F
_TIMER_ABSTIME = 1
_REALTIME = (1, 2, 6)  # SCHED_FIFO, SCHED_RR, SCHED_DEADLINE
#: Running Python on a thread's own stack needs this much of it.
STACK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Parked:
    """A thread and what it waits in; lower `rank` first."""

    rank: int
    thread: int
    waits_in: str


def waits_in(call: int, arguments: Sequence[int], image: Sequence[tuple[int, int]]) -> str:
    """Name of the call when a thread parked in it may be borrowed, else "". `image`: the interpreter's addresses."""
    if call in _NAMES:
        return _NAMES[call]
    if call == FUTEX:
        word, operation, value, limit = (
            arguments[0],
            arguments[1] & _FUTEX_COMMAND,
            arguments[2] & 0xFFFFFFFF,
            arguments[3],
        )
        own = any(start <= word < end for start, end in image)
        if operation == _FUTEX_WAIT_BITSET and value == 0 and limit == 0 and not own:
            return "futex"
    return ""


def has_relative_limit(call: int, arguments: Sequence[int]) -> bool:
    """Whether the call waits for a time that the kernel counts from its start and does not write back.

    Made again from the start it may wait up to twice as long. select, pselect and ppoll write back what is left.
    """
    if call in (POLL, EPOLL_WAIT, EPOLL_PWAIT):
        limit = arguments[2 if call == POLL else 3] & 0xFFFFFFFF
        return 0 < limit < 1 << 31
    if call == CLOCK_NANOSLEEP:
        return not arguments[1] & _TIMER_ABSTIME
    return call == NANOSLEEP or (call == EPOLL_PWAIT2 and arguments[3] != 0)


def candidates(pid: int, image: Sequence[tuple[int, int]]) -> list[Parked]:
    """The threads that could be borrowed now, best first."""
    stacks = [(one.start, one.end) for one in proc.maps(pid) if one.access.startswith("rw") and one.path != "[stack]"]
    found = []
    for thread in proc.threads(pid):
        try:
            parked = _look(pid, thread, image, stacks)
        except (OSError, ValueError):  # it ended meanwhile, or runs
            continue
        if parked is not None:
            found.append(parked)
    return sorted(found, key=lambda one: (one.rank, one.thread))


def _look(pid: int, thread: int, image: Sequence[tuple[int, int]], stacks: Sequence[tuple[int, int]]) -> Parked | None:
    where = Path(f"/proc/{pid}/task/{thread}")
    words = (where / "syscall").read_text(encoding="ascii").split()
    if len(words) < 9 or words[0] == "-1":  # "running", or not in a call
        return None
    call, arguments, stack = int(words[0]), [int(word, 16) for word in words[1:7]], int(words[7], 16)
    name = waits_in(call, arguments, image)
    fields = (where / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    if not name or int(fields[38]) in _REALTIME:
        return None
    # The main thread's stack grows by itself; another one's ends with its mapping.
    if any(start <= stack < end and stack - start < STACK_BYTES for start, end in stacks):
        return None
    if signals_wait(pid, thread):
        return None
    comm = (where / "comm").read_text(encoding="utf-8", errors="replace").strip()
    rank = 4
    if comm.startswith("ZMQbg") or "Reaper" in comm:
        rank = 0 if "Reaper" in comm else 1
    elif call in _SLEEPS:
        rank = 2
    elif call in EPOLLS:
        rank = 3
    # The main thread is where Python runs its signal handlers, and often the one that serves.
    return Parked(rank + 8 * has_relative_limit(call, arguments) + 16 * (thread == pid), thread, name)


def signals_wait(pid: int, thread: int) -> bool:
    """Whether a signal that the thread does not block is about to be delivered to it."""
    text = Path(f"/proc/{pid}/task/{thread}/status").read_text(encoding="utf-8", errors="replace")
    masks = {
        name: int(line.split()[1], 16)
        for line in text.splitlines()
        if (name := line.partition(":")[0]) in ("SigPnd", "ShdPnd", "SigBlk")
    }
    return bool((masks.get("SigPnd", 0) | masks.get("ShdPnd", 0)) & ~masks.get("SigBlk", 0))
