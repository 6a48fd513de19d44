"""A folder that cannot be served is refused before anything heavy is imported, in one sentence with a way out."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from support.model_folders import write_hollow_model, write_weights

from tokentrace.engines.local.folder import inspect
from tokentrace.engines.local.model import ensure_model
from tokentrace.errors import EngineError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_hollow_model(tmp_path / "my-model")


def refusal(path: Path) -> str:
    with pytest.raises(EngineError) as caught:
        inspect(path)
    assert caught.value.fix and caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_whole_folder_is_taken_and_named_after_itself(folder: Path) -> None:
    found = inspect(folder)
    assert (found.path, found.name, found.origin) == (folder.resolve(), "my-model", "given")


def test_missing_folder(tmp_path: Path) -> None:
    assert "there is no model folder" in refusal(tmp_path / "nowhere")


def test_file_instead_of_folder(folder: Path) -> None:
    assert "is not a folder" in refusal(folder / "config.json")


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "has no config.json" in refusal(folder)


def test_a_gguf_folder_is_recognised(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "x.gguf").write_bytes(b"GGUF")
    assert "a gguf file is not a model folder" in refusal(folder)


@pytest.mark.parametrize("text", ["{", "[]", "\xff\xfe"])
def test_broken_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json" in refusal(folder)


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["BertModel"], "model_type": "bert"},
        {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
        {"architectures": ["LlamaForSequenceClassification"], "model_type": "llama"},
    ],
)
def test_not_a_causal_model(folder: Path, config: dict[str, object]) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    message = refusal(folder)
    assert "is no causal language model" in message and str(config["architectures"][0]) in message  # type: ignore[index]


def test_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer" in refusal(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "has no weights" in refusal(folder)


def test_weights_cut_off_in_download(folder: Path) -> None:
    write_weights(folder / "model.safetensors", cut=5)
    message = refusal(folder)
    assert "is damaged" in message and " bytes of " in message


@pytest.mark.parametrize(
    "data", [b"", b"\1", b"\xff" * 16, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 3) + b"abc"]
)
def test_weights_that_are_no_safetensors(folder: Path, data: bytes) -> None:
    (folder / "model.safetensors").write_bytes(data)
    assert "is damaged" in refusal(folder)


def test_a_shard_is_missing(folder: Path) -> None:
    index = {"weight_map": {"w": "model.safetensors", "v": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks model-00002-of-00002.safetensors" in refusal(folder)


def test_the_environment_names_a_folder_and_the_argument_wins(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENTRACE_MODEL", str(folder))
    assert ensure_model().path == folder.resolve()
    with pytest.raises(EngineError, match="there is no model folder"):
        ensure_model(tmp_path / "other")
