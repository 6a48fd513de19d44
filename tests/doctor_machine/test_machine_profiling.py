"""Layers 4 and 3: a real tiny profile, recordings as if they were one, rights, libraries, routes and tools."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from machine_trees import Machine, by_id, situation, snapshot
from support.http_servers import ScriptedServer, json_answer

from tokentrace.client.settings import resolve
from tokentrace.doctor.look import Look, Reply
from tokentrace.doctor.machine import rights, route, surroundings, tools, trial, trial_program
from tokentrace.doctor.machine.command import parse
from tokentrace.doctor.machine.surroundings import Surroundings
from tokentrace.host import proc

HERE = Surroundings("", "", False, ())
WSL = Surroundings("", "", True, ())


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    pytest.importorskip("torch")
    return trial.run(sys.executable, os.environ, 120.0)


def test_a_real_profile_of_this_machine(real: dict[str, Any]) -> None:
    found = by_id(trial.judge(real, any_gpu=real.get("device") == "cuda", around=HERE))
    assert found["TT401"].status == "ok" and "operators" in found["TT401"].detail
    assert found["TT301"].status == "ok"
    if real["device"] == "cpu":
        assert "leaf operators" in found["TT301"].detail
    names = set(real["header"]["names"])
    assert {"aten::mm", "aten::relu"} <= names


def test_the_trial_writes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = snapshot(tmp_path)
    environ = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    assert trial.run(sys.executable, environ, 120.0)["stage"] == "done"
    assert snapshot(tmp_path) == before


def program(folder: Path, text: str) -> str:
    """A stand-in for Python that does what a broken one might."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "within_s", "status", "said"),
    [
        ("sleep 200", 1.0, "unknown", "was not done in 1 s"),
        ("echo words", 60.0, "fail", "exit code 0"),
        ("kill -11 $$", 60.0, "fail", "killed by signal 11"),
        ("echo 'ImportError: libcudart.so.12' >&2; exit 3", 60.0, "fail", "libcudart.so.12"),
        (
            """echo '{"stage": "import", "error": "OSError: undefined symbol"}'""",
            60.0,
            "fail",
            "torch cannot be imported",
        ),
        ("""echo '{"stage": "profile", "error": "GroupUnavailable: x"}'""", 60.0, "fail", "does not work"),
    ],
)
def test_a_torch_that_does_not_work(tmp_path: Path, text: str, within_s: float, status: str, said: str) -> None:
    began = time.monotonic()
    found = trial.run(program(tmp_path, text), os.environ, within_s)
    assert time.monotonic() - began < 100
    results = by_id(trial.judge(found, False, HERE))
    assert results["TT401"].status == status and said in results["TT401"].detail
    assert results["TT301"].status == "unknown"


def test_what_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    for limit_s in (0.5, 5.0, 30.0):  # long enough for a shell to begin, on any machine
        trial.run(program(tmp_path, f"sleep 300 & echo $! > {mark}; wait"), os.environ, limit_s)
        if mark.exists() and mark.read_text().strip():
            break
    child = int(mark.read_text())
    end = time.monotonic() + 60
    while time.monotonic() < end:
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {child} lives on")


def test_a_python_that_is_not_there() -> None:
    assert "does not start" in trial.run("/no/such/python", os.environ, 1.0)["error"]


