"""`--compile`: the model's MLPs through torch.compile, so that the layers of compiled code and its cache live here too.

Only the MLPs, because the rest holds the paged cache's Python bookkeeping: compiling whole layers gave other tokens
and compiling the model took minutes. On a CPU inductor writes C++ and needs a compiler for it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tokentrace.errors import EngineError


def cxx_compiler() -> str | None:
    """The C++ compiler that inductor would take: $CXX, else g++ or clang++ on the path. None when there is none."""
    configured = os.environ.get("CXX")
    for candidate in (configured,) if configured else ("g++", "clang++"):
        if found := shutil.which(candidate):
            return found
    return None


def need_compiler() -> None:
    """Raises EngineError when there is no C++ compiler for inductor."""
    if cxx_compiler() is None:
        named = os.environ.get("CXX")
        where = f"CXX names {named}, which is not there" if named else "neither g++ nor clang++ is there"
        raise EngineError(
            f"--compile needs a C++ compiler, and {where}",
            fix="install one (`apt install g++`), or run without --compile",
            layer=2,
        )


def before_torch() -> None:
    """Must run before torch is imported: each C++ kernel shall be an event of torch.profiler with its begin and end.

    It is part of the key under which inductor caches the code.
    """
    os.environ["TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE"] = "1"


def compile_mlps(model: Any) -> int:
    """Mark every MLP of the model's layers for compilation; it happens when the first request passes. Gives how many.

    Raises EngineError when there is no compiler, or no module called `mlp` to compile.
    """
    if model.device.type == "cpu":
        need_compiler()
    import torch
    import torch._inductor.config

    # Newer versions keep a value set here for this thread only, and compiling happens on the generation thread: there
    # `before_torch` is what counts. Older ones know no such environment variable.
    torch._inductor.config.cpp.enable_kernel_profile = True
    blocks = [module for name, module in model.named_modules() if name.rpartition(".")[2] == "mlp"]
    if not blocks:
        raise EngineError(
            f"--compile finds no MLP in {type(model).__name__}", fix="run this model without --compile", layer=2
        )
    for block in blocks:
        # one graph for a single token (decoding) and one for any number (prefill, batches)
        block.compile(dynamic=True)
    return len(blocks)


def cache_folders() -> dict[str, str]:
    """Where compiled code is kept: {"inductor": path, "triton": path}, by the rules of torch and triton."""
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not inductor:
        import getpass

        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = f"uid_{os.getuid()}"
        inductor = str(Path(tempfile.gettempdir()) / f"torchinductor_{user}")
    return {"inductor": inductor, "triton": os.environ.get("TRITON_CACHE_DIR") or str(Path(inductor) / "triton")}
