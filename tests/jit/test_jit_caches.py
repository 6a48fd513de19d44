"""Cache folders: found where the compilers look, measured without being touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokentrace.probes._caches import CacheFolder, cache_folders


def folders(env: dict[str, str], **more: object) -> dict[str, CacheFolder]:
    return {f.compiler: f for f in cache_folders(env, **more)}  # type: ignore[arg-type]


def test_defaults_follow_home_and_xdg() -> None:
    plain = folders({"HOME": "/home/a", "USER": "a"})
    assert {name: f.path for name, f in plain.items()} == {
        "inductor": "/tmp/torchinductor_a",
        "triton": "/home/a/.triton/cache",
        "vLLM": "/home/a/.cache/vllm",
        "CUDA": "/home/a/.nv/ComputeCache",
        "HIP": "/home/a/.cache/comgr_cache",
        "MIOpen": "/home/a/.cache/miopen",
        "MIOpen db": "/home/a/.config/miopen",
        "FlashInfer": "/home/a/.cache/flashinfer",
        "DeepGEMM": "/home/a/.deep_gemm",
        "torch extensions": "/home/a/.cache/torch_extensions",
        "Torch-TensorRT": "/tmp/torch_tensorrt_engine_cache",
    }
    assert {f.source for f in plain.values()} == {"default"}
    moved = folders(
        {"HOME": "/home/a", "USER": "DOM\\a", "XDG_CACHE_HOME": "/c", "TMPDIR": "/big", "TRITON_HOME": "/t"}
    )
    assert moved["vLLM"].path == "/c/vllm" and moved["HIP"].path == "/c/comgr_cache"
    assert moved["inductor"].path == "/big/torchinductor_DOM_a" and moved["triton"].path == "/t/.triton/cache"


def test_variables_win_and_are_named() -> None:
    found = folders(
        {"HOME": "/h", "FLASHINFER_WORKSPACE_BASE": "/f", "CUDA_CACHE_PATH": "/n", "VLLM_CACHE_ROOT": "rel"}
    )
    assert (found["FlashInfer"].path, found["FlashInfer"].source) == ("/f/.cache/flashinfer", "environment")
    assert (found["CUDA"].path, found["CUDA"].variable) == ("/n", "CUDA_CACHE_PATH")
    assert "relative" in found["vLLM"].problem and found["vLLM"].files is None


@pytest.mark.parametrize(
    ("variable", "value", "compiler"),
    [
        ("CUDA_CACHE_DISABLE", "1", "CUDA"),
        ("AMD_COMGR_CACHE", "0", "HIP"),
        ("AMD_COMGR_CACHE_DIR", "", "HIP"),
        ("MIOPEN_DISABLE_CACHE", "true", "MIOpen"),
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1", "inductor"),
        ("VLLM_DISABLE_COMPILE_CACHE", "1", "vLLM"),
    ],
)
def test_a_cache_that_is_switched_off_says_by_what(variable: str, value: str, compiler: str) -> None:
    off = {f.compiler: f.disabled for f in cache_folders({"HOME": "/h", variable: value}) if f.disabled}
    assert off == {compiler: f"{variable}={value}"}
    assert not any(f.disabled for f in cache_folders({"HOME": "/h"}))


def test_inductors_default_is_the_one_torch_itself_uses() -> None:
    torch_rule = pytest.importorskip("torch._inductor.runtime.cache_dir_utils")
    ours = folders(dict(os.environ) | {"TORCHINDUCTOR_CACHE_DIR": ""})["inductor"].path
    assert ours == torch_rule.default_cache_dir()


def test_files_bytes_and_age_are_measured_and_nothing_is_written(tmp_path: Path) -> None:
    cache = tmp_path / "ind"
    (cache / "fx" / "ab").mkdir(parents=True)
    for name, size in (("a.so", 10), ("fx/b.py", 20), ("fx/ab/c", 30)):
        (cache / name).write_bytes(b"x" * size)
        os.utime(cache / name, ns=(10**18, 10**18))
    (cache / "loop").symlink_to(cache)
    os.utime(cache / "loop", ns=(10**18, 10**18), follow_symlinks=False)
    before = sorted((str(p), p.lstat().st_mtime_ns) for p in cache.rglob("*"))
    found = folders({"HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(cache)})["inductor"]
    assert (found.exists, found.files, found.complete, found.writable) == (True, 4, True, True)
    assert found.bytes == 60 + (cache / "loop").lstat().st_size
    assert found.newest_ns == 10**18 and found.age_s(10**18 + 5 * 10**9) == 5.0
    assert sorted((str(p), p.lstat().st_mtime_ns) for p in cache.rglob("*")) == before
    assert not (tmp_path / ".triton").exists()


def test_a_huge_cache_is_looked_at_only_so_long(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"f{number}").write_bytes(b"x")
    found = folders({"HOME": "/h", "TRITON_CACHE_DIR": str(tmp_path)}, max_files=10)["triton"]
    assert found.complete is False and found.files is not None and found.files <= 10


def test_a_file_in_the_folders_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    found = folders({"HOME": "/h", "CUDA_CACHE_PATH": str(tmp_path / "file")})["CUDA"]
    assert found.problem == "it is not a folder" and found.files is None and found.writable is False


def test_another_processs_root_and_mounts(tmp_path: Path) -> None:
    (tmp_path / "root/data/ind").mkdir(parents=True)
    (tmp_path / "root/data/ind/a").write_bytes(b"123")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 0:21 / / rw - overlay overlay rw\n"
        "23 22 0:22 / /data rw shared:1 - nfs4 server:/x rw\n"
        "24 22 0:23 / /data/my\\040cache rw - tmpfs tmpfs rw\n"
        "a line that is no mount\n"
    )
    env = {"HOME": "/root", "TORCHINDUCTOR_CACHE_DIR": "/data/ind", "TRITON_CACHE_DIR": "/data/my cache/t"}
    found = folders(env, root=str(tmp_path / "root"), mounts=str(mounts))
    assert (found["inductor"].path, found["inductor"].files, found["inductor"].filesystem) == ("/data/ind", 1, "nfs4")
    assert found["triton"].filesystem == "tmpfs" and found["CUDA"].filesystem == "overlay"
    assert folders(env, mounts="/no/such/file")["CUDA"].filesystem == ""
