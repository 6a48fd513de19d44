"""A damaged cache is noticed, whatever the damage; a copied one is not thrown away."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tokentrace.engines.local import manifest

BIG = 9 << 20


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text('{"small": true}')
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * (BIG // 256))
    manifest.write(folder, {"converter": 1})
    return folder


def flip(file: Path, at: int, *, keep_time: bool = False) -> None:
    status = file.stat()
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))
    if keep_time:
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_whole_cache_passes_and_passes_again(cached: Path) -> None:
    assert manifest.check(cached) is None
    assert manifest.check(cached) is None


@pytest.mark.parametrize("at", [0, BIG // 2, BIG - 1])
def test_one_changed_bit_in_the_weights(cached: Path, at: int) -> None:
    flip(cached / "model.safetensors", at)
    assert manifest.check(cached) == "model.safetensors has changed"


def test_header_and_small_files_are_hashed_even_when_the_time_was_put_back(cached: Path) -> None:
    flip(cached / "model.safetensors", 10, keep_time=True)
    assert manifest.check(cached) == "model.safetensors has changed"
    flip(cached / "model.safetensors", 10, keep_time=True)
    flip(cached / "tokenizer.json", 3, keep_time=True)
    assert manifest.check(cached) == "tokenizer.json has changed"


def test_truncated_missing_and_absent(cached: Path, tmp_path: Path) -> None:
    with (cached / "model.safetensors").open("r+b") as file:
        file.truncate(BIG - 7)
    assert "bytes instead of" in str(manifest.check(cached))
    (cached / "model.safetensors").unlink()
    assert manifest.check(cached) == "model.safetensors is missing"
    assert manifest.check(tmp_path / "nowhere") == f"{manifest.NAME} is missing"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1, "files": {"a": {}}}', '{"schema": 99, "files": {}}'])
def test_a_broken_manifest_is_damage_not_a_crash(cached: Path, text: str) -> None:
    (cached / manifest.NAME).write_text(text)
    assert manifest.check(cached)


def test_a_copied_cache_is_hashed_once_and_then_trusted(cached: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(cached, copy, copy_function=shutil.copy)  # new times
    os.utime(copy / "model.safetensors", (1, 1))
    before = (copy / manifest.NAME).read_text()
    assert manifest.check(copy) is None
    assert (copy / manifest.NAME).read_text() != before  # the new times are noted
    assert manifest.check(copy) is None
