"""vLLM: what a process of the server says of itself, as plain JSON values. What it does not know is left out."""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
from typing import Any

from tokentrace.agent import jit_monitor, vllm_names
from tokentrace.agent.vllm_core import core
from tokentrace.agent.vllm_worker import rank, works

_PACKAGES = ("vllm", "torch", "transformers", "triton")


def facts() -> dict[str, Any]:
    """Model, dtype and device appear once a request has passed the scheduler or the worker."""
    told: dict[str, Any] = {
        "engine": "vllm",
        "pid": os.getpid(),
        "name": multiprocessing.current_process().name,
        "versions": {"python": platform.python_version(), **_versions()},
        "runs_model": any(name in sys.modules for name in vllm_names.MODEL_MODULES),
    }
    if told["runs_model"]:  # the others compile nothing
        told["jit_monitor"] = jit_monitor.state()
    if here := rank():
        told["rank"] = here
    config = works.config or core.config
    if config is not None:
        told.update(_configured(config))
    if works.model is not None:
        told["model_class"] = type(works.model).__name__
        told["parameters"] = sum(p.numel() for p in works.model.parameters())
        first = next(iter(works.model.parameters()), None)
        if first is not None:
            told["device"] = str(first.device)
    return told


def functions() -> dict[str, int]:
    """Which object each function is that may be watched, and how many stand on the model itself: the same before
    somebody attached and after they have gone."""
    return {**vllm_names.identities(), "functions on the model": works.own_attributes()}


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        module = sys.modules.get(name)
        version = vllm_names.version() if name == "vllm" else getattr(module, "__version__", "")
        if module is not None and version:
            found[name] = str(version)
    return found


def _configured(config: Any) -> dict[str, Any]:
    """From vLLM's configuration, as far as this version names things so."""
    told: dict[str, Any] = {}
    for name, path in (("model", "model_config.served_model_name"), ("model_folder", "model_config.model"),
                       ("dtype", "model_config.dtype"), ("max_model_len", "model_config.max_model_len"),
                       ("eager", "model_config.enforce_eager"), ("kv_blocks", "cache_config.num_gpu_blocks"),
                       ("kv_block_tokens", "cache_config.block_size"),
                       ("async_scheduling", "scheduler_config.async_scheduling"),
                       ("tensor_parallel", "parallel_config.tensor_parallel_size"),
                       ("data_parallel", "parallel_config.data_parallel_size"),
                       ("compile_mode", "compilation_config.mode")):  # fmt: skip
        value: Any = config
        for step in path.split("."):
            value = getattr(value, step, None)
        if isinstance(value, list):
            value = value[0] if value else None
        if value is not None:
            told[name] = value if isinstance(value, (bool, int)) else str(value).removeprefix("torch.")
    if "eager" in told:
        # Without --enforce-eager there is still -O0: CompilationMode.NONE, an IntEnum.
        mode = told.get("compile_mode")
        told["compile"] = not told["eager"] and (not isinstance(mode, int) or mode != 0)
    return told
