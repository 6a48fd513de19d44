"""Layer 4: may this user profile the GPU, with which tracing library, and does someone else hold the profiler?

Sources: NVIDIA's page on ERR_NVGPUCTRPERM (NVreg_RestrictProfilingToAdminUsers; the loaded module publishes it as
RmProfilingAdminOnly; CAP_SYS_ADMIN, since driver 565 CAP_PERFMON, lifts it); capabilities(7) for the numbers; CUPTI is
part of each CUDA, as libcupti.so.<version>.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from tokentrace.doctor.check import Check, Result, Situation, ok, skip, unknown, warn
from tokentrace.doctor.machine import hardware, surroundings, torches
from tokentrace.doctor.machine.situation import in_the_servers_process, on_the_servers_machine
from tokentrace.doctor.machine.view import View
from tokentrace.host import proc
from tokentrace.wording import listed

_SYS_ADMIN, _PERFMON, _SYS_PTRACE = 21, 38, 19
_PERFMON_DRIVER = (565,)
_HOST_FIX = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf, "
    "then reboot the host"
)
#: Programs that use the driver's profiling interface, by the name in /proc/<pid>/comm (15 characters at most).
PROFILERS = ("nsys", "nsys-launcher", "ncu", "nv-hostengine", "dcgm-exporter", "dcgmi", "rocprof", "rocprofv3",
              "rocprof-sys-run", "nvprof", "dyno", "dynolog")  # fmt: skip


def counters(situation: Situation, view: View) -> Iterable[Result]:
    """TT402: hardware counters, which need rights, against kernel times, which do not."""
    there = hardware.look(view)
    text = view.text("/proc/driver/nvidia/params")
    paranoid = view.text("/proc/sys/kernel/perf_event_paranoid").strip()
    evidence = [f"kernel.perf_event_paranoid is {paranoid}"] if paranoid else []
    if not there.nvidia_driver:
        yield skip("TT402", "there is no NVIDIA driver here")
        return
    only_admins = admins_only(text)
    if only_admins is None:
        reason = view.errors.get(str(view.path("/proc/driver/nvidia/params")), "the driver does not say")
        yield unknown(
            "TT402", f"whether only administrators may read GPU counters is not known: {reason}", "", *evidence
        )
        return
    held = capabilities(view.own("status"))
    names = [
        n
        for bit, n in ((_SYS_ADMIN, "CAP_SYS_ADMIN"), (_PERFMON, "CAP_PERFMON"))
        if held is not None and held >> bit & 1
    ]
    evidence = [f"RmProfilingAdminOnly is {int(only_admins)}", f"{view.whose} has {listed(names) or 'neither right'}",
                *evidence]  # fmt: skip
    if paranoid.lstrip("-").isdecimal() and int(paranoid) > 2:
        evidence.append("nsys cannot sample processor stacks; sudo sysctl kernel.perf_event_paranoid=2 would allow it")
    new_enough = torches.numbers(there.nvidia_driver) >= _PERFMON_DRIVER
    if not only_admins or "CAP_SYS_ADMIN" in names or ("CAP_PERFMON" in names and new_enough):
        yield ok("TT402", "GPU counters may be read, kernel times too", *evidence)
        return
    fix = _HOST_FIX
    if surroundings.look(view).container:
        fix += "; or start the container with --cap-add SYS_ADMIN" + (" or PERFMON" if new_enough else "")
    # Not a warning: kernel times, which the trace needs, come without these rights; TT301 shows whether they do.
    detail = "kernel times can be recorded; hardware counters (ncu, DCGM profiling) are for administrators"
    yield Result("TT402", "ok", detail, fix, tuple(evidence))


def admins_only(params: str) -> bool | None:
    """From /proc/driver/nvidia/params; None when it does not say."""
    match = re.search(r"^(?:RmProfilingAdminOnly|RestrictProfilingToAdminUsers)\s*:\s*(\d+)", params, re.MULTILINE)
    return match[1] != "0" if match else None


def capabilities(status: str) -> int | None:
    """The effective capabilities' bits of /proc/<pid>/status."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return int(match[1], 16) if match else None


