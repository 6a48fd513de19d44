"""Getting a model into memory for the engine, and what can be known of it before the first token."""

from __future__ import annotations

import os
from importlib import metadata
from typing import Any

from tokentrace.engines.local.folder import ModelFolder
from tokentrace.engines.local.sampling import Sampling
from tokentrace.errors import EngineError, first_line

SUPPORTED = ((5, 20), (5, 30))  # transformers, from and below
REQUIREMENT = "transformers>=5.20,<5.30"
DEVICES = ("cpu", "cuda")


def default_threads() -> int:
    """Half the cores this process may use: on two cores a second thread gained nothing for one token at a time."""
    return max(1, len(os.sched_getaffinity(0)) // 2) if hasattr(os, "sched_getaffinity") else 1


def check_transformers() -> None:
    """Raises EngineError when a package is missing or transformers' continuous batching is not the one known here."""
    for name in ("torch", "transformers", "tokenizers", "jinja2", "starlette", "uvicorn"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise EngineError(
                f"the local engine needs {name}, which is not installed", fix="pip install 'tokentrace[local]'"
            ) from None
        if name == "transformers":
            number = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
            if not SUPPORTED[0] <= number < SUPPORTED[1]:
                raise EngineError(
                    f"transformers {version} has another continuous batching than the local engine knows",
                    fix=f"pip install '{REQUIREMENT}'",
                )


def choose_device(wanted: str) -> Any:
    import torch

    if wanted == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    device = torch.device(wanted)
    if device.type not in DEVICES or (device.type == "cuda" and not torch.cuda.is_available()):
        raise EngineError(f"there is no usable device {wanted} here", fix="use --device cpu")
    return device


def load(folder: ModelFolder, device: Any, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    if dtype == "auto":
        wanted: Any = torch.float32 if device.type == "cpu" else "auto"
    else:
        wanted = getattr(torch, dtype, None)
        if not isinstance(wanted, torch.dtype):
            raise EngineError(f"there is no dtype {dtype}", fix="use float32, bfloat16 or float16")
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            str(folder.path),
            dtype=wanted,
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # whatever a strange folder makes transformers raise is the folder's fault
        raise EngineError(
            f"the model in {folder.path} cannot be loaded: {first_line(error)}",
            fix="give a folder of a causal language model that this transformers knows",
        ) from error
    missing = sorted(info.get("missing_keys") or ())
    if missing:
        raise EngineError(
            f"the weights in {folder.path} lack {len(missing)} tensors, such as {missing[0]}",
            fix="fetch the model folder again",
        )
    return model.eval().requires_grad_(False).to(device)


def eos_ids(model: Any) -> list[int]:
    value = model.generation_config.eos_token_id
    if value is None:
        value = getattr(model.config, "eos_token_id", None)
    if value is None:
        return []
    return [int(one) for one in (value if isinstance(value, list | tuple) else [value])]


def default_sampling(generation: Any) -> Sampling:
    """What holds for a request that says nothing: the model's own generation_config, greedy when it is silent."""
    if not getattr(generation, "do_sample", False):
        return Sampling(max_tokens=0)
    temperature, top_p, top_k = (getattr(generation, name, None) for name in ("temperature", "top_p", "top_k"))
    return Sampling(
        max_tokens=0,
        temperature=1.0 if temperature is None else float(temperature),
        top_p=1.0 if top_p is None else float(top_p),
        top_k=int(top_k or 0),
    )


def kv_bytes_per_token(config: Any, itemsize: int) -> int:
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return 2 * int(config.num_hidden_layers) * kv_heads * head_dim * itemsize


def memory_bound_bytes(device: Any) -> int:
    """A quarter of what is free, on the device that holds the cache."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0]) // 4
    import psutil

    return int(psutil.virtual_memory().available) // 4
