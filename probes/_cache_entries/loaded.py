"""What the serving processes have loaded: which files are mapped, and whether a compiler's library is among them.

All of it needs the rights of a debugger for other users' processes (`tokentrace.host.proc`); what cannot be read is
None. Nothing is attached, stopped or written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from tokentrace.host import proc

#: What a process has mapped that uses a cache of compiled code; the compilers that are not named work inside torch.
_USES = {
    "CUDA": re.compile(r"/libcuda\.so"),
    "HIP": re.compile(r"/lib(amdhip|amd_comgr)[^/]*\.so"),
    "MIOpen": re.compile(r"/libMIOpen[^/]*\.so"),
    "MIOpen db": re.compile(r"/libMIOpen[^/]*\.so"),
    "DeepGEMM": re.compile(r"deep_?gemm[^/]*(/.*)?\.so"),
    "TensorRT-LLM": re.compile(r"/libnvinfer"),
    "ONNX Runtime TensorRT": re.compile(r"/libonnxruntime"),
}
_TORCH = re.compile(r"/libtorch[\w.]*\.so")


def files(pid: int) -> frozenset[str] | None:
    """Paths of the files that a process has mapped, as it names them; None where that cannot be read.

    A library whose file was removed or replaced since is not among them: the kernel tells it with " (deleted)".
    """
    try:
        return proc.files_mapped(pid)
    except OSError:
        return None


def of_all(pids: Iterable[int]) -> frozenset[str] | None:
    """What any of the processes has mapped; None where that of none can be read."""
    each = [found for pid in pids if (found := files(pid)) is not None]
    return frozenset().union(*each) if each else None


def has(mapped: frozenset[str], path: str, root: str = "/") -> bool:
    """Whether the file is mapped; the kernel names it without the links that lead to it.

    `root` is where the process's root folder lies for us: in another one a link would be followed from this one's.
    """
    return path in mapped or (root == "/" and os.path.realpath(path) in mapped)


def uses(mapped: frozenset[str], compiler: str) -> bool:
    """Whether a library is mapped that the cache's compiler works in."""
    return any(map(_USES.get(compiler, _TORCH).search, mapped))