def cupti(situation: Situation, view: View) -> Iterable[Result]:
    """TT403: the tracing library that is loaded or would be, against the CUDA of torch."""
    torch = next(iter(torches.in_folders(view, torches.folders_of(view))), None) if not view.hidden else None
    if view.hidden:
        yield unknown("TT403", f"the server's libraries cannot be looked at: {view.hidden}", view.fix)
        return
    if torch is None or not torch.cuda:
        yield skip("TT403", "there is no torch for CUDA here")
        return
    major = torch.cuda.partition(".")[0]
    loaded = sorted(set(re.findall(r"\s(/\S+/libcupti\.so[.\d]*)", view.own("maps")))) if view.pid else []
    first = [f"{folder}/{name}" for folder in view.environ.get("LD_LIBRARY_PATH", "").split(":") if folder
             for name in view.names(folder) if name.startswith("libcupti.so")]  # fmt: skip
    evidence = [f"torch {torch.version} is built for CUDA {torch.cuda}"]
    evidence += [f"loaded: {path}" for path in loaded] + [f"in LD_LIBRARY_PATH: {path}" for path in first]
    wrong = [p for p in (loaded or first) if (found := _cupti_major(view, p)) and found != major]
    if wrong:
        what = "is loaded" if loaded else "comes first in LD_LIBRARY_PATH"
        yield warn("TT403", f"{wrong[0]} {what}, of another CUDA than torch's {torch.cuda}: kernels may be missing",
                   f"take {Path(wrong[0]).parent} out of LD_LIBRARY_PATH and start again", *evidence)  # fmt: skip
    elif len(loaded) > 1:
        yield warn("TT403", "two tracing libraries are loaded: kernels may be missing",
                   "keep one of their folders in LD_LIBRARY_PATH and start again", *evidence)  # fmt: skip
    else:
        yield ok("TT403", f"no other CUPTI than that of CUDA {torch.cuda} is in the way", *evidence)


def _cupti_major(view: View, path: str) -> str:
    """The CUDA major version that a libcupti belongs to, from its file name or its folder; "" unknown."""
    with contextlib.suppress(OSError):
        path = str(view.path(path).resolve())
    # Since CUDA 12 the real file is named after the year and release: libcupti.so.2025.1.1 beside libcupti.so.12.
    match = re.search(r"libcupti\.so\.(\d{2})(?:\.|$)", path) or re.search(r"/(?:cuda-|cu)(\d{2})", path)
    return match[1] if match else ""


def holders(situation: Situation, view: View) -> Iterable[Result]:
    """TT404: other profilers that run now; the driver serves one at a time."""
    if not hardware.look(view).any_gpu:
        return [skip("TT404", "there is no GPU to profile here")]
    running = list(proc.running(PROFILERS))
    if not running:
        return [ok("TT404", "no other profiler runs here")]
    names = sorted({name for _, name in running})
    fix = "dcgmi profile --pause before and dcgmi profile --resume after" if any(
        n.startswith(("nv-host", "dcgm")) for n in names) else "let it finish first"  # fmt: skip
    detail = f"{listed(names)} runs and may hold the driver's profiler: kernels would be missing"
    evidence = [f"process {pid} is {name}" for pid, name in running]
    only_monitor = all(n.startswith(("nv-host", "dcgm")) for n in names)
    # DCGM holds counters, not kernel times; a tracer holds both.
    return [ok("TT404", f"{listed(names)} runs and holds hardware counters; kernel times stay free", *evidence)
            if only_monitor else warn("TT404", detail, fix, *evidence)]  # fmt: skip


def platform(situation: Situation, view: View) -> Iterable[Result]:
    """TT406: platforms on which torch's profiler gets no kernels whatever the rights."""
    around = surroundings.look(view)
    if around.wsl:
        return [unknown("TT406", "under WSL the driver's tracing interface gives no kernels on most versions; the GPU "
                        "is then not idle but unseen", "profile on Linux itself", *around.evidence)]  # fmt: skip
    return [ok("TT406", "this platform can record kernels where there is a GPU")]


CHECKS = (
    Check(
        "TT402", "rights to profile",
        "NVIDIA's driver keeps hardware counters for administrators by default; kernel times, which the trace uses, "
        "usually come without.",
        "RmProfilingAdminOnly in /proc/driver/nvidia/params, the serving process's capabilities, "
        "kernel.perf_event_paranoid",
        "On the host: NVreg_RestrictProfilingToAdminUsers=0; in a container also --cap-add SYS_ADMIN.",
        on_the_servers_machine("TT402", counters),
    ),
    Check(
        "TT403", "tracing library",
        "A libcupti of another CUDA in LD_LIBRARY_PATH leaves kernels out of the profile, with one warning at start.",
        "the libraries mapped in the server, LD_LIBRARY_PATH, torch/version.py",
        "Take the other CUDA's folder out of LD_LIBRARY_PATH.",
        in_the_servers_process("TT403", cupti),
    ),
    Check(
        "TT404", "other profilers",
        "The driver serves one tracer at a time; nsys or ncu beside the server leaves this one blind.",
        "the names of this machine's processes",
        "Let the other profiler finish, or pause DCGM: dcgmi profile --pause.",
        on_the_servers_machine("TT404", holders),
    ),
    Check(
        "TT406", "platform",
        "Under WSL the profiler gets no kernels on most versions; the GPU works all the same.",
        "/proc/version",
        "Profile on Linux itself.",
        on_the_servers_machine("TT406", platform),
    ),
)  # fmt: skip
