"""Which torch a process uses, of which build, and which others lie about; read from its files, never imported.

torch writes `torch/version.py` when it is built: __version__ ("2.13.0+cu130"), cuda, hip and xpu (a version or None).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokentrace.doctor.machine.view import View

_ASSIGNED = re.compile(r"^(__version__|cuda|hip|xpu)\b[^=\n]*=\s*(?:'([^']*)'|\"([^\"]*)\"|None)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Torch:
    """`cuda`, `hip`, `xpu` are versions, "" when it was not built for that."""

    version: str
    cuda: str
    hip: str
    xpu: str
    folder: str  # the site-packages folder, as the process sees it

    @property
    def build(self) -> str:
        """In words: for CUDA 13.0, for ROCm 7.1, for processors only."""
        if self.cuda:
            return f"for CUDA {self.cuda}"
        if self.hip:
            return f"for ROCm {'.'.join(self.hip.split('.')[:2])}"
        return f"for Intel GPUs ({self.xpu})" if self.xpu else "for processors only"

    @property
    def vendor(self) -> str:
        return "NVIDIA" if self.cuda else "AMD" if self.hip else "Intel" if self.xpu else ""


def in_folders(view: View, folders: Sequence[str]) -> list[Torch]:
    """The torch of each folder that has one, in the order in which Python would find them."""
    found = []
    real: set[Path] = set()
    for folder in folders:
        text = view.text(f"{folder}/torch/version.py") if folder else ""
        place = view.path(folder).resolve()  # lib64 is usually another name of lib
        if text and place not in real:
            real.add(place)
            facts = {m[1]: m[2] or m[3] or "" for m in _ASSIGNED.finditer(text)}
            found.append(
                Torch(
                    facts.get("__version__", ""),
                    facts.get("cuda", ""),
                    facts.get("hip", ""),
                    facts.get("xpu", ""),
                    folder,
                )
            )
    return found


def folders_of(view: View) -> list[str]:
    """Folders that the process imports from: where torch is loaded already, that one first.

    For this process sys.path. For another one: the folders that libtorch is mapped from, PYTHONPATH, and the
    site-packages of the interpreter that its command names.
    """
    if not view.pid:
        return [str(Path(p).absolute()) for p in sys.path if p]
    mapped = re.findall(r"(/\S.*?)/torch/lib/libtorch", view.own("maps"))
    folders = [*mapped, *view.environ.get("PYTHONPATH", "").split(":")]
    if view.command:
        program = Path(view.command[0])
        names = [f"{base}/{name}" for base in ("lib", "lib64") for name in _python_folders(view, program, base)]
        folders += [str(program.parent.parent / name) for name in names]
    return list(dict.fromkeys(f for f in folders if f.startswith("/")))


def _python_folders(view: View, program: Path, base: str) -> list[str]:
    if not program.is_absolute():
        return []
    names = view.names(program.parent.parent / base)
    return [f"{n}/{kind}" for n in names if re.fullmatch(r"python3(\.\d+)?", n)
            for kind in ("site-packages", "dist-packages")]  # fmt: skip


def without_torch(view: View) -> str:
    """Why the compilers' caches are no matter to a server, "" when they are: llama.cpp, a proxy, a web server."""
    if not view.pid or view.hidden or in_folders(view, folders_of(view)):
        return ""
    return f"{view.whose} uses no torch, as far as can be seen"


def loaded_version(view: View, distribution: str, folders: Sequence[str]) -> str:
    """Version of an installed distribution from the name of its .dist-info folder, "" when it is not there."""
    wanted = re.compile(rf"{distribution.replace('-', '[-_.]')}-(\d[^-]*)\.dist-info", re.IGNORECASE)
    for folder in folders:
        for name in view.names(folder):
            if match := wanted.fullmatch(name):
                return match[1]
    return ""


#: Least driver for a CUDA major version on Linux: "minor version compatibility" in the CUDA compatibility guide.
LEAST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}


def numbers(version: str) -> tuple[int, ...]:
    """(550, 54, 15) for 550.54.15; () when there is no number."""
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def driver_too_old(cuda: str, driver: str) -> str:
    """The least driver that this CUDA needs when the given one is older, else "". Unknown majors: ""."""
    wanted, got = numbers(cuda), numbers(driver)
    least = LEAST_DRIVER.get(wanted[0]) if wanted else None
    if least is None or not got or got >= least:
        return ""
    return ".".join(f"{n:02d}" if i else str(n) for i, n in enumerate(least))
