"""Is this a container, a virtual machine, WSL? Each changes what can be seen and where a fix has to be applied."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokentrace.doctor.machine.view import View

#: Words of cgroup paths that container engines write.
_ENGINES = ("docker", "kubepods", "containerd", "libpod", "lxc", "garden", "crio")
_MACHINES = {
    "qemu": "QEMU", "kvm": "KVM", "vmware": "VMware", "virtualbox": "VirtualBox", "xen": "Xen",
    "microsoft corporation": "Hyper-V", "amazon ec2": "Amazon EC2", "google": "Google Compute Engine",
    "bochs": "Bochs", "parallels": "Parallels", "firecracker": "Firecracker",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Names, or "" for no; how each is known is in `evidence`."""

    container: str
    machine: str  # the hypervisor
    wsl: bool
    evidence: tuple[str, ...]


def look(view: View) -> Surroundings:
    """Reads a dozen small files; never raises."""
    evidence: list[str] = []
    return Surroundings(_container(view, evidence), _machine(view, evidence), _wsl(view, evidence), tuple(evidence))


def _container(view: View, evidence: list[str]) -> str:
    for path, name in (("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman")):
        if view.exists(path):
            evidence.append(f"{path} exists")
            return name
    if view.environ.get("KUBERNETES_SERVICE_HOST"):
        evidence.append("KUBERNETES_SERVICE_HOST is set")
        return "Kubernetes"
    if inside := view.environ.get("APPTAINER_NAME") or view.environ.get("SINGULARITY_NAME"):
        evidence.append(f"APPTAINER_NAME or SINGULARITY_NAME is {inside}")
        return "Apptainer"
    groups = view.own("cgroup")
    found = next((engine for engine in _ENGINES if engine in groups), "")
    if found:
        evidence.append(f"{view.proc}/cgroup names {found}")
        return found
    if re.search(r"^\S+ \S+ \S+ \S+ / .* - overlay ", view.own("mountinfo"), re.MULTILINE):
        evidence.append("the root folder is an overlay")
        return "a container"
    return ""


def _machine(view: View, evidence: list[str]) -> str:
    for name in ("sys_vendor", "product_name"):
        text = view.text(f"/sys/class/dmi/id/{name}").strip()
        for word, machine in _MACHINES.items():
            if word in text.lower() and not (word == "google" and "compute" not in text.lower()):
                evidence.append(f"/sys/class/dmi/id/{name} is {text}")
                return machine
    if re.search(r"^flags\s*:.*\bhypervisor\b", view.text("/proc/cpuinfo"), re.MULTILINE):
        evidence.append("/proc/cpuinfo has the flag hypervisor")
        return "a virtual machine"
    return ""


def _wsl(view: View, evidence: list[str]) -> bool:
    version = view.text("/proc/version")
    if "microsoft" in version.lower():
        evidence.append(f"/proc/version is {version.strip()[:120]}")
        return True
    return False
