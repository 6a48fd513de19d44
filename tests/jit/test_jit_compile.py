"""A real torch.compile: the first start compiles and misses, the second one hits, and its kernels have times."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.answering import Answering, context

from tokentrace.probe import Columns, Raw
from tokentrace.probes.jit import JitProbe
from tokentrace.probes.kernel import COMPILED, KernelProbe

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler"),
]
pytest.importorskip("torch")


def run(cache: Path, *arguments: str) -> dict[str, Any]:
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton"),
           "TMPDIR": str(cache.parent), "OMP_NUM_THREADS": "1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("jit_program.py")), *arguments],
        env=env, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    cache = tmp_path_factory.mktemp("jit") / "inductor"
    # Two ways in at once: dynamo loaded before the hooks (cold), and imported after them (warm).
    return cache, run(cache), run(cache, "late")


def probe_of(seen: dict[str, Any]) -> tuple[JitProbe, list[Any]]:
    raws = [Raw("jit", r[0], r[1], r[2], r[3], "7", r[4]) for r in seen["records"]]
    probe = JitProbe()
    records = list(probe.collect(context(Answering([Columns("jit", "7", seen["facts"], {})], raws))))
    return probe, records


def test_a_cold_start_compiles_and_misses(both: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    cache, cold, _ = both
    probe, records = probe_of(cold)
    names = [r.name for r in records]
    assert cold["same"], "compiled and eager results differ"
    assert "compile entire_frame_compile" in names and "compile compile_file" in names
    assert "cache fx graph miss" in names and "cache autograd miss" in names
    assert probe.state.status == "seen" and probe.state.reason == ""
    assert probe.state.facts["cache_miss"] == 2 and probe.state.facts["cache_hit"] == 0
    assert probe.state.facts["compilations"] >= 1 and probe.state.facts["compile_ns"] > 0
    compilers = {r.attributes["tokentrace.jit.compiler"] for r in records}
    assert compilers >= {"dynamo", "aot_autograd", "inductor", "cpp"}
    inductor = next(c for c in probe.state.facts["caches"] if c["compiler"] == "inductor")
    assert (inductor["path"], inductor["source"]) == (str(cache), "environment")
    assert inductor["exists"] and inductor["files"] > 0 and inductor["bytes"] > 0 and inductor["writable"]


def test_the_next_start_hits_and_says_what_that_saved(both: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    _, cold, warm = both
    probe, records = probe_of(warm)
    hit = next(r for r in records if r.name == "cache autograd hit")
    missed = next(r for r in probe_of(cold)[1] if r.name == "cache autograd miss")
    assert hit.attributes["tokentrace.jit.key"] == missed.attributes["tokentrace.jit.key"]
    assert hit.attributes["tokentrace.jit.saved_ms"] > 0
    assert probe.state.facts["cache_miss"] == 0 and probe.state.facts["saved_ns"] > 0
    assert probe.state.facts["compile_ns"] < probe_of(cold)[0].state.facts["compile_ns"]


def test_phases_nest_as_the_compilers_do(both: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    _, cold, _ = both
    _, records = probe_of(cold)
    phases = [r for r in records if r.name.startswith("compile ")]
    assert all(r.end_ns >= r.start_ns > 1_600_000_000_000_000_000 for r in phases), "not unix nanoseconds"
    by_name = {r.name: r for r in phases}
    outer, inner = by_name["compile entire_frame_compile"], by_name["compile inductor_compile"]
    assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns
    assert outer.thread == inner.thread
    # No two phases of a thread cross: a tree can be made of them.
    for a in phases:
        for b in phases:
            if a.thread == b.thread and a.start_ns < b.start_ns < a.end_ns:
                assert b.end_ns <= a.end_ns, (a.name, b.name)


def test_nothing_stays_behind(both: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    for seen in both[1:]:
        assert seen["after"] == 0
        assert seen["restored"] == "ChromiumEventLogger.log_event_start"
        assert "_OnImport" not in seen["finders"]
        assert seen["facts"]["watched"] == ["torch._dynamo.utils"]
        assert seen["facts"]["missing"] == [] and seen["facts"]["errors"] == []
        assert seen["facts"]["environment"] == {"TORCHINDUCTOR_CACHE_DIR": str(both[0])}


def test_the_compiled_kernels_show_their_times(both: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    for seen in both[1:]:
        header, blobs = seen["ops"]
        arrays = {name: np.frombuffer(bytes.fromhex(data), np.dtype(code)) for name, (code, data) in blobs.items()}
        probe = KernelProbe()
        records = list(probe.collect(context(Answering([Columns("ops", "7", header, arrays)]))))
        kernels = [r for r in records if r.name.startswith("kernel ")]
        assert kernels and all("cpp_fused" in k.name and k.end_ns > k.start_ns for k in kernels)
        assert {k.attributes["tokentrace.kernel.kind"] for k in kernels} == {"compiled C++ kernel"}
        assert probe.state.reason == COMPILED
