"""Machines as folders: the few files of /proc, /sys and /dev that drivers leave, and views of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tokentrace.doctor.check import Result, Situation
from tokentrace.doctor.machine.view import View

NVRM = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Wed Jun  4 00:00:00 UTC 2025\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"
)


class Machine:
    """A folder that stands for the root of a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ: dict[str, str] = {"HOME": "/home/me", "PATH": "/usr/bin"}

    def write(self, path: str, text: str = "") -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def pci(self, address: str, vendor: str, kind: str = "0x030200", driver: str = "") -> None:
        folder = f"/sys/bus/pci/devices/{address}"
        self.write(f"{folder}/vendor", vendor + "\n")
        self.write(f"{folder}/class", kind + "\n")
        if driver and not (self.root / folder.lstrip("/") / "driver").is_symlink():
            self.write(f"/sys/bus/pci/drivers/{driver}/module", "")
            (self.root / folder.lstrip("/") / "driver").symlink_to(self.root / "sys/bus/pci/drivers" / driver)

    def nvidia(self, *uuids: str, version: str = "575.57.08", nodes: bool = True, model: str = "NVIDIA A100") -> None:
        """Cards with the driver loaded, and their device nodes."""
        self.write("/proc/driver/nvidia/version", NVRM.format(version=version))
        for index, uuid in enumerate(uuids):
            address = f"0000:{index + 1:02x}:00.0"
            self.pci(address, "0x10de", driver="nvidia")
            self.write(
                f"/proc/driver/nvidia/gpus/{address}/information",
                f"Model: \t\t {model}\nIRQ:   \t\t 62\nGPU UUID: \t {uuid}\nDevice Minor: \t {index}\n",
            )
            if nodes:
                self.write(f"/dev/nvidia{index}")
        if nodes:
            self.write("/dev/nvidiactl")
            self.write("/dev/nvidia-uvm")

    def amd(self, count: int = 1, *, kfd: bool = True, render: bool = True) -> None:
        self.write("/sys/module/amdgpu/version", "6.10.5\n")
        base = "/sys/class/kfd/kfd/topology/nodes"
        self.write(f"{base}/0/properties", "cpu_cores_count 64\nsimd_count 0\n")
        for index in range(count):
            self.pci(f"0000:{index + 1:02x}:00.0", "0x1002", "0x120000", "amdgpu")
            self.write(f"{base}/{index + 1}/name", "gfx942\n")
            self.write(
                f"{base}/{index + 1}/properties",
                f"simd_count 1216\ngfx_target_version 90402\ndrm_render_minor {128 + index}\nunique_id {index + 7}\n",
            )
            device = f"/sys/class/drm/renderD{128 + index}/device"
            self.write(f"{device}/mem_info_vram_total", str(192 * 2**30))
            self.write(f"{device}/mem_info_vram_used", str(180 * 2**30))
            if render:
                self.write(f"/dev/dri/renderD{128 + index}")
        if kfd:
            self.write("/dev/kfd")

    def torch(self, folder: str, version: str, cuda: str = "", hip: str = "") -> None:
        """A torch as its wheel leaves it: version.py and the .dist-info folder."""
        lines = [
            "from typing import Optional", f"__version__ = '{version}'", "debug = False",
            f"cuda: Optional[str] = {cuda!r}" if cuda else "cuda: Optional[str] = None",
            f"hip: Optional[str] = {hip!r}" if hip else "hip: Optional[str] = None",
        ]  # fmt: skip
        self.write(f"{folder}/torch/version.py", "\n".join(lines) + "\n")
        self.write(f"{folder}/torch-{version}.dist-info/METADATA", "")

    def view(self, **more: Any) -> View:
        """As a process of that machine sees it; its own folder in /proc is /proc/self of the tree."""
        proc = self.root / "proc/self"
        proc.mkdir(parents=True, exist_ok=True)
        return View(more.pop("environ", self.environ), str(self.root), str(proc), **more)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    root = tmp_path / "machine"
    root.mkdir()
    return Machine(root)


def situation(mode: Any = "machine", environ: Mapping[str, str] | None = None, **more: Any) -> Situation:
    return Situation(mode, dict(os.environ) if environ is None else environ, time.monotonic() + 30, **more)


def by_id(results: Any) -> dict[str, Result]:
    """One result per id; of several the worst."""
    order = ("ok", "skip", "unknown", "warn", "fail")
    found: dict[str, Result] = {}
    for result in results:
        if result.id not in found or order.index(result.status) > order.index(found[result.id].status):
            found[result.id] = result
    return found


def as_nobody(work: Callable[[], Any]) -> Any:
    """The JSON value of `work()`, run by a user without rights: by nobody where we are root, else by ourselves."""
    if os.getuid() != 0:
        return json.loads(json.dumps(work()))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            data = json.dumps({"value": work()})
        except BaseException as error:  # noqa: BLE001 - told by the parent
            data = json.dumps({"error": repr(error)})
        os.write(writer, data.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert "error" not in answer, answer
    return answer["value"]


def snapshot(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    """Every path below with size, change, modification and access time; symbolic links are not followed.

    The access time of a folder is left out: this very look may change it.
    """
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        facts = path.lstat()
        read_ns = 0 if path.is_dir() and not path.is_symlink() else facts.st_atime_ns
        found[str(path)] = (facts.st_size, facts.st_ctime_ns, facts.st_mtime_ns, read_ns)
    return found
