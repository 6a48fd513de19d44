"""Layer 5: is the torch that serves built for this machine's GPU and driver, and is it the one that was meant?"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from tokentrace.doctor.check import ENGINE_DOWN, Check, Result, Situation, fail, ok, skip, unknown, warn
from tokentrace.doctor.machine import hardware, torches
from tokentrace.doctor.machine.hardware import Hardware
from tokentrace.doctor.machine.situation import in_the_servers_process
from tokentrace.doctor.machine.torches import Torch
from tokentrace.doctor.machine.view import View
from tokentrace.wording import listed

_INDEX = "https://pytorch.org/get-started/locally"
_ROCM_FIX = f"pip install torch for ROCm, see {_INDEX}"


def build(situation: Situation, view: View) -> Iterable[Result]:
    """TT503: for which kind of device torch was built, against what is there."""
    if view.hidden:
        return [unknown("TT503", f"the server's torch cannot be looked at: {view.hidden}", view.fix)]
    folders = torches.folders_of(view)
    found = torches.in_folders(view, folders)
    if not found:
        return [_without_torch(view)]
    used, there = found[0], hardware.look(view)
    vendors = {card.vendor for card in there.cards} | {d.vendor for d in there.devices if not d.display_only}
    evidence = (f"torch {used.version} {used.build} in {used.folder}", f"GPUs: {listed(sorted(vendors)) or 'none'}")
    if not used.vendor and vendors & {"NVIDIA", "AMD"}:
        vendor = "NVIDIA" if "NVIDIA" in vendors else "AMD"
        return [
            warn("TT503", f"torch {used.version} is built for processors only, and there is an {vendor} GPU",
                 _gpu_build(vendor, there), *evidence)
        ]  # fmt: skip
    if used.vendor and vendors & {"NVIDIA", "AMD"} and used.vendor not in vendors:
        return [
            fail("TT503", f"torch {used.version} is built {used.build}, and the GPU is {listed(sorted(vendors))}",
                 _gpu_build(next(iter(sorted(vendors))), there), *evidence, explains=ENGINE_DOWN)
        ]  # fmt: skip
    return [ok("TT503", f"torch {used.version} is built {used.build}", *evidence)]


def _without_torch(view: View) -> Result:
    if view.pid:
        return unknown("TT503", f"no torch was found in the folders {view.whose} imports from: it may use none")
    return warn("TT503", "torch is not installed here: the local engine cannot run",
                "pip install 'tokentrace[local]', or give --url of a server", sys.executable)  # fmt: skip


def _gpu_build(vendor: str, there: Hardware) -> str:
    if vendor != "NVIDIA":
        return _ROCM_FIX
    newest = max((m for m, least in torches.LEAST_DRIVER.items() if torches.numbers(there.nvidia_driver) >= least),
                 default=None)  # fmt: skip
    fitting = f" for CUDA {newest}" if newest else " for CUDA"
    return f"pip install --force-reinstall torch{fitting} with the index that {_INDEX} names"


def driver(situation: Situation, view: View) -> Iterable[Result]:
    """TT504: the CUDA that torch brings along against the least driver it needs."""
    if view.hidden:
        return [unknown("TT504", f"the server's torch cannot be looked at: {view.hidden}", view.fix)]
    used = next(iter(torches.in_folders(view, torches.folders_of(view))), None)
    there = hardware.look(view)
    if used is None or not used.cuda or not there.nvidia_driver:
        return [skip("TT504", "there is no torch for CUDA beside an NVIDIA driver here")]
    least = torches.driver_too_old(used.cuda, there.nvidia_driver)
    evidence = (f"torch {used.version}", f"kernel module {there.nvidia_driver}")
    if not least:
        return [ok("TT504", f"the driver {there.nvidia_driver} is new enough for CUDA {used.cuda}", *evidence)]
    detail = f"torch {used.version} brings CUDA {used.cuda}, which needs driver {least} or later; here is "
    compat = _compat(view)
    if compat:
        detail += f"{there.nvidia_driver}, with the compatibility library {compat}"
        return [unknown("TT504", detail, "", *evidence)]
    fix = f"update the driver to {least} or later, or: {_gpu_build('NVIDIA', there)}"
    return [fail("TT504", detail + there.nvidia_driver, fix, *evidence, explains=ENGINE_DOWN)]


def _compat(view: View) -> str:
    """A libcuda of NVIDIA's forward compatibility package, which lets a newer CUDA run on an older driver."""
    folders = [f for f in view.environ.get("LD_LIBRARY_PATH", "").split(":") if f.endswith("compat")]
    folders += [f"/usr/local/{n}/compat" for n in view.names("/usr/local") if n.startswith("cuda")]
    for folder in folders:
        names = [n for n in view.names(folder) if re.fullmatch(r"libcuda\.so(\.\d+)*", n)]
        if names:
            return f"{folder}/{names[-1]}"
    return ""


