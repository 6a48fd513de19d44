"""The folder of mode 0700 in which sockets, locks and the audit file of attach lie.

$XDG_RUNTIME_DIR/tokentrace, else tokentrace-UID in the folder for temporary files. A process that sees other files
than we do (a container) gets one in its own /tmp, which we reach through /proc/PID/root.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import getpass
import os
import re
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokentrace.errors import AttachError
from tokentrace.host import proc

AUDIT = "audit.log"
END_FIRST = "end that one first"
#: A socket's path may have 107 bytes (unix(7)); a name of ours takes up to 40 of them.
_LONGEST = 65
_MOST_AUDIT_BYTES = 1 << 20
#: Files that are named after a process.
_LEFT = re.compile(r"(?:agent|attach)-(\d+)(?:-[0-9a-f]+)?\.(?:sock|permit|lock)")
#: In a permit: we have come.
_COME = b"come"


@dataclass(frozen=True, slots=True)
class Folder:
    """A private folder: `path` as we reach it, `seen_as` as the target process names it."""

    path: Path
    seen_as: str


def own_folder() -> Path:
    """Our private folder, made if need be. Raises AttachError when it cannot be trusted."""
    return _checked(_own_place())


def _own_place() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and Path(runtime).is_dir() and len(runtime) <= _LONGEST - len("/tokentrace"):
        return Path(runtime) / "tokentrace"
    temporary = tempfile.gettempdir()
    if len(temporary) > _LONGEST - len("/tokentrace-1234567890"):
        temporary = "/tmp"
    return Path(temporary) / f"tokentrace-{os.geteuid()}"


def folder_for(pid: int) -> Folder:
    """A private folder that we and the process can both reach. Raises AttachError."""
    if not proc.other_root(pid):
        path = own_folder()
        return Folder(path, str(path))
    seen_as = f"/tmp/tokentrace-{os.geteuid()}"
    return Folder(_checked(proc.inside(pid, seen_as)), seen_as)


def _checked(folder: Path) -> Path:
    """`folder`, made with mode 0700 or found to be a folder of ours that nobody else may enter."""
    fix = f"remove {folder}, or set XDG_RUNTIME_DIR to a folder of yours"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except FileExistsError:
        raise AttachError(f"{folder} is no folder", fix=fix) from None
    except OSError as error:
        raise AttachError(f"{folder} cannot be made: {error.strerror}", fix=fix) from error
    if not stat.S_ISDIR(state.st_mode):
        raise AttachError(f"{folder} is a link or no folder, and may lead anywhere", fix=fix)
    if state.st_uid != os.geteuid():
        raise AttachError(f"{folder} belongs to another user", fix=fix)
    if stat.S_IMODE(state.st_mode) & 0o077:
        raise AttachError(f"{folder} is open to other users", fix=f"chmod 700 {folder}")
    return folder


@contextmanager
def only_one(pid: int) -> Iterator[None]:
    """Hold the lock on attaching to process `pid`. Raises AttachError while another tokentrace holds it.

    The kernel lets go of it when we end, in whatever manner.
    """
    folder = own_folder()
    _sweep(folder)
    path = folder / f"attach-{pid}.lock"
    descriptor = _locked(path, pid)
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


@contextmanager
def permit(path: Path) -> Iterator[Callable[[], None]]:
    """The file that lets code in the target go on: while it exists and we hold its lock, which the kernel takes from us
    when we end, in whatever manner. What it gives is called once we have come; without that the code there goes again.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            break
        os.close(descriptor)  # another tokentrace has just swept it away

    def come() -> None:
        os.pwrite(descriptor, _COME, 0)

    try:
        yield come
    finally:
        path.unlink(missing_ok=True)  # code that still waits will not do anything any more
        os.close(descriptor)


def taken(pid: int) -> AttachError | None:
    """What `only_one` would raise, as far as our folder tells; None if it would not. Changes nothing."""
    path = _own_place() / f"attach-{pid}.lock"
    try:
        return None if _free(path) else _taken(path.read_text(encoding="ascii", errors="replace"), pid)
    except OSError:
        return None


def _taken(held_by: str, pid: int) -> AttachError:
    other = f"another tokentrace (process {held_by.strip() or 'unknown'})"
    return AttachError(f"{other} is attached to process {pid}", fix=END_FIRST)


def _locked(path: Path, pid: int) -> int:
    """The open, locked file at `path`: not one that its last holder has just removed."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        except BlockingIOError:
            held_by = os.read(descriptor, 20).decode("ascii", "replace")
            os.close(descriptor)
            raise _taken(held_by, pid) from None
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed have left here. What cannot be told for sure stays: a container that
    shares the folder has pids of its own."""
    for path in folder.glob("a*-*.*"):
        name = _LEFT.fullmatch(path.name)
        if name is None or (path.suffix != ".permit" and not proc.has_ended(int(name[1]))):
            continue
        with contextlib.suppress(OSError):
            if path.suffix in (".lock", ".permit") and not _free(path):
                continue
            if path.suffix == ".sock" and _listens(path):
                continue
            path.unlink()


def _free(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True


def audit(pid: int, title: str, method: str, code_hash: str) -> None:
    """Note in our private folder who put which code into which process, and when."""
    path = own_folder() / AUDIT
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = (
        f"{now} uid={os.geteuid()} user={_user()} pid={pid} title={title[:60]!r} how={method} code=sha256:{code_hash}\n"
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        if os.fstat(descriptor).st_size > _MOST_AUDIT_BYTES:
            path.replace(path.with_suffix(".log.old"))
            os.close(descriptor)
            descriptor = os.open(path, flags, 0o600)
        os.write(descriptor, line.encode("utf-8", "replace"))
    finally:
        os.close(descriptor)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
