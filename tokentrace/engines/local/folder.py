"""Looks at a Hugging Face model folder before anything heavy is imported, so that a wrong one is refused at once."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokentrace.errors import EngineError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_FIX = "give a folder with config.json, tokenizer.json and *.safetensors of a causal language model"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that can be served. `name` is what requests call the model, `origin` how it came here."""

    path: Path
    name: str
    origin: str


def inspect(path: Path, *, name: str = "", origin: str = "given") -> ModelFolder:
    """The folder as a ModelFolder.

    Raises EngineError, with what is missing, when it does not exist or is no causal language model's folder.
    """
    path = path.expanduser()
    if not path.exists():
        raise EngineError(f"there is no model folder {path}", fix=_FIX)
    if not path.is_dir():
        raise EngineError(f"{path} is not a folder", fix=_FIX)
    try:
        _check_config(path)
        if not any((path / file).is_file() for file in _TOKENIZER_FILES):
            raise EngineError(f"the model folder {path} has no tokenizer", fix="put its tokenizer.json into the folder")
        _check_weights(path)
    except OSError as error:
        raise EngineError(f"the model folder {path} cannot be read: {error.strerror}", fix=_FIX) from error
    path = path.resolve()
    return ModelFolder(path, name or path.name, origin)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # bad JSON and bad UTF-8 alike
        raise EngineError(f"{path} is not valid JSON: {error}", fix="fetch the model folder again") from error
    if not isinstance(value, dict):
        raise EngineError(f"{path} does not hold a JSON object", fix="fetch the model folder again")
    return value


def _check_config(path: Path) -> None:
    file = path / "config.json"
    if not file.is_file():
        hint = " (a gguf file is not a model folder)" if any(path.glob("*.gguf")) else ""
        raise EngineError(f"the model folder {path} has no config.json{hint}", fix=_FIX)
    config = _read_json(file)
    architectures = config.get("architectures")
    kinds = [str(kind) for kind in architectures] if isinstance(architectures, list) else []
    causal = [kind for kind in kinds if kind.endswith(("ForCausalLM", "LMHeadModel"))]
    if (kinds and not causal) or config.get("is_encoder_decoder"):
        what = ", ".join(kinds) or str(config.get("model_type"))
        raise EngineError(f"the model in {path} is no causal language model but {what}", fix=_FIX)
    if not kinds and not config.get("model_type"):
        raise EngineError(f"{file} names neither architectures nor a model_type", fix="fetch the model folder again")


def _check_weights(path: Path) -> None:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        weight_map = _read_json(index).get("weight_map")
        names = sorted({str(name) for name in weight_map.values()}) if isinstance(weight_map, dict) else []
        missing = [name for name in names if not (path / name).is_file()]
        if missing or not names:
            what = ", ".join(missing[:3]) or "any weights"
            raise EngineError(f"the model folder {path} lacks {what}", fix="fetch the model folder again")
    safetensors = sorted(path.glob("*.safetensors"))
    for file in safetensors:
        _check_safetensors(file)
    if not safetensors and not any(path.glob("pytorch_model*.bin")):
        raise EngineError(f"the model folder {path} has no weights (*.safetensors)", fix=_FIX)


def safetensors_header(file: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file (8 bytes of length, then JSON) and where its data start.

    Raises ValueError when it is damaged.
    """
    with file.open("rb") as opened:
        head = opened.read(8)
        if len(head) < 8:
            raise ValueError("it is shorter than its header")
        (length,) = struct.unpack("<Q", head)
        if length > 100_000_000:  # the limit that the safetensors library itself sets
            raise ValueError("its header length is impossible")
        header = json.loads(opened.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    return header, 8 + length


def _check_safetensors(file: Path) -> None:
    """A download that was cut off has a whole header but too few data: compare the two."""
    try:
        header, start = safetensors_header(file)
        ends = [int(entry["data_offsets"][1]) for key, entry in header.items() if key != "__metadata__"]
        size, needed = file.stat().st_size, start + max(ends, default=0)
        if size < needed:
            raise ValueError(f"it has {size} bytes of {needed}")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise EngineError(f"{file} is damaged: {error}", fix="fetch the model folder again") from error
