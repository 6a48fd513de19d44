"""The way of last resort, --method gdb: a debugger stops the whole process and leaves a call for its main thread.

The call (Py_AddPendingCall with PyRun_SimpleString, which has the right shape) waits for the point where the main
thread next runs Python anyway, so the debugger itself needs no lock of the interpreter. Stops every request for the
time that gdb needs, 0.2 s to 2 s; the string stays in the process's memory.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tokentrace.attach import image
from tokentrace.attach.why import Why
from tokentrace.host import proc

#: There is no gdb on the search path.
MISSING = Why("gdb is not installed here", "install gdb, or use --method borrow")
_MMAP_LIBRARY = re.compile(r"(libc\.so\.6|libc-[\d.]+\.so)")
_LIMIT_S = 30.0
_SAID = re.compile(r"^tokentrace (-?\d+)$", re.MULTILINE)


class DebuggerError(Exception):
    """gdb is not there, or could not do it. `.fix` says what else would help."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


def found() -> bool:
    """Whether there is a gdb on the search path."""
    return shutil.which("gdb") is not None


def run_string(pid: int, code: str) -> int:
    """Leave `code` for the main thread to run. Gives the nanoseconds that gdb took. Raises DebuggerError."""
    gdb = shutil.which("gdb")
    if gdb is None:
        raise DebuggerError(*MISSING)
    try:
        mapped = proc.maps(pid)
        python = image.interpreter_files(mapped, proc.executable(pid))
        _, names = image.locate(pid, python, ("Py_AddPendingCall", "PyRun_SimpleString"))
        libraries = [one.path for one in mapped if _MMAP_LIBRARY.fullmatch(one.path.rpartition("/")[2])]
        _, system = image.locate(pid, list(dict.fromkeys(libraries)), ("mmap",))
    except (image.ImageError, OSError) as error:
        raise DebuggerError(f"its functions cannot be found: {error}") from error
    with tempfile.TemporaryDirectory(prefix="tokentrace-gdb-") as folder:  # mode 0700
        text = code.encode() + b"\0"
        string = Path(folder) / "string"
        string.write_bytes(text)
        script = Path(folder) / "script"
        room = f"0, {len(text)}, 3, 0x22, -1, 0"  # read and write, private and anonymous
        call, run = names["Py_AddPendingCall"], names["PyRun_SimpleString"]
        lines = [
            "set pagination off",
            "set confirm off",
            "set unwindonsignal on",
            f"set $at = ((long (*)(long, long, int, int, int, long)) {system['mmap']:#x})({room})",
            f"restore {string} binary $at",
            f"set $done = ((int (*)(long, long)) {call:#x})({run:#x}, $at)",
            'printf "tokentrace %d\\n", $done',
            "detach",
            "quit",
        ]
        script.write_text("\n".join(lines), encoding="utf-8")
        begun = time.perf_counter_ns()
        # Without the libraries' symbols, which would take gdb long to read; signals go to the process as they come.
        command = [gdb, "-nx", "-batch", "-iex", "set auto-solib-add off", "-p", str(pid), "-x", str(script)]
        environment = {**os.environ, "DEBUGINFOD_URLS": ""}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise DebuggerError(f"gdb did not come to an end within {_LIMIT_S:.0f} s") from None
        took = time.perf_counter_ns() - begun
    said = _SAID.search(done.stdout)
    if said is None:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        raise DebuggerError(f"gdb could not do it: {last[0] if last else 'it said nothing'}")
    if int(said[1]) != 0:
        raise DebuggerError("its interpreter takes no more calls at the moment", "try again")
    return took