def recorded(path: Path, *, kernels: bool = True) -> dict[str, Any]:
    """A recorded Chrome trace in the form of the trial's answer; optionally with its device events lost."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    names: dict[str, int] = {}
    kinds: dict[str, int] = {}
    columns: dict[str, list[int]] = {n: [] for n in ("start_ns", "end_ns", "thread", "name", "kind", "device_type",
                                     "shape", "geometry", "correlation", "device", "stream", "bytes")}  # fmt: skip
    for event in data["traceEvents"]:
        category = str(event.get("cat", "")).lower()
        on_device = category in ("kernel", "gpu_memcpy", "gpu_memset")
        if event.get("ph") != "X" or category not in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op"):
            continue
        if on_device and not kernels:
            continue
        start = int(float(event["ts"]) * 1000)
        row = {"start_ns": start, "end_ns": start + int(float(event["dur"]) * 1000), "thread": 1,
               "name": names.setdefault(event["name"], len(names)), "kind": kinds.setdefault(category, len(kinds)),
               "device_type": int(on_device), "shape": -1, "geometry": -1, "device": 0 if on_device else -1,
               "correlation": int(event["args"].get("correlation", 0)), "stream": 7 if on_device else -1,
               "bytes": -1}  # fmt: skip
        for name, value in row.items():
            columns[name].append(value)
    header = {"names": list(names), "kinds": list(kinds), "device_types": ["CPU", "CUDA"], "shapes": [],
              "geometries": [], "activities": ["CPU", "CUDA"], "start_ns": 0, "end_ns": 10**6}  # fmt: skip
    return {"stage": "done", "torch": "2.9.0", "device": "cuda", "header": header,
            "counts": trial_program.counts(header, columns),
            "names": ["NVIDIA A100"], "capabilities": [[8, 0]], "architectures": ["sm_80", "sm_90"]}  # fmt: skip


def test_kernels_of_a_real_recording_are_joined(recordings: Path) -> None:
    found = by_id(trial.judge(recorded(recordings / "hta/a100_simple_add_small.json.gz"), True, HERE))
    assert found["TT301"].status == "ok" and "4 kernels and copies, 0 without a launch" in found["TT301"].evidence[0]
    assert found["TT509"].status == "ok"


def test_launches_without_kernels_are_a_blind_profiler_not_an_idle_gpu(recordings: Path) -> None:
    answer = recorded(recordings / "hta/a100_simple_add_small.json.gz", kernels=False)
    blind = by_id(trial.judge(answer, True, HERE))["TT301"]
    assert blind.status == "fail" and "blind" in blind.detail and "TT402" in blind.fix and "idle" not in blind.detail
    wsl = by_id(trial.judge(answer, True, WSL))["TT301"]
    assert wsl.status == "warn" and "WSL" in wsl.detail


@pytest.mark.parametrize(
    ("card", "architectures", "works"),
    [
        ([8, 0], ["sm_80"], True), ([8, 6], ["sm_80"], True), ([12, 0], ["sm_80", "sm_90"], False),
        ([12, 0], ["sm_90", "compute_90"], True), ([6, 1], ["sm_75", "sm_80"], False), ([9, 0], ["sm_90a"], True),
        ([7, 0], [], True),
    ],
)  # fmt: skip
def test_a_card_that_torch_has_no_code_for(card: list[int], architectures: list[str], works: bool) -> None:
    said = trial._no_code({"names": ["GPU"], "capabilities": [card], "architectures": architectures})
    assert bool(said) is not works


def test_a_torch_that_cannot_use_the_gpu_says_why(real: dict[str, Any]) -> None:
    if real["device"] != "cpu":
        pytest.skip("this machine has a GPU")
    answer = {**real, "why_not": "CUDA driver initialization failed, you might not have a CUDA gpu."}
    result = by_id(trial.judge(answer, True, HERE))
    assert result["TT509"].status == "fail" and "driver initialization" in result["TT509"].detail
    assert result["TT301"].status == "unknown"
    left = by_id(trial.judge(real, True, HERE, "GPU 0 has less than 1 GiB free"))
    assert left["TT509"].status == "unknown" and "less than 1 GiB" in left["TT509"].detail


# ---- rights and libraries -------------------------------------------------------------------------------------------


def params(machine: Machine, value: int, effective: str = "0000000000000000", version: str = "575.57.08") -> Any:
    machine.nvidia("GPU-1", version=version)
    machine.write("/proc/driver/nvidia/params", f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {value}\n")
    machine.write("/proc/self/status", f"Name:\tpython\nCapEff:\t{effective}\n")
    return by_id(rights.counters(situation(), machine.view()))["TT402"]


def test_counters_for_administrators_only_say_the_hosts_fix_and_spare_the_kernel_times(machine: Machine) -> None:
    result = params(machine, 1)
    assert result.status == "ok" and "kernel times can be recorded" in result.detail
    assert "NVreg_RestrictProfilingToAdminUsers=0" in result.fix and "cap-add" not in result.fix
    machine.write("/.dockerenv")
    assert "--cap-add SYS_ADMIN or PERFMON" in params(machine, 1).fix
    assert "PERFMON" not in params(machine, 1, version="550.54.15").fix


@pytest.mark.parametrize(
    ("value", "bits", "version", "free"),
    [(0, 0, "550.1", True), (1, 1 << 21, "550.1", True), (1, 1 << 38, "575.1", True), (1, 1 << 38, "550.1", False),
     (1, 1 << 19, "575.1", False)],
)  # fmt: skip
def test_which_right_lifts_the_restriction(machine: Machine, value: int, bits: int, version: str, free: bool) -> None:
    result = params(machine, value, f"{bits:016x}", version)
    assert (result.detail == "GPU counters may be read, kernel times too") is free and bool(result.fix) is not free


def test_a_driver_that_does_not_say(machine: Machine) -> None:
    machine.nvidia("GPU-1")
    assert by_id(rights.counters(situation(), machine.view()))["TT402"].status == "unknown"


SITE = "/venv/lib/python3.11/site-packages"


def test_the_tracing_library_of_another_cuda(machine: Machine) -> None:
    machine.torch(SITE, "2.9.0+cu128", cuda="12.8")
    machine.write("/venv/bin/python")
    machine.write("/usr/local/cuda-11.8/extras/CUPTI/lib64/libcupti.so.11.8")
    machine.write("/usr/local/cuda-12.8/lib64/libcupti.so.2025.1.1")

    def look(path: str) -> Any:
        environ = {**machine.environ, "LD_LIBRARY_PATH": path}
        seen = machine.view(pid=4, command=("/venv/bin/python",), environ=environ)
        return by_id(rights.cupti(situation(), seen))["TT403"]

    assert look("").status == "ok"
    assert look("/usr/local/cuda-12.8/lib64").status == "ok"
    wrong = look("/usr/local/cuda-11.8/extras/CUPTI/lib64")
    assert wrong.status == "warn" and "another CUDA" in wrong.detail and "LD_LIBRARY_PATH" in wrong.fix
    machine.write("/proc/self/maps", f"7f r-xp 0 08:01 1  {SITE}/nvidia/cuda_cupti/lib/libcupti.so.12\n")
    loaded = look("/usr/local/cuda-11.8/extras/CUPTI/lib64")
    assert loaded.status == "ok" and any(line.startswith("loaded: ") for line in loaded.evidence)


def test_a_real_process_called_nsys_holds_the_profiler(machine: Machine, tmp_path: Path) -> None:
    machine.nvidia("GPU-1")
    copy = tmp_path / "nsys"
    shutil.copy(str(shutil.which("sleep")), copy)
    copy.chmod(0o755)
    child = subprocess.Popen([str(copy), "300"])
    try:
        end = time.monotonic() + 60
        while Path(f"/proc/{child.pid}/comm").read_text().strip() != "nsys" and time.monotonic() < end:
            time.sleep(0.02)
        result = by_id(rights.holders(situation(), machine.view()))["TT404"]
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it keeps its name until its parent has asked
        ended = by_id(rights.holders(situation(), machine.view()))["TT404"]
    finally:
        child.kill()
        child.wait()
    assert result.status == "warn" and f"process {child.pid} is nsys" in result.evidence
    assert f"process {child.pid} is nsys" not in ended.evidence


def test_a_monitor_holds_counters_only(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.nvidia("GPU-1")
    monkeypatch.setattr(proc, "running", lambda names: iter([(9, "nv-hostengine")]))
    result = by_id(rights.holders(situation(), machine.view()))["TT404"]
    assert result.status == "ok" and "kernel times stay free" in result.detail


def test_wsl_records_no_kernels(machine: Machine) -> None:
    machine.write("/proc/version", "Linux version 5.15-microsoft-standard-WSL2")
    assert surroundings.look(machine.view()).wsl
    result = by_id(rights.platform(situation(), machine.view()))["TT406"]
    assert result.status == "unknown" and "not idle but unseen" in result.detail.replace("then ", "")


# ---- vLLM's routes --------------------------------------------------------------------------------------------------

NEW, OLD = "0.17.0", "0.10.2"
CONFIG = "--profiler-config"


@pytest.mark.parametrize(
    ("version", "folder", "flags", "answer", "status", "said"),
    [
        (NEW, "/x", "", 404, "warn", "does not read it any more"),
        (NEW, "", "", 404, "ok", "does not need it"),
        (NEW, "", '--profiler-config {"torch_profiler_dir":"/p"}', 405, "ok", "are there"),
        (NEW, "", "--profiler-config {}", 404, "warn", "has no route"),
        (OLD, "/x", "", 405, "ok", "are there"),
        (OLD, "/x", "", 404, "warn", "has no route"),
        (OLD, "", "--profiler-config {}", 404, "warn", "knows only VLLM_TORCH_PROFILER_DIR"),
        ("0.16.0rc1", "/x", "", None, "warn", "does not read it any more"),
    ],
)
def test_the_switch_that_each_version_wants(
    machine: Machine, version: str, folder: str, flags: str, answer: int | None, status: str, said: str
) -> None:
    asked = parse(("vllm", "serve", "m", *flags.split()))
    result = route.judge(version, folder, asked, answer, machine.view())
    assert result.status == status and said in result.detail
    if status == "warn":
        assert ("--profiler-config" if version != OLD else "VLLM_TORCH_PROFILER_DIR=") in result.fix


def test_an_empty_folder_of_profiles_is_explained(machine: Machine) -> None:
    (machine.root / "p").mkdir()
    asked = parse(("vllm", "serve", "m", CONFIG, '{"torch_profiler_dir":"/p"}'))
    result = route.judge(NEW, "", asked, 405, machine.view())
    assert any("POST /stop_profile" in line for line in result.evidence)
    machine.write("/p/rank0.json.gz", "x")
    assert any("holds 1 file" in line for line in route.judge(NEW, "", asked, 405, machine.view()).evidence)


@pytest.mark.parametrize(("there", "status"), [(False, "warn"), (True, "ok")])
def test_the_route_is_asked_over_a_real_socket_without_starting_anything(there: bool, status: str) -> None:
    with ScriptedServer() as server:
        if there:
            server.on("GET", "/start_profile", json_answer({"detail": "Method Not Allowed"}, 405))
        environ = {"VLLM_TORCH_PROFILER_DIR": "/x"} if not there else {}
        endpoint = resolve(url=server.url + "/v1", model="m", environ=environ)
        version = Reply(200, {}, json.dumps({"version": NEW}).encode())
        metrics = Reply(200, {}, b"vllm:num_requests_running 0\n")
        here = situation("endpoint", environ, endpoint=endpoint, look=Look({"version": version, "metrics": metrics}))
        result = by_id(route.run(here))["TT405"]
        assert result.status == status
        assert [(r.method, r.path) for r in server.requests] == [("GET", "/start_profile")]


def test_another_server_is_not_asked() -> None:
    with ScriptedServer() as server:
        endpoint = resolve(url=server.url + "/v1", model="m", environ={})
        assert by_id(route.run(situation("endpoint", {}, endpoint=endpoint, look=Look())))["TT405"].status == "skip"
        assert server.requests == []


# ---- tools ----------------------------------------------------------------------------------------------------------


def test_vendor_profilers_are_told_with_their_versions(tmp_path: Path, machine: Machine) -> None:
    for name, said in (
        ("nsys", "NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0"),
        ("ncu", "Version 2025.2.1"),
    ):
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\necho '{said}'\n")
        file.chmod(0o755)
    from tokentrace.doctor.machine.view import View

    result = by_id(tools.look(situation(), View({"PATH": str(tmp_path)})))["TT302"]
    assert result.status == "ok" and "nsys 2025.3.1.90" in result.detail and "ncu 2025.2.1" in result.detail


def test_missing_profilers_on_a_gpu_machine_are_no_fault(machine: Machine) -> None:
    machine.nvidia("GPU-1")
    result = by_id(tools.look(situation(), machine.view()))["TT302"]
    assert result.status == "ok" and "nsys: not there" in result.evidence
    machine.write("/opt/nvidia/nsight-compute/2025.2.1/ncu")
    assert "/opt/nvidia/nsight-compute/2025.2.1/ncu" in "".join(
        by_id(tools.look(situation(), machine.view()))["TT302"].evidence
    )
