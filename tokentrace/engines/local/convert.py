"""Turns a Llama model in GGUF form into a Hugging Face folder: safetensors, tokenizer.json, template and configs.

Done once, with numpy alone, in two to three seconds. Two things differ from a plain copy. llama.cpp stores the query
and key projections with their rows interleaved for its rope kernel; that is undone here. And the pre-tokenizer is
named, not described, in a GGUF (`tokenizer.ggml.pre`): "smollm" means that each digit is a token of its own before
the GPT-2 pattern applies. Leaving it out makes "12" one token that the model was never trained on.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tokentrace.engines.local.gguf import Float32, GgufError, GgufFile

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_down": "mlp.down_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_OTHER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL]},
    "gpt-2": _BYTE_LEVEL,
}
#: `tokenizer.ggml.token_type` of a control token
_CONTROL = 3


def convert(gguf: GgufFile, target: Path, progress: Callable[[float], None] | None = None) -> None:
    """Write the folder `target` (must exist, empty) in float32. `progress` is given a fraction from 0 to 1.

    Raises GgufError when the file is not a Llama model with a known tokenizer, OSError when writing fails.
    """
    metadata = gguf.metadata
    if metadata.get("general.architecture") != "llama":
        raise GgufError(f"its architecture is {metadata.get('general.architecture')!r}, not llama")
    try:
        names = _write_weights(gguf, target / "model.safetensors", progress or (lambda fraction: None))
        _write_json(target / "tokenizer.json", _tokenizer(metadata))
        _write_json(target / "config.json", _config(metadata, tied="lm_head.weight" not in names))
        special = {name: metadata[f"tokenizer.ggml.{key}_token_id"] for name, key in _SPECIAL_IDS.items()}
        _write_json(target / "generation_config.json", {**special, "do_sample": False})
        _write_json(target / "tokenizer_config.json", _tokenizer_config(metadata))
        _write_text(target / "chat_template.jinja", metadata["tokenizer.chat_template"])
    except KeyError as error:
        raise GgufError(f"it lacks {error.args[0]}") from error


_SPECIAL_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


def _hf_name(name: str) -> str:
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    block, layer, part, kind = name.split(".")
    if block != "blk":
        raise KeyError(f"a place for tensor {name}")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"


def undo_rope_permutation(weight: Float32, heads: int) -> Float32:
    """Rows [heads * head_dim, in] from llama.cpp's interleaved order (pairs side by side) back to halves."""
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def _write_weights(gguf: GgufFile, path: Path, progress: Callable[[float], None]) -> set[str]:
    """One tensor in memory at a time. The data start at a multiple of 64 bytes, so that they can be mapped aligned."""
    heads = gguf.metadata["llama.attention.head_count"]
    kv_heads = gguf.metadata["llama.attention.head_count_kv"]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in gguf.tensors:
        size = tensor.values * 4
        header[_hf_name(tensor.name)] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-(8 + len(head)) % 64)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)))
        file.write(head)
        done = 0
        for tensor in gguf.tensors:
            values = gguf.array(tensor)
            if ".attn_q." in tensor.name:
                values = undo_rope_permutation(values, heads)
            elif ".attn_k." in tensor.name:
                values = undo_rope_permutation(values, kv_heads)
            file.write(np.ascontiguousarray(values).data)
            done += tensor.values * 4
            progress(done / offset)
        file.flush()
        os.fsync(file.fileno())
    return set(header)


def _tokenizer(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    if metadata["tokenizer.ggml.model"] != "gpt2":
        raise GgufError(f"its tokenizer is {metadata['tokenizer.ggml.model']!r}, not byte-level BPE")
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if pre not in _PRE_TOKENIZERS:
        raise GgufError(f"its pre-tokenizer is {pre!r}; known here are {', '.join(_PRE_TOKENIZERS)}")
    added = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _CONTROL
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]

    def token(key: str) -> str:
        return str(tokens[metadata[f"tokenizer.ggml.{key}_token_id"]])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }


def _config(metadata: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        **{name: metadata[f"tokenizer.ggml.{key}_token_id"] for name, key in _SPECIAL_IDS.items()},
        "hidden_act": "silu",
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": metadata["llama.attention.head_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata["llama.rope.dimension_count"],
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_theta": metadata["llama.rope.freq_base"], "rope_type": "default"},
        "tie_word_embeddings": tied,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "use_cache": True,
        "initializer_range": 0.02,
        "dtype": "float32",
    }


def _write_json(path: Path, value: Any) -> None:
    _write_text(path, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
