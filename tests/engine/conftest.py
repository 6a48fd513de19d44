"""Models for the engine's tests: a tiny random one made here, and the real built-in one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_models import TEMPLATE, byte_level_tokenizer
from support.model_folders import write_llama


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a two-layer Llama with random weights; starts in the time that the imports take."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = byte_level_tokenizer()
    write_llama(folder, tokenizer.get_vocab_size(), tokenizer.token_to_id("<|end|>"))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return folder


@pytest.fixture(scope="session")
def smol() -> Any:
    """The built-in model's folder; fetched and converted on first use."""
    from tokentrace.engines.local.model import ensure_model
    from tokentrace.errors import EngineError

    try:
        return ensure_model()
    except EngineError as error:
        if "could not fetch" in str(error):
            pytest.skip(f"no network: {error}")
        raise


@pytest.fixture(scope="session")
def engine(smol: Any) -> Iterator[Any]:
    """One running engine for all tests that do not end it."""
    from tokentrace.engines.local.process import LocalEngine

    with LocalEngine.start(smol, agent=False) as running:
        yield running
