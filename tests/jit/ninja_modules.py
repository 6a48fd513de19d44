"""Modules that a real ninja builds, in folders laid out like FlashInfer's and with the build file that it writes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

needs_ninja = pytest.mark.skipif(
    not (shutil.which("ninja") and shutil.which("c++")), reason="needs ninja and a C++ compiler"
)
#: flashinfer/jit/env.py: FLASHINFER_WORKSPACE_BASE/.cache/flashinfer/<version>/<architectures>/cached_ops/<module>
BELOW = ".cache/flashinfer/0.7.4/90a/cached_ops"


def write_module(base: Path, name: str, sources: int = 2) -> Path:
    """The module's folder with sources and build.ninja, nothing built yet."""
    folder = base / BELOW / name
    folder.mkdir(parents=True)
    lines = ["ninja_required_version = 1.3", f"name = {name}", "cuda_home = /usr/local/cuda", "cxx = c++", "",
             "rule compile", "  command = $cxx -MMD -MF $out.d -fPIC -c $in -o $out", "  depfile = $out.d",
             "  deps = gcc", "", "rule link", "  command = $cxx $in -shared -o $out", ""]  # fmt: skip
    objects = []
    for number in range(sources):
        source = folder / f"part{number}.cc"
        source.write_text(f'#include <vector>\nextern "C" int {name}_{number}() {{ return {number}; }}\n')
        objects.append(f"{folder}/part{number}.o")
        lines.append(f"build {objects[-1]}: compile {source}")
    library = f"{folder}/{name}.so"
    lines += ["", f"build {library}: link {' '.join(objects)}", f"default {library}", ""]
    (folder / "build.ninja").write_text("\n".join(lines))
    return folder


def build(folder: Path) -> Path:
    """As FlashInfer calls ninja: in the module's own folder. Gives the library."""
    subprocess.run(["ninja", "-v", "-C", str(folder), "-f", str(folder / "build.ninja")], check=True,
                   capture_output=True, env={**os.environ, "NINJA_STATUS": ""})  # fmt: skip
    return folder / f"{folder.name}.so"


def build_together(*folders: Path) -> None:
    """As FlashInfer builds many modules at once, and older ones each: in the folder above, whose log has them all."""
    above = folders[0].parent
    together = above / "all.ninja"
    together.write_text("".join(["ninja_required_version = 1.3\n", *(f"subninja {f}/build.ninja\n" for f in folders)]))
    subprocess.run(["ninja", "-v", "-C", str(above), "-f", str(together)], check=True, capture_output=True)
