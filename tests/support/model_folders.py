"""Model folders made in a test, and the engine on one of them inside the test's own process."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def byte_level_tokenizer() -> Any:
    """256 bytes, a few merges and two special tokens: characters outside ASCII take several tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["hello world", "user assistant", "the sea is the sea"], trainer)
    tokenizer.add_special_tokens([AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True)])
    return tokenizer


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


def write_tiny_model(folder: Path) -> Path:
    """A whole Hugging Face folder of a two-layer Llama with random weights; starts in the time that the imports take.
    Needs torch and transformers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_level_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        eos_token_id=tokenizer.token_to_id("<|end|>"), bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return folder


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
