"""Puts the agent into one process and gives the connection to it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokentrace.agent_client import AgentClient
from tokentrace.attach import payload, private
from tokentrace.attach.found import ServerProcess
from tokentrace.attach.obstacles import PLUGIN_FIX, START_AGAIN
from tokentrace.errors import AttachError, EngineError
from tokentrace.host import proc

#: How the string gets to run: a borrowed thread, Python's own door (3.14), or a debugger.
Way = Literal["borrow", "remote_exec", "gdb"]
#: Until the string has run; a contended interpreter takes some of it, a stalled one all.
RUN_S = 10.0
#: A process that is idle runs a remote_exec script only when its main thread next runs Python.
REMOTE_S = 2.0
_KEPT_S = 24 * 3600.0
#: From then on until the agent listens.
LISTEN_S = 10.0


@dataclass(frozen=True, slots=True)
class Injected:
    """The agent in one process. `held_ns`: how long one of its threads was stopped, 0 where nobody measured it."""

    agent: AgentClient
    way: Way
    socket: Path
    held_ns: int = 0
    ran_ns: int = 0
    note: str = ""


class _Failed(Exception):
    """One way did not work. `again`: another way may."""

    def __init__(self, reason: str, fix: str = "", *, again: bool = True) -> None:
        super().__init__(reason)
        self.fix, self.again = fix, again


def ways_for(process: ServerProcess, method: str) -> list[Way]:
    """What is tried, in this order. gdb only where it was asked for: it stops the whole process for up to 2 s."""
    if method == "gdb":
        return ["gdb"]
    if method == "borrow":
        return ["borrow"]
    return ["remote_exec", "borrow"] if _minor(process.python) >= 14 else ["borrow"]


def put_agent(process: ServerProcess, method: str = "auto") -> Injected:
    """Put the agent into `process`; it leaves when the connection ends. Raises AttachError.

    Ask `obstacles.obstacle` first. `method`: auto, borrow or gdb.
    """
    last: _Failed | None = None
    for way in ways_for(process, method):
        try:
            return _put(process, way)
        except _Failed as failed:
            last = failed
            if not failed.again:
                break
    assert last is not None
    fix = last.fix or (_GDB_FIX if method == "gdb" else PLUGIN_FIX)
    raise AttachError(f"process {process.pid}: {last}", fix=fix) from last


def _put(process: ServerProcess, way: Way) -> Injected:
    compiled = process.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        return _attempt(process, way, compiled=compiled)
    except _OtherBytecode:
        return _attempt(process, way, compiled=False)


class _OtherBytecode(Exception):
    """The target's interpreter is of another version than it seemed."""


def _attempt(process: ServerProcess, way: Way, *, compiled: bool) -> Injected:
    folder = private.folder_for(process.pid)
    name = f"agent-{process.pid}-{secrets.token_hex(4)}"
    socket, permit = folder.path / f"{name}.sock", folder.path / f"{name}.permit"
    limit = REMOTE_S if way == "remote_exec" else RUN_S
    string = payload.string_for(
        f"{folder.seen_as}/{name}.sock",
        f"{folder.seen_as}/{name}.permit",
        time.time() + limit + LISTEN_S,
        compiled=compiled,
    )
    private.audit(process.pid, process.title, way, payload.code_hash())
    with private.permit(permit) as come:
        told = _WAYS[way](process, string, permit, limit)
        agent = _listening(process, socket, permit, limit if way == "remote_exec" else LISTEN_S)
        come()
    left = told.get("left_bytes", 0)
    note = f"{left} bytes of memory in process {process.pid} could not be given back" if left else ""
    return Injected(agent, way, socket, told.get("held_ns", 0), told.get("ran_ns", 0), note)


