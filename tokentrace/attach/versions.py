"""Which Python a process runs, and which version of its engine is installed there. Reads files only."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from tokentrace.host import proc

_LIBRARY = re.compile(r"/libpython(3\.\d+)(t?)\.so")
_EXTENSION = re.compile(r"/lib-dynload/[^/]+\.cpython-3(\d+)(t?)-")
_PROGRAM = re.compile(r"/python(3\.\d+)(t?)$")
_SITE = re.compile(r"(/.*/(?:site|dist)-packages)/")
_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_NAMES = {"vllm": ("vllm-", "vllm_"), "tokentrace": ("tokentrace-",)}


def python_of(pid: int, executable: str) -> str:
    """Such as "3.11" or "3.13t" (free-threaded); "" when it runs no Python that we know. Raises OSError."""
    mapped = proc.maps(pid)
    for pattern in (_LIBRARY, _EXTENSION):
        for one in mapped:
            found = pattern.search(one.path)
            if found:
                number = found[1] if "." in found[1] else f"3.{found[1]}"
                return number + found[2]
    found = _PROGRAM.search(executable)
    return found[1] + found[2] if found else ""


def installed(pid: int, engine: str) -> str:
    """The engine's version by the metadata of the distribution in the process's environment; "" unknown."""
    with contextlib.suppress(OSError):
        for site in _sites(pid):
            for start in _NAMES.get(engine, ()):
                for folder in sorted(proc.inside(pid, site).glob(f"{start}*.dist-info")):
                    found = _VERSION.search(_text(folder / "METADATA"))
                    if found:
                        return found[1]
    return ""


def _sites(pid: int) -> list[str]:
    """Package folders from which the process has loaded something."""
    found = (_SITE.match(one.path) for one in proc.maps(pid))
    return list(dict.fromkeys(one[1] for one in found if one))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
