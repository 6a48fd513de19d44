"""`--cold-caches`: compile caches of the engine in a fresh folder, so that cold against warm is shown on purpose."""

from __future__ import annotations

from pathlib import Path

from tokentrace.errors import UsageError

#: Variable -> folder below the given one. Every cache of compiled code that a torch engine on any device may use; the
#: variables are those of torch, Triton, the CUDA driver, ROCm's comgr, MIOpen, FlashInfer and vLLM.
_FOLDERS = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "AMD_COMGR_CACHE_DIR": "comgr",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen",
    "MIOPEN_USER_DB_PATH": "miopen-db",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "VLLM_CACHE_ROOT": "vllm",
}


def fresh_caches(folder: Path) -> dict[str, str]:
    """Make the folder and one below it for each cache; gives the environment under which an engine uses them.

    Raises UsageError when the folder holds anything (a cache in it would be warm) or cannot be made.
    """
    top = folder.expanduser().absolute()
    try:
        if top.is_dir() and any(top.iterdir()):
            raise UsageError(
                f"{folder} is not empty, so the caches in it would not be cold", fix="name a new or an empty folder"
            )
        for name in _FOLDERS.values():
            (top / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the caches cannot be put into {folder}: {error.strerror}", fix="name a folder that you can write"
        ) from error
    return {variable: str(top / name) for variable, name in _FOLDERS.items()}
