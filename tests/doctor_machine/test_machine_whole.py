"""All checks of layers 5 to 1 together: no false alarm, no traces, no exception, no secret, reports answered."""

from __future__ import annotations

import csv
import importlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machine_trees import Machine, as_nobody, situation, snapshot
from reports import REPORTS

from tokentrace.doctor import machine as room
from tokentrace.doctor.check import Check, Result
from tokentrace.doctor.machine import situation as seam
from tokentrace.doctor.machine.view import View

MODULES = [importlib.import_module(name) for name in room.MODULES]
CHECKS: list[Check] = [check for module in MODULES for check in module.CHECKS]
STATIC = [c for c in CHECKS if c.run is not None and not c.live and not c.network and c.seconds <= 2]


def run(checks: Iterable[Check], **more: Any) -> list[Result]:
    return [result for check in checks if check.run for result in check.run(situation(**more))]


def test_ids_are_unique_and_every_result_has_one() -> None:
    ids = [c.id for c in CHECKS]
    assert len(set(ids)) == len(ids) and {c.layer for c in CHECKS} == {5, 4, 3, 2, 1}
    assert {r.id for r in run(STATIC)} <= set(ids)
    for check in CHECKS:
        assert all(len(text) > 10 for text in (check.meaning, check.looks, check.fix)), check.id


#: What may really be wrong with the machine that runs the tests: a full disk, a second torch, sensors for root only.
OWN_FAULTS = ("TT203", "TT508", "TT101", "TT108", "TT109")


