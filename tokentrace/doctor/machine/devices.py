"""Layer 5: is there a GPU, has its driver got hold of it, and do variables or rights hide it?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokentrace.doctor.check import ENGINE_DOWN, Check, Result, Situation, Status, fail, ok, unknown, warn
from tokentrace.doctor.machine import hardware, surroundings, visible
from tokentrace.doctor.machine.hardware import Hardware
from tokentrace.doctor.machine.situation import in_the_servers_process, on_the_servers_machine
from tokentrace.doctor.machine.surroundings import Surroundings
from tokentrace.doctor.machine.view import View
from tokentrace.wording import listed, plural

_GPUS_FLAG = "start the container with --gpus all (Docker) or request nvidia.com/gpu (Kubernetes)"
_AMD_FLAG = "start the container with --device /dev/kfd --device /dev/dri --group-add video"


def device(situation: Situation, view: View) -> Iterable[Result]:
    """TT501: one line per platform as evidence, one verdict."""
    found = hardware.look(view)
    around = surroundings.look(view)
    lines = tuple(platforms(found, around))
    problem = _nvidia(found, around) or _amd(found, around) or _others(found)
    if problem is not None:
        status, detail, fix = problem
        return [Result("TT501", status, detail, fix, lines, explains=ENGINE_DOWN if status == "fail" else ())]
    if found.cards or found.dxg:
        names = [card.model or card.target or f"{card.vendor} GPU" for card in found.cards]
        what = f"{plural(len(names), 'GPU')}: {listed(names)}" if names else "a GPU through WSL"
        return [ok("TT501", f"the driver shows {what}", *lines)]
    return [ok("TT501", "no GPU in this machine: the model runs on the processor", *lines)]


def platforms(found: Hardware, around: Surroundings) -> Iterator[str]:
    """What each platform's driver offers, with its own reason where that is nothing."""
    nvidia, amd, intel = found.of("NVIDIA"), found.of("AMD"), found.of("Intel")
    if found.nvidia_driver or nvidia:
        driver = f"driver {found.nvidia_driver}" if found.nvidia_driver else "no driver loaded"
        yield (
            f"NVIDIA: {driver}, {len(nvidia)} on the PCI bus, {plural(len(found.cards_of('NVIDIA')), 'card')} known to "
            f"the driver, nodes {_nodes(found, '/dev/nvidia')}"
        )
    else:
        yield "NVIDIA: none (no card on the PCI bus, no /proc/driver/nvidia)"
    if found.amd_driver or amd:
        yield (
            f"AMD: amdgpu {found.amd_driver or 'not loaded'}, {len(amd)} on the PCI bus, "
            f"{plural(len(found.cards_of('AMD')), 'card')} in the kfd topology, nodes {_nodes(found, '/dev/kfd')}"
        )
    else:
        yield "AMD: none (no card on the PCI bus, no amdgpu module, no /dev/kfd)"
    yield f"Intel: {len(intel)} on the PCI bus, nodes {_nodes(found, '/dev/dri')}" if intel else "Intel: no GPU"
    yield f"TPU: {listed(found.tpus)}" if found.tpus else "TPU: no /dev/accel*"
    if around.wsl:
        yield f"WSL: {'/dev/dxg is there' if found.dxg else 'no /dev/dxg'}"
    if around.container or around.machine:
        yield f"inside {' on '.join(filter(None, (around.container, around.machine)))}"


def _nodes(found: Hardware, prefix: str) -> str:
    mine = [n for n in found.nodes if n.path.startswith(prefix)]
    return listed([n.path + ("" if n.usable else " (no permission)") for n in mine]) or "none"


Problem = tuple[Status, str, str]  # status, what is wrong, what to type


def _nvidia(found: Hardware, around: Surroundings) -> Problem | None:
    cards = found.of("NVIDIA")
    if cards and all(c.driver == "vfio-pci" for c in cards):
        return None  # handed to a virtual machine
    if cards and not found.nvidia_driver and not found.dxg:
        other = next((c.driver for c in cards if c.driver and c.driver != "nvidia"), "")
        held = f", {other} holds it instead" if other else ""
        fix = "install the NVIDIA driver, then: sudo modprobe nvidia"
        if around.container:
            fix = "install the NVIDIA driver on the host, then: sudo modprobe nvidia (there, not in this container)"
        return "fail", f"an NVIDIA GPU is in the machine but its driver is not loaded{held}", fix
    if not found.nvidia_driver:
        return None
    nodes = [n for n in found.nodes if n.path.startswith("/dev/nvidia")]
    gpu_nodes = [n for n in nodes if n.path[len("/dev/nvidia") :].isdecimal()]
    refused = [n.path for n in nodes if not n.usable]
    if refused:
        fix = f"sudo chmod a+rw {' '.join(refused)}, or add this user to the group that owns them"
        return "fail", f"the NVIDIA driver is there but this user may not open {listed(refused)}", fix
    if not gpu_nodes and (cards or found.cards_of("NVIDIA")):
        if around.container:
            return "fail", "the NVIDIA driver sees a GPU but this container was given none", _GPUS_FLAG
        return "fail", "the NVIDIA driver is loaded but there is no /dev/nvidia0", "sudo nvidia-modprobe -u -c 0"
    return None


