"""Layer 2: the compilers that compilers call. Triton and inductor need a C compiler, FlashInfer and DeepGEMM nvcc."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable

from tokentrace.doctor.check import Check, Result, Situation, ok, skip, unknown, warn
from tokentrace.doctor.machine import hardware, torches
from tokentrace.doctor.machine.situation import in_the_servers_process
from tokentrace.doctor.machine.view import View
from tokentrace.wording import listed

_VERSION_SECONDS = 1.0
#: Distributions whose kernels are compiled by nvcc on first use.
_NVCC_USERS = ("flashinfer-python", "deep-gemm")


def look(situation: Situation, view: View) -> Iterable[Result]:
    """TT205."""
    if view.hidden:
        return [unknown("TT205", f"the server's PATH cannot be looked at: {view.hidden}", view.fix)]
    path = view.environ.get("PATH", os.defpath)
    folders = torches.folders_of(view)
    torch = next(iter(torches.in_folders(view, folders)), None)
    if torch is None:
        return [skip("TT205", "there is no torch here, so nothing is compiled")]
    there = hardware.look(view)
    compiler = view.environ.get("CC") or view.environ.get("CXX") or ""
    found = find(view, compiler, path) if compiler else next(
        (p for name in ("gcc", "cc", "g++", "clang", "clang++") if (p := find(view, name, path))), "")  # fmt: skip
    nvcc = find(view, "nvcc", path) or _in_toolkit(view, "nvcc")
    ninja = find(view, "ninja", path)
    bundled = _bundled_ptxas(view, folders)
    lines = [_line("C compiler", found, view), _line("nvcc", nvcc, view), f"ptxas: {bundled or 'none'}",
             f"ninja: {ninja or 'none'}"]  # fmt: skip
    gpu = bool(there.cards) and bool(torch.vendor)
    if not found:
        wanted = f"CC names {compiler!r}, which is not there" if compiler else "there is no C compiler"
        fix = "sudo apt-get install g++"
        if gpu:
            return [warn("TT205", f"{wanted}: Triton cannot start a kernel without one", fix, *lines)]
        return [Result("TT205", "ok", f"{wanted}; only compiled models need one (--compile)", fix, tuple(lines))]
    users = [name for name in _NVCC_USERS if gpu and torches.loaded_version(view, name, folders)]
    if users and not nvcc and torch.cuda:
        return [
            warn("TT205", f"there is no nvcc, which {listed(users)} calls for kernels that come uncompiled",
                 f"install the CUDA {torch.cuda} toolkit and export CUDA_HOME=/usr/local/cuda", *lines)
        ]  # fmt: skip
    if users and not ninja:
        return [warn("TT205", f"there is no ninja, which {listed(users)} builds with", "pip install ninja", *lines)]
    return [ok("TT205", f"a C compiler is there{': ' + found if found else ''}", *lines)]


def find(view: View, name: str, path: str) -> str:
    """Where that process's PATH has a program, "" nowhere."""
    if view.root == "/":
        return shutil.which(name.split()[0], path=path) or ""
    for folder in path.split(":"):
        candidate = f"{folder}/{name.split()[0]}"
        if folder and view.exists(candidate):
            return candidate
    return ""


def _in_toolkit(view: View, name: str) -> str:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if (home := view.environ.get(variable)) and view.exists(f"{home}/bin/{name}"):
            return f"{home}/bin/{name}"
    return f"/usr/local/cuda/bin/{name}" if view.exists(f"/usr/local/cuda/bin/{name}") else ""


def _bundled_ptxas(view: View, folders: list[str]) -> str:
    """Triton carries its own assembler."""
    if given := view.environ.get("TRITON_PTXAS_PATH"):
        return given + ("" if view.exists(given) else " (TRITON_PTXAS_PATH, not there)")
    for folder in folders:
        candidate = f"{folder}/triton/backends/nvidia/bin/ptxas"
        if view.exists(candidate):
            return candidate
    return ""


def _line(what: str, program: str, view: View) -> str:
    if not program:
        return f"{what}: none"
    version = version_of(program) if view.root == "/" else ""
    return f"{what}: {program}{' ' + version if version else ''}"


def version_of(program: str, *arguments: str) -> str:
    """The first number with a dot that `program --version` prints, "" when it says none in time."""
    try:
        said = subprocess.run(
            [program, *(arguments or ("--version",))], capture_output=True, timeout=_VERSION_SECONDS, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"\d+\.\d+[\d.]*", (said.stdout + said.stderr).decode(errors="replace"))
    return match[0] if match else ""


CHECKS = (
    Check(
        "TT205", "compilers",
        "Triton builds its launcher with a C compiler, inductor its C++ kernels; FlashInfer and DeepGEMM call nvcc and "
        "ninja for kernels that come uncompiled.",
        "PATH, CC, CXX, CUDA_HOME of the serving process; versions as the programs print them",
        "Install g++, ninja or the CUDA toolkit.",
        in_the_servers_process("TT205", look),
    ),
)  # fmt: skip