def others(situation: Situation, view: View) -> Iterable[Result]:
    """TT508: torches that shadow each other, and a PYTHONPATH or pip of another Python."""
    if view.hidden:
        return [unknown("TT508", f"the server's folders cannot be looked at: {view.hidden}", view.fix)]
    folders = torches.folders_of(view)
    found = torches.in_folders(view, folders)
    problems = list(_shadowed(found))
    problems += list(_foreign_folders(view, folders))
    evidence = [f"torch {t.version} in {t.folder}" for t in found]
    if not view.pid:
        evidence += list(_pythons())
    if problems:
        return [warn("TT508", *problem, *evidence) for problem in problems]
    if not found:
        return [skip("TT508", "there is no torch here")]
    return [ok("TT508", f"{view.whose} finds one torch", *evidence)]


def _shadowed(found: list[Torch]) -> Iterable[tuple[str, str]]:
    for other in found[1:]:
        if other.version != found[0].version:
            yield (
                f"torch {found[0].version} in {found[0].folder} hides torch {other.version} in {other.folder}",
                "keep one: pip uninstall torch until it says there is none, then install the one that is meant",
            )


def _foreign_folders(view: View, folders: list[str]) -> Iterable[tuple[str, str]]:
    mine = _python_of(view)
    for folder in view.environ.get("PYTHONPATH", "").split(":"):
        match = re.search(r"/python(3\.\d+)/(?:site|dist)-packages", folder)
        if match and mine and match[1] != mine:
            yield f"PYTHONPATH has {folder}, which belongs to another Python than {mine}", "unset PYTHONPATH"


def _python_of(view: View) -> str:
    if not view.pid:
        return f"{sys.version_info[0]}.{sys.version_info[1]}"
    match = re.search(r"/libpython(3\.\d+)|/python(3\.\d+)/lib-dynload", view.own("maps"))
    return (match[1] or match[2]) if match else ""


def _pythons() -> Iterable[str]:
    """The programs of PATH that would run in another environment than this one."""
    for name in ("python", "python3", "pip", "vllm"):
        where = shutil.which(name)
        if where:
            other = "" if Path(where).parent == Path(sys.executable).parent else ", of another environment"
            yield f"{name} is {where}{other}"


CHECKS = (
    Check(
        "TT503", "build of torch",
        "The package torch comes in builds for CUDA, for ROCm and for processors only; the last one never uses a GPU.",
        "torch/version.py of the serving process's folders (torch is not imported) against the GPUs found",
        "Install the build for the device, from the index that pytorch.org names.",
        in_the_servers_process("TT503", build),
    ),
    Check(
        "TT504", "driver for torch's CUDA",
        "Each CUDA major version needs a least driver: 11 needs 450.80.02, 12 needs 525.60.13, 13 needs 580.65.06.",
        "torch/version.py, /proc/driver/nvidia/version, and whether a compatibility library is installed",
        "Update the driver, or install a torch for an older CUDA.",
        in_the_servers_process("TT504", driver),
    ),
    Check(
        "TT508", "torch on the path",
        "Several torches on the path hide each other, and a PYTHONPATH of another Python breaks imports in ways that "
        "look like a broken GPU.",
        "the folders the serving process imports from; python, pip and vllm of PATH",
        "Keep one torch in one environment and unset PYTHONPATH.",
        in_the_servers_process("TT508", others),
    ),
)  # fmt: skip
