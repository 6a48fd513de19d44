"""Layer 3: the vendors' profilers, for those who want to look deeper than the trace; none of them is needed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from tokentrace.doctor.check import Check, Result, Situation, ok, skip
from tokentrace.doctor.machine import hardware
from tokentrace.doctor.machine.compilers import find, version_of
from tokentrace.doctor.machine.situation import on_the_servers_machine
from tokentrace.doctor.machine.view import View
from tokentrace.wording import listed

_PROGRAMS = {"NVIDIA": ("nsys", "ncu"), "AMD": ("rocprofv3", "rocprof", "rocprof-sys-run"), "Intel": ("unitrace",)}
_WHERE = {
    "nsys": ("/usr/local/cuda/bin", "/opt/nvidia/nsight-systems/*/bin"),
    "ncu": ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute/*"),
    "rocprofv3": ("/opt/rocm/bin",),
    "rocprof": ("/opt/rocm/bin",),
    "rocprof-sys-run": ("/opt/rocm/bin",),
    "unitrace": (),
}


def look(situation: Situation, view: View) -> Iterable[Result]:
    """TT302: which are there, with their versions."""
    there = hardware.look(view)
    vendors = sorted({c.vendor for c in there.cards} | {d.vendor for d in there.devices if not d.display_only})
    wanted = [name for vendor in vendors for name in _PROGRAMS.get(vendor, ())]
    path = view.environ.get("PATH", os.defpath)
    # What lies about is told on a machine without a GPU too.
    names = wanted or [name for group in _PROGRAMS.values() for name in group]
    found = {name: program for name in names if (program := _find(view, name, path))}
    if not found and not wanted:
        return [skip("TT302", "there is no GPU here whose profilers could be wanted")]
    with ThreadPoolExecutor(4) as pool:  # each takes a moment to print its version
        versions = dict(zip(found, pool.map(version_of, found.values()), strict=True)) if view.root == "/" else {}
    lines = [f"{name} {versions.get(name) or '(version not told)'}: {program}" for name, program in found.items()]
    missing = [name for name in wanted if name not in found]
    lines += [f"{name}: not there" for name in missing]
    said = listed([f"{n} {versions.get(n, '')}".strip() for n in found]) if found else "none"
    return [ok("TT302", f"vendor profilers here: {said} (the trace needs none of them)", *lines)]


def _find(view: View, name: str, path: str) -> str:
    if program := find(view, name, path):
        return program
    for pattern in _WHERE[name]:
        folder, star, rest = pattern.partition("/*")
        candidates = (
            [f"{folder}/{n}{rest}" for n in reversed(view.names(folder)) if re.match(r"\d", n)] if star else [folder]
        )
        for candidate in candidates:
            if view.exists(f"{candidate}/{name}"):
                return f"{candidate}/{name}"
    return ""


CHECKS = (
    Check(
        "TT302", "vendors' profilers",
        "nsys, ncu and rocprof look deeper than the trace does; they are told with their versions, none is needed.",
        "PATH and the vendors' usual folders",
        "Install Nsight Systems, Nsight Compute or ROCm's profiler if you want them.",
        on_the_servers_machine("TT302", look),
    ),
)  # fmt: skip
