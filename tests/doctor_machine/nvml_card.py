"""The small NVML library of tests/power, built once, with its globals as attributes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CC = shutil.which("cc")
SOURCE = Path(__file__).parents[1] / "power/nvml_stub.c"


class NvmlCard:
    def __init__(self, lib: ctypes.CDLL) -> None:
        object.__setattr__(self, "_lib", lib)

    def __setattr__(self, name: str, value: int) -> None:
        kind: Any = ctypes.c_longlong if name.endswith("_ns") or name == "reasons" else ctypes.c_int
        kind.in_dll(self._lib, f"tt_{name}").value = value


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if CC is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.550.54.15"
    subprocess.run([CC, "-shared", "-fPIC", "-O1", "-Wall", "-o", str(path), str(SOURCE)], check=True)
    return path


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlCard]:
    """NVML answers from the small library in this test; globals start fresh."""
    pynvml = pytest.importorskip("pynvml")
    copy = tmp_path / nvml_library.name
    shutil.copy(nvml_library, copy)
    lib = ctypes.CDLL(str(copy))
    monkeypatch.setattr(pynvml, "nvmlLib", lib)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    yield NvmlCard(lib)
    pynvml._nvmlGetFunctionPointer_cache.clear()
