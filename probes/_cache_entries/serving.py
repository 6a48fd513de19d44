"""The serving processes as /proc shows them: which libraries they have mapped, since when they run, what their root is.

All of it needs the rights of a debugger for other users' processes (proc(5), ptrace access mode read); what cannot be
read is None. Nothing is attached, stopped or written.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

#: What a process has mapped that uses a cache of compiled code; the compilers that are not named work inside torch.
USES = {
    "CUDA": re.compile(r"/libcuda\.so"),
    "HIP": re.compile(r"/lib(amdhip|amd_comgr)[^/]*\.so"),
    "MIOpen": re.compile(r"/libMIOpen[^/]*\.so"),
    "MIOpen db": re.compile(r"/libMIOpen[^/]*\.so"),
    "DeepGEMM": re.compile(r"deep_?gemm[^/]*(/.*)?\.so"),
    "TensorRT-LLM": re.compile(r"/libnvinfer"),
    "ONNX Runtime TensorRT": re.compile(r"/libonnxruntime"),
}
_MAPPED = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ \S+ \d+ +(/.*)$", re.MULTILINE)
_MOST_BYTES = 64 * 2**20
_ESCAPED = re.compile(rb"\\([0-7]{3})")


def libraries(pid: int) -> frozenset[str] | None:
    """Paths of the files that a process has mapped, as it names them; None where that cannot be read.

    A library whose file was removed or replaced since is not among them: the kernel tells it with " (deleted)".
    """
    try:
        with Path(f"/proc/{pid}/maps").open("rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError:
        return None
    if not data:
        return None  # a process that has just ended
    paths = {_ESCAPED.sub(lambda found: bytes((int(found[1], 8) & 255,)), path) for path in _MAPPED.findall(data)}
    return frozenset(os.fsdecode(path) for path in paths)


def of_all(pids: Iterable[int]) -> frozenset[str] | None:
    """What any of the processes has mapped; None where that of none can be read."""
    each = [found for pid in pids if (found := libraries(pid)) is not None]
    return frozenset().union(*each) if each else None


def started_ns(pid: int) -> int | None:
    """When the process started, unix ns, to 10 ms; None when it cannot be told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        ticks = int(stat.rpartition(b")")[2].split()[19])
        # Since boot, with the time asleep: both are of this machine's, so a clock that was set meanwhile does no harm.
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.time_ns() - age_ns


def root_of(pid: int) -> tuple[str, str]:
    """(root folder, mount table) as `_caches.cache_folders` takes them; this process's own where they are the same."""
    ours = "/", "/proc/self/mountinfo"
    try:
        same = Path(f"/proc/{pid}/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
        root = Path(f"/proc/{pid}/root").readlink()
    except OSError:
        return ours
    if same and root == Path("/proc/self/root").readlink():
        return ours
    return f"/proc/{pid}/root", f"/proc/{pid}/mountinfo"


def environment(pid: int, wanted: Iterable[str]) -> Mapping[str, str]:
    """Those of the variables that the process was started with; {} where they cannot be read. No other is kept."""
    names = {name.encode() for name in wanted}
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in data.split(b"\0"))
    return {name.decode(): os.fsdecode(value) for name, _, value in pairs if name in names}
