"""The machine as one process sees it: its environment, its root folder, its mounts. Everything is read, nothing kept.

For this process the root is /. For a server in a container it is /proc/<pid>/root, and its environment and mounts are
read from /proc as proc(5) describes; that needs the rights of a debugger, and without them the view says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokentrace.host.proc import other_root
from tokentrace.probes._caches import entries_of

#: Files of /proc and /sys are small; what is longer is not what it claims to be.
MAX_BYTES = 4 * 2**20
#: How far up a worker's parents are looked at for an environment; vLLM's worker is two below the server.
_PARENTS = 4


@dataclass(frozen=True, slots=True)
class View:
    """`hidden` says why the environment is not that process's own; "" when it is."""

    environ: Mapping[str, str]
    root: str = "/"
    proc: str = "/proc/self"  # the process's own folder, as seen from here
    pid: int = 0  # 0: this process
    command: tuple[str, ...] = ()
    hidden: str = ""
    fix: str = ""
    environ_of: int = 0  # the parent whose variables these are, where the process has written over its own
    errors: dict[str, str] = field(default_factory=dict)  # path -> why it could not be read

    @property
    def whose(self) -> str:
        """For sentences: "this process" or "the server (process 12)"."""
        if not self.pid:
            return "this process"
        parents = f", with the variables of its parent {self.environ_of}" if self.environ_of else ""
        return f"the server (process {self.pid}{parents})"

    @property
    def mounts(self) -> str:
        return f"{self.proc}/mountinfo"

    def path(self, absolute: str | Path) -> Path:
        """Where a path of that process lies for us."""
        return Path(absolute) if self.root == "/" else Path(self.root, str(absolute).lstrip("/"))

    def text(self, absolute: str | Path, limit: int = MAX_BYTES) -> str:
        """A file's text, "" when it is not there or not to be read (the reason is then in `errors`)."""
        return _text(self.path(absolute), self.errors, limit)

    def own(self, name: str) -> str:
        """A file of the process's own folder in /proc, "" when it cannot be read."""
        return _text(Path(self.proc, name), self.errors, MAX_BYTES)

    def exists(self, absolute: str | Path) -> bool:
        try:
            return self.path(absolute).exists()
        except OSError as error:
            self.errors[str(absolute)] = error.strerror or str(error)
            return False

    def names(self, absolute: str | Path) -> list[str]:
        """Names in a folder, sorted; [] when it is not there or not to be read."""
        try:
            with entries_of(str(self.path(absolute))) as (_, entries):
                return sorted(entry.name for entry in entries)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self.errors[str(absolute)] = error.strerror or str(error)
            return []


def here(environ: Mapping[str, str] | None = None) -> View:
    """This process."""
    return View(os.environ if environ is None else environ)


def of_process(pid: int, proc: str = "/proc") -> View:
    """Another process. Where it may not be looked into, `hidden` says why and the rest is this process's view."""
    folder = Path(proc, str(pid))
    fix = "run tokentrace doctor as the server's user, or as root"
    try:
        command = _command(folder)
    except OSError:
        return View(os.environ, pid=pid, hidden=f"process {pid} is not there", fix="give the pid of a live server")
    try:
        raw = _bytes(folder / "environ")
        root = str(folder / "root")
        Path(root).stat()
        next(Path(root).iterdir(), None)
    except OSError as error:
        why = f"process {pid} may not be looked into: {error.strerror}"
        return View(os.environ, proc=str(folder), pid=pid, command=command, hidden=why, fix=fix)
    where = root if other_root(pid, proc) else "/"
    if not overwritten(raw):
        return View(parse_environ(raw), where, str(folder), pid, command)
    parent, environ = _parents_environ(folder, Path(proc))
    if parent:
        # A title says nothing of flags; the parent's command does.
        command = _command(Path(proc, str(parent))) if len(command) == 1 else command
        return View(environ, where, str(folder), pid, command, environ_of=parent)
    why = f"process {pid} has written its title over its environment"
    return View(os.environ, where, str(folder), pid, command, why, "give the pid of the process that started it")


def _command(folder: Path) -> tuple[str, ...]:
    return tuple(part.decode(errors="replace") for part in _bytes(folder / "cmdline").split(b"\0") if part)


def overwritten(raw: bytes) -> bool:
    """Has the process written its title over the beginning of its variables, as setproctitle does?"""
    return any(b"=" not in part for part in raw.rstrip(b"\0").split(b"\0"))


def _parents_environ(folder: Path, proc: Path) -> tuple[int, dict[str, str]]:
    """(pid, variables) of the nearest parent of the same user that has kept its own; (0, {}) when there is none."""
    owner = folder.stat().st_uid
    for _ in range(_PARENTS):
        try:
            match = re.search(rb"^PPid:\s+(\d+)", _bytes(folder / "status"), re.MULTILINE)
            folder = proc / match[1].decode() if match else proc / "0"
            if folder.name in ("0", "1") or folder.stat().st_uid != owner:
                break
            raw = _bytes(folder / "environ")
        except OSError:
            break
        if not overwritten(raw):
            return int(folder.name), parse_environ(raw)
    return 0, {}


def parse_environ(raw: bytes) -> dict[str, str]:
    """NAME=value parts between zero bytes; what has another form is left out."""
    pairs = (part.partition(b"=") for part in raw.split(b"\0"))
    return {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, equals, value in pairs
        if equals and name
    }


def _bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The beginning of a file, without touching its access time where that is allowed. Raises OSError."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:
        descriptor = os.open(path, flags)  # only the owner may ask for the other
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit) or b""


def _text(path: Path, errors: dict[str, str], limit: int) -> str:
    try:
        return _bytes(path, limit).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        errors[str(path)] = error.strerror or str(error)
        return ""
