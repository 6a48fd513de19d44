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
    """`permit` is a file that exists as long as this is still wanted, `deadline` unix seconds, `magic` the bytecode's
    version in hex or "" for sources, `packed` the modules (marshal, zlib, base64)."""
    try:
        if time.time() > deadline or not Path(permit).exists():
            return
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
