"""Which GPUs are in the machine, and how far each vendor's driver has got with them. Files only, no library is loaded.

Sources: sysfs of the PCI bus (class 0x03 display, 0x12 processing accelerator), NVIDIA's /proc/driver/nvidia, AMD's
/sys/class/kfd topology (a node with SIMDs is a GPU; gfx_target_version 90402 is gfx942).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from tokentrace.doctor.machine.view import View

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x1da3": "Habana", "0x19e5": "Huawei"}
_PCI = "/sys/bus/pci/devices"
_NVIDIA = "/proc/driver/nvidia"


@dataclass(frozen=True, slots=True)
class PciDevice:
    vendor: str
    address: str
    kind: str  # the class code, like 0x030200
    driver: str  # kernel driver that holds it, "" none

    @property
    def display_only(self) -> bool:
        """A display adapter of the kind that processors carry: it may well have no compute driver."""
        return self.vendor in ("AMD", "Intel") and self.kind.startswith("0x0300")


@dataclass(frozen=True, slots=True)
class Node:
    """A device node and whether this user may open it for reading and writing."""

    path: str
    usable: bool


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU that its kernel driver knows. `index` is the driver's own number."""

    vendor: str
    index: int
    model: str
    uuid: str
    address: str
    target: str = ""  # gfx942, "" where the driver does not say
    total_bytes: int | None = None
    used_bytes: int | None = None


@dataclass(slots=True)
class Hardware:
    devices: list[PciDevice] = field(default_factory=list)
    cards: list[Card] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    nvidia_driver: str = ""  # version of the loaded kernel module
    amd_driver: str = ""
    dxg: bool = False  # WSL's road to the GPU
    tpus: list[str] = field(default_factory=list)

    def of(self, vendor: str) -> list[PciDevice]:
        return [d for d in self.devices if d.vendor == vendor]

    def cards_of(self, vendor: str) -> list[Card]:
        return [c for c in self.cards if c.vendor == vendor]

    @property
    def any_gpu(self) -> bool:
        """Is there a GPU that a model could run on?"""
        return bool(self.cards or self.dxg or [d for d in self.devices if not d.display_only])


def look(view: View) -> Hardware:
    """Never raises; what cannot be read is left out and told in `view.errors`."""
    found = Hardware(devices=_pci(view), dxg=view.exists("/dev/dxg"))
    found.nvidia_driver = nvidia_version(view.text(f"{_NVIDIA}/version"))
    found.amd_driver = view.text("/sys/module/amdgpu/version").strip()
    if not found.amd_driver and view.exists("/sys/module/amdgpu"):
        found.amd_driver = "of the kernel"
    found.cards = [*_nvidia_cards(view), *_amd_cards(view)]
    names = view.names("/dev")
    wanted = [f"/dev/{n}" for n in names if re.fullmatch(r"nvidia(\d+|ctl|-uvm)|kfd|accel\d+|davinci\d+", n)]
    wanted += [f"/dev/dri/{n}" for n in view.names("/dev/dri") if n.startswith("renderD")]
    found.nodes = [Node(n, os.access(view.path(n), os.R_OK | os.W_OK)) for n in wanted]
    found.tpus = [n for n in wanted if n.startswith("/dev/accel")]
    return found


def nvidia_version(text: str) -> str:
    """Version of the kernel module from /proc/driver/nvidia/version, "" when the text has none."""
    match = re.search(r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else ""


def _pci(view: View) -> list[PciDevice]:
    found = []
    for address in view.names(_PCI):
        kind = view.text(f"{_PCI}/{address}/class").strip()
        vendor = _VENDORS.get(view.text(f"{_PCI}/{address}/vendor").strip(), "")
        if vendor and kind.startswith(("0x03", "0x12")):
            found.append(PciDevice(vendor, address, kind, _link(view, f"{_PCI}/{address}/driver")))
    return found


def _link(view: View, path: str) -> str:
    try:
        return view.path(path).readlink().name
    except OSError:
        return ""


def _nvidia_cards(view: View) -> list[Card]:
    found: list[Card] = []
    for address in view.names(f"{_NVIDIA}/gpus"):
        lines = view.text(f"{_NVIDIA}/gpus/{address}/information").splitlines()
        facts = {name.strip(): value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}
        minor = facts.get("Device Minor", "")
        index = int(minor) if minor.isdecimal() else len(found)
        found.append(Card("NVIDIA", index, facts.get("Model", ""), facts.get("GPU UUID", ""), address))
    return sorted(found, key=lambda card: card.index)


def _amd_cards(view: View) -> list[Card]:
    base = "/sys/class/kfd/kfd/topology/nodes"
    found: list[Card] = []
    for node in sorted(view.names(base), key=lambda n: int(n) if n.isdecimal() else -1):
        pairs = (line.split() for line in view.text(f"{base}/{node}/properties").splitlines())
        facts = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
        if not facts.get("simd_count"):
            continue  # a processor
        minor = facts.get("drm_render_minor", 0)
        device = f"/sys/class/drm/renderD{minor}/device"
        uuid = f"GPU-{facts['unique_id']:016x}" if facts.get("unique_id") else ""
        found.append(
            Card("AMD", len(found), view.text(f"{base}/{node}/name").strip(), uuid, _link(view, device),
                 gfx_target(facts.get("gfx_target_version", 0)),
                 _number(view, f"{device}/mem_info_vram_total"), _number(view, f"{device}/mem_info_vram_used"))
        )  # fmt: skip
    return found


def _number(view: View, path: str) -> int | None:
    text = view.text(path).strip()
    return int(text) if text.isdecimal() else None


def gfx_target(version: int) -> str:
    """gfx942 for 90402, gfx1100 for 110000, gfx90a for 90010: major, then two digits each, the last in hexadecimal."""
    if not version:
        return ""
    return f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}"
