"""Model folders made in a test, and the engine on one of them inside the test's own process."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def write_weights(path: Path, cut: int = 0) -> None:
    """A safetensors file of one small tensor; its last `cut` bytes are missing."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    data = struct.pack("<Q", len(header)) + header + b"\0" * 16
    path.write_bytes(data[: len(data) - cut])


def write_hollow_model(folder: Path) -> Path:
    """A folder that passes inspection and cannot be loaded: its weights are not those of its architecture."""
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    write_weights(folder / "model.safetensors")
    return folder


def write_llama(folder: Path, vocab_size: int, end: int) -> None:
    """Config and random weights of a two-layer Llama. Needs torch and transformers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=end, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


@contextlib.contextmanager
def small_engine(folder: Path) -> Iterator[Any]:
    """The engine, started, with a cache that holds little more than one full request."""
    from tokentrace.engines.local.engine import Engine, Options
    from tokentrace.engines.local.folder import inspect

    engine = Engine(inspect(folder), Options(max_model_len=128))
    engine.start()
    yield engine
    engine.stop()


async def all_tokens(engine: Any, rid: str, ids: Sequence[int], sampling: Any) -> list[int]:
    """The ids of one whole reply."""
    out: list[int] = []
    async for new in engine.submit(rid, ids, sampling).tokens():
        out += new
    return out
