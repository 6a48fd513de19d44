"""The machine as one process sees it: its environment, its root folder, its mounts. Everything is read, nothing kept.

For this process the root is /. For a server in a container it is /proc/<pid>/root, and its environment and mounts are
read from /proc as proc(5) describes; that needs the rights of a debugger, and without them the view says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokentrace.probes._caches import entries_of

#: Files of /proc and /sys are small; what is longer is not what it claims to be.
MAX_BYTES = 4 * 2**20
#: From its environment on, a process may write its title. What is left then has few variables.
_FEW = 3


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
    errors: dict[str, str] = field(default_factory=dict)  # path -> why it could not be read

    @property
    def whose(self) -> str:
        """For sentences: "this process" or "the server (process 12)"."""
        return f"the server (process {self.pid})" if self.pid else "this process"

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
        command = tuple(part.decode(errors="replace") for part in _bytes(folder / "cmdline").split(b"\0") if part)
    except OSError:
        return View(os.environ, pid=pid, hidden=f"process {pid} is not there", fix="give the pid of a live server")
    try:
        environ = parse_environ(_bytes(folder / "environ"))
        root = str(folder / "root")
        Path(root).stat()
        next(Path(root).iterdir(), None)
    except OSError as error:
        why = f"process {pid} may not be looked into: {error.strerror}"
        return View(os.environ, proc=str(folder), pid=pid, command=command, hidden=why, fix=fix)
    same = _same_root(Path(root))
    where = "/" if same else root
    if len(environ) < _FEW:
        why = f"process {pid} has written its title over its environment"
        return View(os.environ, where, str(folder), pid, command, why, "look at the variables in its start script")
    return View(environ, where, str(folder), pid, command)


def _same_root(root: Path) -> bool:
    try:
        return root.samefile("/") and str(root.readlink()) == "/"
    except OSError:
        return False


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
