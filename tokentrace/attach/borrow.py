"""Runs one string of Python in another process, on a thread that was waiting anyway.

A parked thread is held for about a millisecond: the page with the code of stub.S is mapped through the thread's own
system call instruction, the thread is pointed there and let go. It takes the interpreter's lock like any other thread,
runs the string (which only starts a thread of its own), gives the lock back and returns to what it waited for. The
page is taken away again afterwards. Nothing else in the process stops. Linux, x86-64, CPython 3.10 to 3.14.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokentrace.attach import parked, stub
from tokentrace.attach.image import Image, ImageError, find_image
from tokentrace.attach.parked import Parked
from tokentrace.attach.ptrace import PtraceError, Registers, Stopped
from tokentrace.host import proc

_MMAP, _MUNMAP = 9, 11
_READ, _WRITE, _EXECUTE = 1, 2, 4
_PRIVATE, _FIXED, _ANONYMOUS = 2, 16, 32
_SYSCALL = b"\x0f\x05"
#: What a call answers inside the kernel when it was interrupted (linux/errno.h: ERESTARTSYS and its siblings).
_INTERRUPTED = (-errno.EINTR, -512, -513, -514, -516)
_POLL_S = 0.0005
#: A page that cannot be taken away within this time stays; the target is not held for it.
_UNMAP_S = 2.0


class BorrowError(Exception):
    """The string was not run. `kind`: gone, rights, image, busy (no thread parked, nothing was touched), late (it
    waits for the interpreter's lock and may still run), refused (the kernel did not let the thread map memory)."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Borrowed:
    """How it went. Times in nanoseconds: `held_ns` the thread was stopped, `ran_ns` until the string had run."""

    thread: int
    waited_in: str
    held_ns: int
    ran_ns: int
    left_bytes: int  # of memory that could not be taken away again


def run_string(pid: int, started: int, executable: str, code: str, timeout_s: float) -> Borrowed:
    """Run `code` in `pid`. `started` (clock ticks) and `executable` say which process is meant.

    Raises BorrowError. Only with the kind "late" may the string run afterwards.
    """
    deadline = time.monotonic() + timeout_s
    string = code.encode()
    tried: set[int] = set()
    try:
        same_process(pid, started, executable)
        image = find_image(pid)
        while True:
            for one in parked.candidates(pid, image.ranges):
                if one.thread in tried:
                    continue
                got = _borrow(pid, started, executable, image, one, string, deadline)
                if got is not None:
                    return got
                if time.monotonic() > deadline:
                    break
            if time.monotonic() > deadline:
                raise BorrowError("busy", "no thread of the process waits in a place where it can be borrowed")
            same_process(pid, started, executable)  # one that has ended stays in /proc until its parent looks
            time.sleep(0.002)
    except ImageError as error:
        raise BorrowError("image", str(error)) from error
    except PermissionError as error:
        raise BorrowError("rights", f"the process may not be looked into: {error.strerror}") from error
    except OSError as error:
        raise BorrowError("gone", f"process {pid} has ended") from error
    except PtraceError as error:
        kind = "rights" if error.errno == errno.EPERM else "gone"
        raise BorrowError(kind, str(error)) from error


def same_process(pid: int, started: int, executable: str) -> None:
    """Raises BorrowError when the number belongs to another process by now, or the process runs something else."""
    try:
        if proc.start_ticks(pid) == started and proc.executable(pid) == executable and not proc.status(pid).ended:
            return
    except OSError:
        pass
    raise BorrowError("gone", f"process {pid} has ended, or became another program")


def _borrow(
    pid: int, started: int, executable: str, image: Image, one: Parked, string: bytes, deadline: float
) -> Borrowed | None:
    """None when this thread would not do; nothing was changed then."""
    size = stub.size_for(string)
    with _memory(pid) as memory:
        begun = time.perf_counter_ns()
        try:
            with _in_a_hurry(), Stopped(one.thread) as thread:
                same_process(pid, started, executable)
                page = _point_at_code(pid, thread, memory, image, string, size)
        except PtraceError as error:
            tracer = proc.status(pid).tracer
            if error.errno == errno.EPERM and tracer:
                raise BorrowError("rights", f"process {pid} is being traced by process {tracer}") from None
            if error.errno == errno.EPERM:
                raise
            return None  # this thread has ended; the others may live
        held = time.perf_counter_ns() - begun
        if page is None:
            return None
        state = _wait_for_end(memory, page, deadline)
    if state in (stub.WAITING, stub.RUNNING):
        raise BorrowError("late", f"process {pid} holds its interpreter's lock; what was asked for may still happen")
    ran = time.perf_counter_ns() - begun
    left = 0 if _unmap(pid, one.thread, image, page, size) else size
    if state == stub.REFUSED:
        return None
    return Borrowed(one.thread, one.waits_in, held, ran, left)


def _point_at_code(pid: int, thread: Stopped, memory: int, image: Image, string: bytes, size: int) -> int | None:
    """Map the code, let the thread go into it, and give the page; None when the thread may not be borrowed."""
    saved = thread.saved
    back = _goes_on(thread, memory, image)
    if back is None or parked.signals_wait(pid, thread.thread):
        return None
    page = _map(thread, size)
    where = saved.get("rip") if back else saved.get("rip") - len(_SYSCALL)
    os.pwrite(memory, string + b"\0", page + stub.STRING_AT)
    os.pwrite(memory, stub.values(image.functions, where, page), page + stub.PAGE)
    os.pwrite(memory, stub.CODE, page)
    thread.release(saved.copy(rip=page, rax=back or saved.get("orig_rax"), orig_rax=-1))
    return page


@contextmanager
def _in_a_hurry() -> Iterator[None]:
    """Ahead of everybody else where that is allowed, so that on a busy machine no thread is held while we wait."""
    try:
        before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


@contextmanager
def _memory(pid: int) -> Iterator[int]:
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    try:
        yield memory
    finally:
        os.close(memory)


def _goes_on(thread: Stopped, memory: int, image: Image) -> int | None:
    """How the thread shall go on: 0 makes the call again, -EINTR lets it return that; None, it may not be borrowed."""
    saved = thread.saved
    call = saved.signed("orig_rax")
    arguments = _arguments(saved)
    if not thread.by_us or call < 0 or saved.signed("rax") not in _INTERRUPTED:
        return None
    if not parked.waits_in(call, arguments, image.ranges):
        return None
    if os.pread(memory, 2, saved.get("rip") - len(_SYSCALL)) != _SYSCALL:
        return None
    if call in parked.EPOLLS:
        # The kernel never restarts these by itself (signal(7)): their callers know EINTR and count their time anew.
        if parked.has_relative_limit(call, arguments):
            return -errno.EINTR
        thread.make_again()
    return 0


def _arguments(registers: Registers) -> list[int]:
    return [registers.get(name) for name in ("rdi", "rsi", "rdx", "r10", "r8", "r9")]


def _map(thread: Stopped, size: int) -> int:
    """Address of `size` new bytes in the target: one page to execute, the rest to write."""
    page = thread.system_call(_MMAP, 0, size, _READ | _EXECUTE, _PRIVATE | _ANONYMOUS, -1, 0)
    if page < 0:
        raise BorrowError("refused", f"the process was not given memory to execute: {os.strerror(-page)}")
    rest = page + stub.PAGE
    got = thread.system_call(_MMAP, rest, size - stub.PAGE, _READ | _WRITE, _PRIVATE | _ANONYMOUS | _FIXED, -1, 0)
    if got != rest:
        thread.system_call(_MUNMAP, page, size)
        raise BorrowError("refused", f"the process was not given memory to write: {os.strerror(-got)}")
    return page


def _wait_for_end(memory: int, page: int, deadline: float) -> int:
    """The last state seen; WAITING or RUNNING after the deadline."""
    while True:
        data = os.pread(memory, 8, page + stub.STATE_AT)
        if len(data) < 8:
            raise PtraceError("the process went away")
        state, _ = stub.state_of(data)
        if state in (stub.REFUSED, stub.DONE) or time.monotonic() > deadline:
            return state
        time.sleep(_POLL_S)


def _unmap(pid: int, borrowed: int, image: Image, page: int, size: int) -> bool:
    """Take the page away through a parked thread, once the borrowed one is seen to have left it."""
    deadline = time.monotonic() + _UNMAP_S
    while time.monotonic() < deadline:
        if not _is_in(pid, borrowed, page, size):
            found = parked.candidates(pid, image.ranges)
            for one in sorted(found, key=lambda one: one.thread != borrowed):
                try:
                    with Stopped(one.thread) as thread, _memory(pid) as memory:
                        if _goes_on(thread, memory, image) is None:
                            continue
                        done = thread.system_call(_MUNMAP, page, size) == 0
                        # Left with its own registers: the kernel restarts the call it was in.
                        return done
                except PtraceError:
                    continue
        time.sleep(_POLL_S)
    return False


def _is_in(pid: int, thread: int, page: int, size: int) -> bool:
    """Whether the thread may still be in the page; a running thread's place is not known."""
    try:
        words = Path(f"/proc/{pid}/task/{thread}/syscall").read_text(encoding="ascii").split()
    except FileNotFoundError:
        return False  # the thread has ended
    except OSError:
        return True
    if len(words) < 3:
        return True
    return page <= int(words[-1], 16) < page + size
