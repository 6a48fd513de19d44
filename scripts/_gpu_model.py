"""A Llama with random weights and a tokenizer of its own, made on the spot: nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PROMPT = "the sea is the sea"


def make_model(folder: Path, *, small: bool) -> int:
    """A Llama with random weights, its tokenizer and chat template; gives the number of parameters."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["hello world", "user assistant", PROMPT], trainer)
    tokenizer.add_special_tokens([AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True)])
    torch.manual_seed(0)
    width, layers = (64, 2) if small else (768, 14)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=width, intermediate_size=width * 8 // 3,
        num_hidden_layers=layers, num_attention_heads=width // 16 if small else 12, num_key_value_heads=4,
        max_position_embeddings=1024, eos_token_id=tokenizer.token_to_id("<|end|>"), bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
    )
    return sum(p.numel() for p in model.parameters())


def loaded(folder: Path, device: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
