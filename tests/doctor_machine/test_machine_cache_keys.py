"""Layer 2: what the caches of compiled code hold: their keys, their locks, and what a call wrote into them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from machine_trees import Machine, by_id, situation

from tokentrace.doctor.machine import compiled, keys, view
from tokentrace.doctor.machine.view import View
from tokentrace.host import proc


def vllm_key(home: Path, key: str, **factors: Any) -> None:
    file = home / f".cache/vllm/torch_compile_cache/{key}/rank_0_0/backbone/cache_key_factors.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"code_hash": "c0", "compiler_hash": "k0", "config_hash": "g0", "env": {}} | factors))


def test_a_key_that_is_new_at_each_start_names_what_changed(tmp_path: Path) -> None:
    for number in range(4):
        vllm_key(tmp_path, f"k{number}", env={"VLLM_NIXL_SIDE_CHANNEL_HOST": f"10.0.0.{number}", "VLLM_USE_V1": "1"})
    result = by_id(keys.look(situation(), View({"HOME": str(tmp_path)})))["TT208"]
    assert result.status == "warn" and "VLLM_NIXL_SIDE_CHANNEL_HOST" in result.fix and "4 times" in result.detail
    assert "VLLM_USE_V1" not in result.detail and "10.0.0." not in "".join(
        (result.detail, result.fix, *result.evidence)
    )


def test_different_models_are_no_fault(tmp_path: Path) -> None:
    for number in range(6):
        vllm_key(tmp_path, f"k{number}", config_hash=f"g{number}")
    assert by_id(keys.look(situation(), View({"HOME": str(tmp_path)})))["TT208"].status == "ok"


def test_broken_key_files_are_survived(tmp_path: Path) -> None:
    for number, text in enumerate(("", "[", "[1]", '{"env": 3}', '{"env": {"a": null}, "config": []}')):
        vllm_key(tmp_path, f"k{number}")
        file = tmp_path / f".cache/vllm/torch_compile_cache/k{number}/rank_0_0/backbone/cache_key_factors.json"
        file.write_text(text)
    assert by_id(keys.look(situation(), View({"HOME": str(tmp_path)})))["TT208"].status == "ok"


def flashinfer(machine: Machine, cuda_home: str) -> None:
    machine.write("/home/me/.cache/flashinfer/0.4.0/90a/cached_ops/x/build.ninja",
                  f"ninja_required_version = 1.3\ncuda_home = {cuda_home}\ncxx = c++\n")  # fmt: skip


@pytest.mark.parametrize(
    ("built", "now", "status"),
    [
        ("/usr/local/cuda-13.2", "/usr/local/cuda-13.2", "ok"),
        ("/usr/local/cuda-13.1", "/usr/local/cuda-13.2", "warn"),
        ("/usr/local/cuda", "/no/such", "unknown"),
    ],
)
def test_flashinfer_builds_of_another_cuda_folder(machine: Machine, built: str, now: str, status: str) -> None:
    machine.write("/usr/local/cuda-13.2/bin/nvcc")
    flashinfer(machine, built)
    seen = machine.view(environ={"HOME": "/home/me", "CUDA_HOME": now})
    result = by_id(keys.look(situation(), seen))["TT207"]
    assert result.status == status and any(built in line for line in result.evidence)


def test_what_flashinfers_builds_took_is_told_by_ninjas_log(machine: Machine) -> None:
    machine.write("/usr/local/cuda-13.2/bin/nvcc")
    flashinfer(machine, "/usr/local/cuda-13.2")
    folder = "/home/me/.cache/flashinfer/0.4.0/90a/cached_ops"
    machine.write(f"{folder}/x/x.so")
    machine.write(f"{folder}/x/.ninja_log", "# ninja log v5\n0\t9000\t0\tx.cuda.o\tf1\n9000\t9500\t0\tx.so\tf2\n")
    seen = machine.view(environ={"HOME": "/home/me", "CUDA_HOME": "/usr/local/cuda-13.2"})
    result = by_id(keys.look(situation(), seen))["TT207"]
    assert "1 module, built in 9.50 s; longest: x 9.50 s" in result.evidence
    machine.write(f"{folder}/y/build.ninja", "cuda_home = /usr/local/cuda-13.2\n")
    machine.write(f"{folder}/y/y.so")
    result = by_id(keys.look(situation(), seen))["TT207"]
    assert "2 modules, built in at least 9.50 s; longest: x 9.50 s" in result.evidence


def test_a_module_below_a_linked_folder_is_seen_to_be_loaded(tmp_path: Path) -> None:
    """The kernel names what a process has mapped without the links that lead to it. Two real libraries, one loaded."""
    libm = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libm.so" in line)
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to("disk")
    for name in ("prefill", "decode"):
        folder = tmp_path / f"cache/.cache/flashinfer/0.4.0/90a/cached_ops/{name}"
        folder.mkdir(parents=True)
        (folder / "build.ninja").write_text("cuda_home = /usr/local/cuda\n")
        shutil.copy(libm, folder / f"{name}.so")
    code = f"import ctypes, sys; ctypes.CDLL({str(folder / 'decode.so')!r}); print(flush=True); sys.stdin.read()"
    environ = {**os.environ, "FLASHINFER_WORKSPACE_BASE": str(tmp_path / "cache")}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    ) as server:
        assert server.stdout is not None and server.stdout.readline() == b"\n"
        seen = view.of_process(server.pid)
        result = by_id(keys.look(situation(), seen))["TT207"]
        server.communicate(b"")
    assert any(line.startswith(f"2 modules, 1 of them loaded by {seen.whose}") for line in result.evidence)


def test_flashinfer_follows_the_symbolic_link(machine: Machine) -> None:
    machine.write("/usr/local/cuda-13.2/bin/nvcc")
    (machine.root / "usr/local/cuda").symlink_to("cuda-13.2")
    flashinfer(machine, "/usr/local/cuda-13.2")
    assert by_id(keys.look(situation(), machine.view(environ={"HOME": "/home/me"})))["TT207"].status == "ok"


def test_a_lock_that_a_living_process_holds_is_named(tmp_path: Path) -> None:
    lock = tmp_path / ".triton/cache/x.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        holders = keys._holders(View({}))
        facts = lock.stat()
        if (facts.st_dev, facts.st_ino) not in holders:
            pytest.skip("/proc/locks does not tell this file system's locks")
        result = by_id(keys.look(situation(), View({"HOME": str(tmp_path)})))["TT206"]
    assert f"held by process {os.getpid()}" in "".join(result.evidence)
    assert by_id(keys.look(situation(), View({"HOME": str(tmp_path)})))["TT206"].status == "ok"


def test_a_lock_that_a_killed_build_left_is_a_warning(tmp_path: Path) -> None:
    lock = tmp_path / ".cache/torch_extensions/py311_cu128/op/lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    assert by_id(keys.look(situation(), View({"HOME": str(tmp_path)})))["TT206"].status == "ok"  # it may be in use
    os.utime(lock, (time.time() - 4000,) * 2)
    for _ in range(200):  # somebody else may compile just now, and then the lock may be his
        result = by_id(keys.look(situation(), View({"HOME": str(tmp_path)})))["TT206"]
        if result.status == "warn" or not any(proc.running(keys.COMPILERS)):
            break
        time.sleep(0.1)
    else:
        pytest.skip("a compiler runs on this machine")
    assert (result.status, result.fix) == ("warn", f"rm {lock}")


def test_a_compiler_that_has_ended_holds_no_lock(tmp_path: Path) -> None:
    """It is in /proc, with its name, until its parent has asked about its end."""
    lock = tmp_path / ".cache/torch_extensions/py311_cu128/op/lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    os.utime(lock, (time.time() - 4000,) * 2)
    program = shutil.copy(str(shutil.which("true")), tmp_path / "cicc")
    with subprocess.Popen([program]) as compiler:
        os.waitid(os.P_PID, compiler.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{compiler.pid}/comm").read_text() == "cicc\n"
        for _ in range(200):
            others = {pid for pid, _ in proc.running(keys.COMPILERS)}
            result = by_id(keys.look(situation(), View({"HOME": str(tmp_path)})))["TT206"]
            others = (others | {pid for pid, _ in proc.running(keys.COMPILERS)}) - {compiler.pid}
            if result.status == "warn" or not others:
                break
            time.sleep(0.1)
    if result.status != "warn" and others:
        pytest.skip("a compiler runs on this machine")
    assert result.fix == f"rm {lock}"


def test_tensorrt_engines_that_were_never_found_again(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "ORT_TENSORRT_ENGINE_CACHE_ENABLE": "1",
               "ORT_TENSORRT_CACHE_PATH": str(tmp_path / "trt")}  # fmt: skip
    (tmp_path / "trt").mkdir()
    for number in range(3):
        (tmp_path / f"trt/TRTKernel_graph_{number}_0_sm80.engine").write_text("")
    result = by_id(keys.look(situation(), View(environ)))["TT212"]
    assert result.status == "warn" and "3 TensorRT engines" in result.detail
    assert any("TensorRT here" in line for line in result.evidence)


def test_files_written_during_the_call_are_a_miss(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    (tmp_path / ".triton/cache").mkdir(parents=True)
    (tmp_path / ".triton/cache/old").write_text("x")
    sampler = compiled._open(situation(environ=environ))
    assert sampler is not None
    before = sampler.read()
    subprocess.run(  # another process writes, as a server would
        [sys.executable, "-c", f"open({str(tmp_path / '.triton/cache/new.cubin')!r}, 'w').close()"], check=True
    )
    new = compiled.written(before, sampler.read(), time.time())
    assert new == {"triton": [f"{tmp_path}/.triton/cache/new.cubin"]}
    result = compiled.judge(new, 14_600_000_000, 320_000_000)
    assert result.status == "warn" and "1 new file of triton" in result.detail and "14.3 s later" in result.detail
    assert compiled.judge({}, 14_600_000_000, 320_000_000).status == "ok"
    assert compiled.judge({}, 100, 90).status == "ok"


def test_what_was_not_reached_before_is_not_called_new() -> None:
    before = {"triton": (frozenset({("/a", 5.0)}), False)}
    after = {"triton": (frozenset({("/a", 5.0), ("/b", 6.0), ("/c", 101.0)}), True)}
    assert compiled.written(before, after, 100.0) == {"triton": ["/c"]}
    whole = {"triton": (frozenset({("/a", 5.0)}), True)}
    assert compiled.written(whole, after, 100.0) == {"triton": ["/b", "/c"]}