def test_this_machine_gets_no_false_alarm(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if any(Path("/dev").glob("nvidia*")) or Path("/dev/kfd").exists():
        pytest.skip("a machine with a GPU may have faults of its own")
    # A user without caches: those of who runs the tests may hold locks of killed builds, or lie in memory.
    environ = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": os.environ["PATH"]}
    found = [r for r in run(STATIC, environ=environ) if r.id not in OWN_FAULTS]
    assert [f"{r.id} {r.status} {r.detail}" for r in found if r.status in ("warn", "fail")] == []


def test_the_static_checks_do_nothing_that_takes_long() -> None:
    """Processor time, which others do not take; a tenth of a second where this was written."""
    before = time.process_time()
    run(STATIC)
    assert time.process_time() - before < 20


def test_on_another_machine_everything_is_skipped() -> None:
    results = run([c for c in CHECKS if c.id not in ("TT405",)], mode="endpoint", here=False)
    assert {r.status for r in results} == {"skip"}


def test_a_server_whose_process_is_not_known_is_not_judged_by_ours() -> None:
    """It may run in a container, with another torch, another HOME and other variables."""
    environ = {"HOME": "/dev/null", "CUDA_VISIBLE_DEVICES": "", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    results = run([c for c in CHECKS if not c.live and not c.network], mode="endpoint", environ=environ)
    assert [r for r in results if r.status in ("warn", "fail") and r.id not in ("TT506", *OWN_FAULTS)] == []
    assert {r.id for r in results if "--pid" in r.detail} >= {"TT502", "TT503", "TT201", "TT208", "TT401"}


def test_torch_is_not_loaded_by_static_checks() -> None:
    import subprocess
    import sys

    code = (
        "import importlib, sys, time, os\n"
        "from tokentrace.doctor import machine\n"
        "from tokentrace.doctor.check import Situation\n"
        "for name in machine.MODULES:\n"
        "    for check in importlib.import_module(name).CHECKS:\n"
        "        if check.run and check.seconds <= 2 and not check.live and not check.network:\n"
        "            list(check.run(Situation('machine', os.environ, time.monotonic() + 30)))\n"
        "print([m for m in ('torch', 'transformers', 'vllm') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_home_that_cannot_be_written_is_told_and_nothing_is_left_anywhere(public: Path) -> None:
    home = public / "home"
    (home / ".triton/cache").mkdir(parents=True)
    (home / ".triton/cache/k.json").write_text("{}")
    home.chmod(0o555)
    environ = {"HOME": str(home), "TMPDIR": str(home), "PATH": os.environ["PATH"], "USER": "nobody"}
    for path in home.rglob("*"):
        os.utime(path, (10**9, 10**9 + 5))
    before = snapshot(public)
    told = as_nobody(lambda: [[r.id, r.status] for r in run(STATIC, environ=environ)])
    names = {path: facts[:3] for path, facts in snapshot(public).items()}
    assert names == {path: facts[:3] for path, facts in before.items()}
    if os.getuid() == 0:
        assert ["TT201", "fail"] in told
    run(STATIC, environ=environ)  # as the owner, who may leave access times alone too
    assert snapshot(public).keys() == before.keys()


def everywhere(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (seam, *MODULES):
        if hasattr(module, "view_of"):
            monkeypatch.setattr(module, "view_of", lambda situation: view)


FILES = (
    "/proc/driver/nvidia/version", "/proc/driver/nvidia/params", "/proc/driver/nvidia/gpus/0000:01:00.0/information",
    "/sys/bus/pci/devices/0000:01:00.0/class", "/sys/bus/pci/devices/0000:01:00.0/vendor", "/proc/self/mountinfo",
    "/proc/self/status", "/proc/self/maps", "/proc/self/cgroup", "/proc/cpuinfo", "/proc/meminfo", "/proc/locks",
    "/proc/version", "/proc/sys/kernel/perf_event_paranoid", "/sys/class/kfd/kfd/topology/nodes/1/properties",
    "/sys/class/drm/renderD128/device/mem_info_vram_total", "/etc/passwd",
    "/venv/lib/python3.11/site-packages/torch/version.py",
    "/home/me/.cache/vllm/torch_compile_cache/k/rank_0_0/b/cache_key_factors.json", "/models/m/config.json",
    "/home/me/.cache/flashinfer/0.4/90a/cached_ops/x/build.ninja",
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.binary(max_size=80), st.sampled_from([b"", b"0", b"\xff\xfe", b"NaN", b"a: b\n" * 9])),
                min_size=len(FILES), max_size=len(FILES)))  # fmt: skip
def test_whatever_the_files_hold_no_check_raises(machine: Machine, contents: list[bytes]) -> None:
    for path, content in zip(FILES, contents, strict=True):
        machine.write(path).write_bytes(content)
    machine.write("/venv/bin/python")
    command = ("/venv/bin/python", "-m", "vllm", "--model", "/models/m", "--max-num-seqs", "x")
    seen = machine.view(pid=1, command=command)
    with pytest.MonkeyPatch.context() as patch:
        everywhere(seen, patch)
        results = run(STATIC)
    assert results and all(r.detail for r in results)


def test_no_secret_of_the_server_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = "sk-canary-0123456789"
    machine.nvidia("GPU-1")
    machine.torch("/venv/lib/python3.11/site-packages", "2.9.0+cu128", cuda="12.8")
    machine.write("/venv/bin/python")
    machine.write(
        "/home/me/.cache/vllm/torch_compile_cache/k/rank_0_0/b/cache_key_factors.json",
        f'{{"env": {{"K": "{canary}"}}}}',
    )
    environ = {**machine.environ, "OPENAI_API_KEY": canary, "VLLM_API_KEY": canary, "HF_TOKEN": canary}
    command = ("/venv/bin/python", "-m", "vllm", "serve", "m", "--api-key", canary, "--enforce-eager")
    everywhere(machine.view(pid=os.getpid(), command=command, environ=environ), monkeypatch)
    assert canary not in repr(run(STATIC))


@pytest.mark.skipif(os.getuid() != 0, reason="root may read everything, others not")
def test_folders_that_cannot_be_read_are_survived(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(public)
    machine.nvidia("GPU-1")
    machine.amd()
    for path in list(public.rglob("*")):
        path.chmod(0) if not path.is_symlink() else None
    everywhere(machine.view(), monkeypatch)
    told = as_nobody(lambda: [r.detail for r in run(STATIC)])
    assert told


def test_every_report_of_these_layers_is_answered_or_said_to_be_open() -> None:
    path = Path(os.environ.get("TOKENTRACE_REPORTS", "/nonexistent"))
    ids = {c.id for c in CHECKS}
    assert all(set(checks) <= ids for checks, _, _ in REPORTS.values())
    assert all(bool(checks) == (how not in ("elsewhere", "open")) for checks, how, _ in REPORTS.values())
    if path.is_file():
        with path.open() as file:
            rows = [row["id"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
        assert {r for r in rows if r[0] in "MPKJW"} == set(REPORTS)
