"""What layer 2 says with and without compilations, and what it says of the caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.answering import Answering, context

from tokentrace.agent.compile_events import compiler_of
from tokentrace.model import Record
from tokentrace.probe import Columns, Probe, ProbeUnavailable, Raw
from tokentrace.probes._caches import CacheFolder
from tokentrace.probes.jit import JitProbe, cache_finding


def header(tmp_path: Path, **more: Any) -> Columns:
    environment = {"HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "ind")}
    return Columns("jit", "7", {"watched": [], "missing": [], "errors": [], "environment": environment, **more}, {})


def collect(agent: Answering, **more: int) -> tuple[JitProbe, list[Record]]:
    probe = JitProbe()
    assert isinstance(probe, Probe)
    probe.arm(context(agent, **more))
    probe.disarm()
    return probe, list(probe.collect(context(agent, **more)))


def test_eager_says_so_and_still_shows_the_caches(tmp_path: Path) -> None:
    (tmp_path / "ind").mkdir()
    (tmp_path / "ind" / "a.so").write_bytes(b"12345")
    agent = Answering([header(tmp_path)])
    probe, records = collect(agent)
    assert records == []
    assert (probe.state.status, probe.state.reason) == ("idle", "eager: nothing to compile")
    caches = {c["compiler"]: c for c in probe.state.facts["caches"]}
    assert set(caches) >= {"inductor", "triton", "vLLM", "CUDA", "HIP", "MIOpen", "FlashInfer", "DeepGEMM"}
    assert caches["inductor"]["files"] == 1 and caches["inductor"]["bytes"] == 5
    assert caches["CUDA"]["path"] == str(tmp_path / ".nv/ComputeCache") and caches["CUDA"]["exists"] is False
    assert agent.log == [("enable", "jit"), ("disable", "jit")]


def test_a_compiled_model_with_nothing_left_to_compile_is_not_called_eager(tmp_path: Path) -> None:
    probe, _ = collect(Answering([header(tmp_path)], facts={"compile": True}))
    assert probe.state.status == "idle"
    assert probe.state.reason == "the model is compiled, and nothing was left to compile for this request"


def test_what_could_not_be_watched_is_said(tmp_path: Path) -> None:
    probe, _ = collect(Answering([header(tmp_path, missing=["ChromiumEventLogger.log_event_end"])]))
    assert "lacks ChromiumEventLogger.log_event_end" in probe.state.reason
    probe, _ = collect(Answering())
    assert "not reported" in probe.state.reason and "eager" not in probe.state.reason


def test_compilations_and_look_ups_become_records(tmp_path: Path) -> None:
    raws = [
        Raw("jit", "compile", 100, 900, 3, "7", {"compiler": "dynamo", "phase": "dynamo", "depth": 0, "co_name": "fwd",
                                                 "recompile_reason": "shape changed"}),
        Raw("jit", "cache", 200, 200, 3, "7", {"compiler": "inductor", "cache": "fx graph", "result": "hit",
                                               "key": "fab", "saved_ns": 7_000_000}),
        Raw("jit", "cache", 210, 210, 3, "7", {"compiler": "aot_autograd", "cache": "autograd", "result": "bypass",
                                               "saved_ns": None, "cache_bypass_reason": "custom op"}),
        Raw("jit", "compile", 300, 500, 3, "7", {"compiler": "triton", "phase": "add", "depth": 0, "unfinished": True,
                                                 "stages_ns": {"ptx": 2_000_000}}),
        Raw("jit", "compile", 5000, 6000, 3, "7", {"compiler": "dynamo", "phase": "later", "depth": 0}),
    ]  # fmt: skip
    probe, records = collect(Answering([header(tmp_path)], raws), start_ns=50, end_ns=1000)
    assert [r.name for r in records] == ["compile dynamo", "cache fx graph hit", "cache autograd bypass", "compile add"]
    dynamo, hit, bypass, triton = records
    assert dynamo.attributes["tokentrace.jit.compile_ms"] == 0.0008
    assert dynamo.attributes["tokentrace.jit.reason"] == "shape changed"
    assert dynamo.attributes["tokentrace.jit.function"] == "fwd"
    assert hit.start_ns == hit.end_ns == 200 and hit.attributes["tokentrace.jit.saved_ms"] == 7.0
    assert hit.attributes["tokentrace.jit.cache_dir"] == str(tmp_path / "ind")
    assert bypass.attributes["tokentrace.jit.reason"] == "custom op"
    assert triton.attributes["tokentrace.jit.unfinished"] is True
    assert triton.attributes["tokentrace.jit.stage.ptx_ms"] == 2.0
    assert {(r.thread, r.process, r.join) for r in records} == {(3, "7", "time")}
    facts = probe.state.facts
    assert (facts["compilations"], facts["compile_ns"]) == (2, 1000)
    assert (facts["cache_hit"], facts["cache_bypass"], facts["saved_ns"]) == (1, 1, 7_000_000)
    assert probe.state.status == "seen"


def test_from_outside_the_process_it_is_unseen() -> None:
    with pytest.raises(ProbeUnavailable, match="inside the server's process"):
        JitProbe().arm(context(None))
    assert next(iter(JitProbe().check(context(None)))).status == "unknown"


@pytest.mark.parametrize(
    ("phase", "compiler"),
    [
        ("entire_frame_compile", "dynamo"),
        ("build_guards", "dynamo"),
        ("aot_collect_metadata", "aot_autograd"),
        ("AOTAutogradCache.inductor_load", "aot_autograd"),
        ("inductor_compile", "inductor"),
        ("GraphLowering.codegen", "inductor"),
        ("pass.post_grad_passes.stable_sort", "inductor"),
        ("compile_file", "cpp"),
        ("TritonBundler.collect", "triton"),
        ("something new", "dynamo"),
    ],
)
def test_each_phase_has_its_compiler(phase: str, compiler: str) -> None:
    assert compiler_of(phase) == compiler


@pytest.mark.parametrize(
    ("folder", "status", "words"),
    [
        ({"exists": True, "files": 3, "bytes": 9, "writable": True, "filesystem": "ext4"}, "ok", "can be used"),
        ({"exists": False, "writable": True}, "ok", "does not exist yet"),
        ({"exists": True, "files": 3, "writable": False}, "warn", "cannot be written"),
        ({"exists": True, "files": 3, "writable": True, "filesystem": "tmpfs"}, "warn", "restart"),
        ({"exists": True, "files": 3, "writable": True, "filesystem": "overlay"}, "warn", "container"),
        ({"disabled": "CUDA_CACHE_DISABLE=1"}, "warn", "is off: CUDA_CACHE_DISABLE=1"),
        ({"problem": "it is not a folder"}, "warn", "it is not a folder"),
    ],
)  # fmt: skip
def test_a_cache_that_will_not_last_is_told_with_its_fix(folder: dict[str, Any], status: str, words: str) -> None:
    finding = cache_finding(CacheFolder("CUDA", "CUDA_CACHE_PATH", "default", "/x", **folder))
    assert finding.status == status and words in finding.sentence
    assert bool(finding.fix) == (status != "ok")
