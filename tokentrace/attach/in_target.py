"""What runs in the target first: serves the agent's modules from memory and starts the agent.

This file's text is sent there as it is, followed by a call of `arrive`; it knows nothing of tokentrace but what it is
handed. Standard library only, any Python from 3.10. It prints nothing and raises nothing.
"""

from __future__ import annotations

import binascii
import contextlib
import importlib
import importlib.util
import marshal
import sys
import time
import zlib
from pathlib import Path
from typing import Any


class Sources:
    """Finder and loader (importlib) of the modules that were sent, under their own package name and no other."""

    def __init__(self, package: str, modules: dict[str, Any], compiled: bool) -> None:
        self.package, self.modules, self.compiled = package, modules, compiled

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.modules:
            return None
        loader: Any = self
        return importlib.util.spec_from_loader(name, loader, is_package=name == self.package)

    def create_module(self, spec: Any) -> Any:
        return None

    def exec_module(self, module: Any) -> None:
        held = self.modules[module.__name__]
        if self.compiled:
            exec(marshal.loads(held), module.__dict__)
        else:
            exec(compile(held, f"<{module.__name__}>", "exec", dont_inherit=True), module.__dict__)


def arrive(package: str, socket_path: str, permit: str, deadline: float, magic: str, packed: str) -> None:
    """`permit` is a file that exists and is locked by who asks for this, as long as it is still wanted; `deadline` unix
    seconds, `magic` the bytecode's version in hex or "" for sources, `packed` the modules (marshal, zlib, base64)."""
    try:
        asked = open(permit, "r+b", buffering=0)  # noqa: SIM115 - as long as this thread lives
    except OSError:
        return
    with asked:
        if time.time() <= deadline and wanted(asked, permit):
            start(package, socket_path, permit, magic, packed)
            stay(asked, permit, deadline, socket_path)


def wanted(asked: Any, permit: str) -> bool:
    """Whether somebody still holds the lock; when that one was killed, its file is removed."""
    import fcntl

    try:
        fcntl.flock(asked, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return Path(permit).exists()
    with contextlib.suppress(OSError):
        Path(permit).unlink()
    return False


def stay(asked: Any, permit: str, deadline: float, socket_path: str) -> None:
    """Until the one who asked has come, or has gone without: then come and go in its place, and the agent leaves."""
    while time.time() <= deadline and wanted(asked, permit):
        time.sleep(0.02)
    asked.seek(0)
    if asked.read() == b"":
        import socket

        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
            one.connect(socket_path)


def start(package: str, socket_path: str, permit: str, magic: str, packed: str) -> None:
    """What goes wrong is written into `permit`."""
    try:
        if magic and importlib.util.MAGIC_NUMBER.hex() != magic:
            raise RuntimeError("other bytecode")
        if package in sys.modules:
            raise RuntimeError("another tokentrace has put its agent into this process")
        finder: Any = Sources(package, marshal.loads(zlib.decompress(binascii.a2b_base64(packed))), bool(magic))
        sys.meta_path.append(finder)
        try:
            importlib.import_module(package + ".leave").start_guest(socket_path, finder)
        except BaseException:
            sys.meta_path.remove(finder)
            for name in [one for one in sys.modules if one.partition(".")[0] == package]:
                del sys.modules[name]
            raise
    except BaseException as error:  # noqa: BLE001 - nothing of ours may reach the host
        told = f"{error}" if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            Path(permit).write_text(told, encoding="utf-8")