def _amd(found: Hardware, around: Surroundings) -> Problem | None:
    cards = [d for d in found.of("AMD") if not d.display_only]
    if cards and all(c.driver == "vfio-pci" for c in cards):
        return None
    if cards and not found.amd_driver:
        return "fail", "an AMD GPU is in the machine but amdgpu is not loaded", "sudo modprobe amdgpu"
    kfd = next((n for n in found.nodes if n.path == "/dev/kfd"), None)
    shown = bool(cards or found.cards_of("AMD"))
    if shown and kfd is None:
        fix = _AMD_FLAG if around.container else "install ROCm's amdgpu-dkms, then: sudo modprobe amdgpu"
        return "fail", "an AMD GPU is in the machine but there is no /dev/kfd to compute with", fix
    if not shown:
        return None
    refused = [n.path for n in found.nodes if n.path.startswith(("/dev/kfd", "/dev/dri/")) and not n.usable]
    if refused:
        fix = "sudo usermod -aG render,video $USER, then log in again"
        if kfd is not None and kfd.usable:
            return "warn", f"this user may compute on the AMD GPU but not open {listed(refused)}", fix
        return "fail", f"this user may not open {listed(refused)}", fix
    if not any(n.path.startswith("/dev/dri/") for n in found.nodes):
        return "fail", "/dev/kfd is there but no /dev/dri/renderD*", _AMD_FLAG
    return None


def _others(found: Hardware) -> Problem | None:
    for card in found.devices:
        if card.vendor in ("Habana", "Huawei") and not card.driver:
            return "warn", f"a {card.vendor} accelerator is in the machine without a driver", "install its driver"
    return None


def hidden(situation: Situation, view: View) -> Iterable[Result]:
    """TT502: one result per variable that is set."""
    found = hardware.look(view)
    if view.hidden:
        yield unknown("TT502", f"the server's variables cannot be read: {view.hidden}", view.fix)
        return
    seen = False
    for vendor in ("NVIDIA", "AMD"):
        cards = found.cards_of(vendor)
        for one in visible.selections(view.environ, vendor, [c.uuid for c in cards]):
            if one.variable == "CUDA_VISIBLE_DEVICES" and vendor == "AMD" and found.cards_of("NVIDIA"):
                continue
            if not cards:
                continue
            seen = True
            yield _selection(one, len(cards), view)
    if not seen:
        set_here = [name for name in visible.VARIABLES if name in view.environ]
        if set_here:
            yield ok("TT502", f"{listed(set_here)} is set, and there is no GPU here that it could hide")
        else:
            yield ok("TT502", "no variable hides a GPU")
    given = view.environ.get("NVIDIA_VISIBLE_DEVICES")
    if given is not None and given.strip().lower() in ("", "none", "void") and found.of("NVIDIA"):
        yield warn(
            "TT502", f"NVIDIA_VISIBLE_DEVICES is {given or 'empty'}: this container was given no GPU", _GPUS_FLAG
        )


def _selection(one: visible.Selection, count: int, view: View) -> Result:
    evidence = f"{one.variable}={one.value} in {view.whose}"
    if one.problem:
        left = one.chosen or ()
        detail = f"{one.variable} {one.problem}; {plural(len(left), 'GPU')} of {count} left"
        if left:
            return warn("TT502", detail, one.fix, evidence)
        return fail("TT502", detail, one.fix, evidence, explains=ENGINE_DOWN)
    if one.chosen is None:
        return ok("TT502", f"{one.variable} chooses MIG slices", evidence)
    pairs = [f"device {logical} is GPU {real}" for logical, real in enumerate(one.chosen)]
    return ok("TT502", f"{one.variable}: {listed(pairs, 8)}", evidence)


CHECKS = (
    Check(
        "TT501", "GPU and driver",
        "A GPU on the bus helps nobody without its kernel driver, its device nodes and the right to open them; a "
        "container gets none of these by itself.",
        "the PCI bus, /proc/driver/nvidia, /sys/class/kfd, /dev/nvidia*, /dev/kfd, /dev/dri/renderD*, one line per "
        "platform",
        "Install or load the driver, give the container its GPUs, or give the user the group of the device nodes.",
        on_the_servers_machine("TT501", device),
    ),
    Check(
        "TT502", "visible GPUs",
        "CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES choose and renumber GPUs; empty, -1, a "
        "repetition or a number that is too large hides them without any message.",
        "those variables of the serving process against the list of cards, with the mapping of numbers",
        "Unset the variable or name GPUs that exist.",
        in_the_servers_process("TT502", hidden),
    ),
)  # fmt: skip
