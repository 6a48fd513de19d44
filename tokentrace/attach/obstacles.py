"""Why code may not, cannot or should not be put into a process: each reason with what to do instead.

Most reasons hold in any case. Where the way is merely untried, a method that was asked for by name goes on.
"""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import re
from collections.abc import Iterable
from pathlib import Path

from tokentrace.attach.found import ServerProcess
from tokentrace.attach.why import Why
from tokentrace.errors import AttachError
from tokentrace.host import proc

#: Tried on all of these, x86-64 and glibc.
OLDEST, NEWEST = (3, 10), (3, 14)
PLUGIN_FIX = "install tokentrace in the server's environment and start the server again: its plugin then waits there"
START_AGAIN = "look at the server's log, and start it again"
_CUDA = re.compile(r"/lib(cuda\.so|amdhip64\.so|hsa-runtime64\.so)")
_CAP_SYS_PTRACE = 1 << 19


def no_agent(process: ServerProcess) -> Why:
    """Where only an agent that waits already would do, and there is none."""
    return _user(process) or Why(f"no agent waits in process {process.pid}", PLUGIN_FIX)


def obstacle(process: ServerProcess, *, only_hard: bool = False) -> Why | None:
    """The first reason that stands against putting code into `process`, or None; `only_hard`: though it is untried
    there. Touches nothing."""
    try:
        for check in (_identity, _user, _machine, _python, _namespaces, _traced, _right, _confined):
            found = check(process)
            if found is not None:
                return found
        return None if only_hard else _untried(process)
    except FileNotFoundError:
        return _gone(process)
    except ProcessLookupError:
        return _gone(process)
    except PermissionError:
        return _no_right(process)


def _gone(process: ServerProcess) -> Why:
    return Why(f"process {process.pid} has ended", START_AGAIN)


def _identity(process: ServerProcess) -> Why | None:
    if proc.status(process.pid).ended or abs(proc.started(process.pid) - process.started) > 2.0:
        return _gone(process)
    return _stopped(process)


def _stopped(process: ServerProcess) -> Why | None:
    if not proc.is_stopped(process.pid):
        return None
    return Why(f"process {process.pid} is stopped", f"let it go on: kill -CONT {process.pid}")


def halted(processes: Iterable[ServerProcess]) -> AttachError | None:
    """The first of a server's processes that is stopped, or None: such a server answers nobody."""
    for process in processes:
        with contextlib.suppress(OSError):
            stopped = _stopped(process)
            if stopped is not None:
                told = f"process {process.pid} ({process.part}) is stopped, so that the server answers nobody"
                return AttachError(told, fix=stopped.fix)
    return None


def _user(process: ServerProcess) -> Why | None:
    uid = proc.status(process.pid).uid
    if uid == os.geteuid():
        return None
    name = user_name(uid)
    return Why(
        f"process {process.pid} belongs to user {name}, you are {user_name(os.geteuid())}",
        as_user(name),
    )


def user_name(uid: int) -> str:
    """The account's name, or its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def as_user(name: str) -> str:
    """What to do about another user's process."""
    return f"run the same command as that user: sudo -u {name} tokentrace attach …"


def _machine(process: ServerProcess) -> Why | None:
    if os.uname().sysname != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        return Why(f"putting code into a process is not known to work on {platform.machine()}", PLUGIN_FIX)
    with open(f"/proc/{process.pid}/exe", "rb") as file:
        head = file.read(20)
    if head[:5] != b"\x7fELF\x02" or int.from_bytes(head[18:20], "little") != 62:
        return Why(f"process {process.pid} is not a 64-bit x86 program", PLUGIN_FIX)
    if any("ld-musl-" in one.path for one in proc.maps(process.pid)):
        return Why(f"process {process.pid} runs on musl, where this is not known to work", PLUGIN_FIX)
    return None


def _python(process: ServerProcess) -> Why | None:
    if not process.python:
        return Why(f"process {process.pid} runs no Python that could be recognised", PLUGIN_FIX)
    if process.python.endswith("t"):
        return Why(
            f"process {process.pid} runs free-threaded Python {process.python}, where this is not known to work",
            PLUGIN_FIX,
        )
    version = tuple(int(part) for part in process.python.split("."))
    if not OLDEST <= version <= NEWEST:
        return Why(
            f"process {process.pid} runs Python {process.python}; it is known to work from 3.10 to 3.14", PLUGIN_FIX
        )
    return None


def _namespaces(process: ServerProcess) -> Why | None:
    if proc.namespace(process.pid, "user") != proc.namespace("self", "user"):
        return Why(
            f"process {process.pid} runs in a container with users of its own",
            "run tokentrace inside that container, as the server's user",
        )
    return None


def _traced(process: ServerProcess) -> Why | None:
    tracer = proc.status(process.pid).tracer
    if tracer:
        name = " ".join(proc.command_line(tracer))[:60] if Path(f"/proc/{tracer}").exists() else "elsewhere"
        return Why(f"process {process.pid} is being traced by process {tracer} ({name})", "end that one first")
    return None


def _right(process: ServerProcess) -> Why | None:
    """The kernel's own answer: opening the memory asks the same question as ptrace does (ptrace(2))."""
    try:
        os.close(os.open(f"/proc/{process.pid}/mem", os.O_RDONLY))
    except PermissionError:
        return _no_right(process)
    return None


def _no_right(process: ServerProcess) -> Why:
    pid = process.pid
    ours = proc.status(os.getpid())
    theirs = proc.status(pid)
    can_trace = ours.effective & _CAP_SYS_PTRACE
    scope = yama_scope()
    docker = "start the container with --cap-add SYS_PTRACE, or " if theirs.permitted & ~ours.effective else ""
    if scope == 3:
        return Why("this machine allows no process to trace another (kernel.yama.ptrace_scope = 3)", PLUGIN_FIX)
    if scope in (1, 2) and not can_trace:
        return Why(
            f"this machine allows tracing to administrators only (kernel.yama.ptrace_scope = {scope})",
            f"sudo sysctl kernel.yama.ptrace_scope=0, or {PLUGIN_FIX}",
        )
    if theirs.permitted & ~ours.effective:
        return Why(
            f"process {pid} has rights that you lack, so you may not trace it (SYS_PTRACE is missing)",
            f"{docker}run tokentrace with the same rights as the server",
        )
    if Path(f"/proc/{pid}").stat().st_uid != theirs.uid:
        return Why(f"process {pid} has forbidden to be looked into (prctl PR_SET_DUMPABLE 0)", PLUGIN_FIX)
    return Why(f"the system does not allow you to trace process {pid}", f"grant SYS_PTRACE, or {PLUGIN_FIX}")


def yama_scope() -> int:
    """kernel.yama.ptrace_scope; 0 where there is no Yama."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _confined(process: ServerProcess) -> Why | None:
    if proc.status(process.pid).seccomp == 1:
        return Why(f"process {process.pid} is confined by seccomp's strict mode", PLUGIN_FIX)
    return None


def _untried(process: ServerProcess) -> Why | None:
    fix = f"{PLUGIN_FIX}; or try it with --method borrow"
    try:
        if Path("/sys/fs/selinux/enforce").read_text(encoding="ascii").strip() == "1":
            return Why("SELinux is enforcing, where putting code into a process is untried", fix)
    except OSError:
        pass
    if any(_CUDA.search(one.path) for one in proc.maps(process.pid)):
        return Why(f"process {process.pid} drives a GPU, where putting code into a process is untried", fix)
    return None
