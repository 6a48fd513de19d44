"""What a server's command line asks for: the few flags that the checks compare with the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tokentrace.doctor.machine.view import View
from tokentrace.host.flags import flags_of

#: Configuration files are small; a larger one is not read.
_MAX_CONFIG = 2**20


@dataclass(frozen=True, slots=True)
class Command:
    """`engine` is vllm, sglang or "" (not known). Flags as written, without their dashes."""

    engine: str
    model: str
    flags: dict[str, str]

    def get(self, *names: str) -> str:
        return next((self.flags[n] for n in names if n in self.flags), "")

    def __contains__(self, name: str) -> bool:
        return name in self.flags


def parse(command: Sequence[str]) -> Command:
    """vLLM's and SGLang's command lines."""
    engine = next((e for e in ("vllm", "sglang") if any(e in part.lower() for part in command[:4])), "")
    flags, rest = flags_of(command)
    model = (flags.get("model") or flags.get("model-path") or "").partition(" ")[0]
    if not model and "serve" in rest and rest.index("serve") + 1 < len(rest):
        model = rest[rest.index("serve") + 1]
    return Command(engine, model, flags)


def model_config(view: View, model: str) -> dict[str, Any]:
    """The model's config.json: from its folder, or from Hugging Face's cache. {} when it is not found."""
    for folder in _folders(view, model):
        text = view.text(f"{folder}/config.json", _MAX_CONFIG)
        if text:
            try:
                found = orjson.loads(text)
            except orjson.JSONDecodeError:
                return {}
            return found if isinstance(found, dict) else {}
    return {}


def _folders(view: View, model: str) -> list[str]:
    if not model:
        return []
    if model.startswith("/"):
        return [model]
    env = view.environ
    home = env.get("HF_HOME") or str(
        Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME", "/"), ".cache"), "huggingface")
    )
    hub = env.get("HF_HUB_CACHE") or str(Path(home, "hub"))
    repository = f"{hub}/models--{model.replace('/', '--')}"
    revision = view.text(f"{repository}/refs/main", 200).strip()
    names = [revision] if revision else view.names(f"{repository}/snapshots")
    return [f"{repository}/snapshots/{name}" for name in names]