def _listening(process: ServerProcess, socket: Path, permit: Path, limit_s: float) -> AgentClient:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if socket.exists():
            try:
                return AgentClient.connect(socket, max(1.0, deadline - time.monotonic()))
            except EngineError as error:
                raise _Failed(str(error), error.fix, again=False) from error
        told = permit.read_text(encoding="utf-8", errors="replace")
        if told == "other bytecode":
            raise _OtherBytecode
        if told:
            raise _Failed(f"the agent did not start there: {told}", again=False)
        if proc.has_ended(process.pid):
            raise _Failed("it has ended", START_AGAIN, again=False)
        time.sleep(0.002)
    raise _Failed(f"the agent did not start there within {limit_s:.0f} s")


def _borrow(process: ServerProcess, string: str, permit: Path, limit_s: float) -> dict[str, Any]:
    """On a borrowed thread. The tracing is done by a small process of its own, see `inject_child`."""
    pid = process.pid
    try:
        request = {"pid": pid, "started": proc.start_ticks(pid), "executable": proc.executable(pid), "code": string}
    except OSError:
        raise _Failed("it has ended", START_AGAIN, again=False) from None
    root = str(Path(__file__).resolve().parents[2])
    boot = "import sys; sys.path.insert(0, sys.argv[1]); from tokentrace.attach.inject_child import main; main()"
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", boot, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    text, _ = child.communicate(json.dumps({**request, "timeout_s": limit_s}).encode())
    answer: dict[str, Any] = json.loads(text) if text else {"ok": False, "kind": "", "message": "the helper failed"}
    if answer["ok"]:
        return answer
    raise _Failed(str(answer["message"]), _FIXES.get(str(answer["kind"]), ""), again=answer["kind"] == "busy")


_GDB_FIX = "use --method borrow: gdb's way runs on the main thread, and one that waits for a request runs no Python"
_FIXES = {
    "busy": f"try again, or use --method gdb, which stops the process for a moment; or {PLUGIN_FIX}",
    "late": f"it may be stalled: look at the server's log; or {PLUGIN_FIX}",
    "gone": START_AGAIN,
}


def _remote_exec(process: ServerProcess, string: str, permit: Path, limit_s: float) -> dict[str, Any]:
    """Python's own door (sys.remote_exec, 3.14; PEP 768), opened by an interpreter of the same minor version.

    Written by its documentation: where this was tested there was no Python 3.14.
    """
    _sweep(permit.parent)
    script = permit.with_suffix(".py")
    descriptor = os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(string)
    seen_as = str(script).removeprefix(f"/proc/{process.pid}/root")
    code = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
    program = f"/proc/{process.pid}/exe"
    if _minor(process.python) == sys.version_info.minor:
        program = sys.executable
    done = subprocess.run(
        [program, "-I", "-S", "-c", code, str(process.pid), seen_as], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        script.unlink()
        last = done.stderr.strip().splitlines()[-1:] or ["no reason was given"]
        raise _Failed(f"sys.remote_exec failed: {last[0]}")
    # The file has to stay until the process has read it; an idle one does that much later.
    deadline = time.monotonic() + limit_s
    socket = permit.with_suffix(".sock")
    while time.monotonic() < deadline and not socket.exists() and not permit.stat().st_size:
        time.sleep(0.005)
    if socket.exists() or permit.stat().st_size:
        script.unlink()
        return {}
    script.write_text("", encoding="utf-8")
    raise _Failed("its main thread runs no Python at the moment")


def _sweep(folder: Path) -> None:
    """Emptied scripts that nobody can be about to read any more."""
    for one in folder.glob("agent-*.py"):
        with contextlib.suppress(OSError):
            state = one.stat()
            if not state.st_size and time.time() - state.st_mtime > _KEPT_S:
                one.unlink()


def _gdb(process: ServerProcess, string: str, permit: Path, limit_s: float) -> dict[str, Any]:
    from tokentrace.attach.debugger import DebuggerError, run_string

    try:
        return {"held_ns": run_string(process.pid, string)}
    except DebuggerError as error:
        raise _Failed(str(error), error.fix, again=False) from error


_WAYS: dict[Way, Callable[[ServerProcess, str, Path, float], dict[str, Any]]] = {
    "borrow": _borrow,
    "remote_exec": _remote_exec,
    "gdb": _gdb,
}


def _minor(version: str) -> int:
    parts = version.rstrip("t").split(".")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
