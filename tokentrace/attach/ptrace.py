"""ptrace(2) through ctypes, for one thread of another process. x86-64 Linux."""

from __future__ import annotations

import ctypes
import os
import signal

SEIZE, INTERRUPT, DETACH, SINGLESTEP = 0x4206, 0x4207, 17, 9
GETREGSET, SETREGSET, NT_PRSTATUS = 0x4204, 0x4205, 1
EVENT_STOP = 128
_WALL = 0x40000000
#: linux/errno.h: make the call again, unless a signal handler ran.
_ERESTARTNOHAND = -514
_MASK = (1 << 64) - 1
_NAMES = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
)


class PtraceError(Exception):
    """A request was refused, or the thread went away. `errno` is 0 in the latter case."""

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class Registers(ctypes.Structure):
    """struct user_regs_struct."""

    _fields_ = [(name, ctypes.c_uint64) for name in _NAMES]

    def get(self, name: str) -> int:
        return int(getattr(self, name))

    def signed(self, name: str) -> int:
        value = self.get(name)
        return value - (1 << 64) if value >> 63 else value

    def copy(self, **changes: int) -> Registers:
        made = Registers.from_buffer_copy(self)
        for name, value in changes.items():
            setattr(made, name, value & _MASK)
        return made


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _request(kind: int, thread: int, address: int = 0, data: int = 0) -> None:
    ctypes.set_errno(0)
    if _libc.ptrace(kind, thread, address, data) == -1 and (code := ctypes.get_errno()):
        raise PtraceError(f"ptrace of thread {thread}: {os.strerror(code)}", code)


class Stopped:
    """A thread that is held still. A context manager: leaving it lets the thread go, with its own registers unless
    `release` was told otherwise. If we are killed meanwhile the kernel lets it go (no PTRACE_O_EXITKILL)."""

    def __init__(self, thread: int) -> None:
        """Raises PtraceError: no right, or the thread went away."""
        self.thread = thread
        self._dirty = self._gone = False
        _request(SEIZE, thread)
        try:
            _request(INTERRUPT, thread)
            #: Whether it stopped because we asked, not for a signal that has just arrived.
            self.by_us = self._wait() >> 16 == EVENT_STOP
            self.saved = self.registers()
        except BaseException:
            self._let_go()
            raise

    def __enter__(self) -> Stopped:
        return self

    def __exit__(self, *details: object) -> None:
        self._let_go()

    def registers(self) -> Registers:
        registers = Registers()
        vector = _Vector(ctypes.addressof(registers), ctypes.sizeof(registers))
        _request(GETREGSET, self.thread, NT_PRSTATUS, ctypes.addressof(vector))
        return registers

    def _set(self, registers: Registers) -> None:
        vector = _Vector(ctypes.addressof(registers), ctypes.sizeof(registers))
        _request(SETREGSET, self.thread, NT_PRSTATUS, ctypes.addressof(vector))

    def system_call(self, number: int, *arguments: int) -> int:
        """Let the thread make one system call with the instruction it is parked at; what the kernel answered."""
        names = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
        call = dict(zip(names, arguments, strict=False))
        self._set(self.saved.copy(rip=self.saved.get("rip") - 2, rax=number, orig_rax=-1, **call))
        self._dirty = True
        passed_on = 0
        while True:
            _request(SINGLESTEP, self.thread, 0, passed_on)
            stop = self._wait()
            now = self.registers()
            if now.get("rip") == self.saved.get("rip"):
                return now.signed("rax")
            got = os.WSTOPSIG(stop)
            passed_on = 0 if got == signal.SIGTRAP else got

    def make_again(self) -> None:
        """Let the kernel make an interrupted call again that it would otherwise end with EINTR."""
        self.saved = self.saved.copy(rax=_ERESTARTNOHAND)
        self._dirty = True

    def release(self, registers: Registers) -> None:
        """Let the thread go on with these registers."""
        self._set(registers)
        self._dirty = False
        self._let_go()

    def _wait(self) -> int:
        _, stop = os.waitpid(self.thread, _WALL)
        if not os.WIFSTOPPED(stop):
            self._gone = True
            raise PtraceError(f"thread {self.thread} went away")
        return stop

    def _let_go(self) -> None:
        if self._gone:
            return
        self._gone = True
        try:
            if self._dirty:
                self._set(self.saved)
            _request(DETACH, self.thread)
        except PtraceError:
            pass  # it died: nothing is left to be put back
