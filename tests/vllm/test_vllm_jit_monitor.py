"""vLLM's own JIT monitor: what it reports is recorded once, with its length where one can be had."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.answering import Answering, context

from tokentrace.agent.vllm_names import NAMES, fits, parsed, purposes
from tokentrace.probe import Columns, Raw
from tokentrace.probes.jit import JitProbe

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
MONITOR = "vllm.utils.jit_monitor"


@pytest.fixture
def run(vllm_python: str, tmp_path: Path) -> Any:
    def start(mode: str) -> dict[str, Any]:
        environment = {
            "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton"),
            "PYTHONPATH": f"{HERE.parents[1]}:{HERE}", "VLLM_LOGGING_LEVEL": "WARNING",
        }  # fmt: skip
        command = [vllm_python, str(HERE / "jit_monitor_program.py"), mode]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return start


def of(found: dict[str, Any], compiler: str) -> list[tuple[str, bool, dict[str, Any]]]:
    """(kind of record, whether it has a length, its data)"""
    return [(kind, end > start, data) for kind, start, end, _, data in found["records"] if data["compiler"] == compiler]


@pytest.mark.parametrize("mode", ["late", "early"])
def test_each_compilation_after_the_warm_up_is_recorded_once(run: Any, mode: str) -> None:
    found = run(mode)
    assert found["states"] == ["inactive", "active"] and found["raised"] == []
    ((kind, long, data),) = of(found, "cutedsl")
    assert (kind, long) == ("compile", True)  # vLLM's stand-in for `cute.compile` is what is timed
    assert data == {"compiler": "cutedsl", "phase": "my_kernel", "after_warmup": True, "depth": 0}
    ((kind, long, data),) = of(found, "tilelang")
    assert (data["phase"], data["after_warmup"], data["depth"]) == ("my_tile", True, 0)
    if "TileLang" in found["stand_ins"]:  # only its report: no length is made up
        assert (kind, long, data["detail"]) == ("report", False, "shapes")
    else:
        assert (kind, long) == ("compile", True)
    assert found["unseen"] == 0 and found["identical"] and found["watched"] >= 2
    assert MONITOR in found["facts"]["watched"] and found["facts"]["missing"] == []


def test_a_kernel_of_triton_is_not_counted_twice(run: Any) -> None:
    found = run("late")
    if not found["triton"]:
        pytest.skip("no Triton in vLLM's environment")
    assert all(data["after_warmup"] for _, _, data in of(found, "triton"))
    added = [(kind, long) for kind, long, data in of(found, "triton") if data["phase"] == "add"]
    assert added == [("cache", False), ("compile", True)]
    again = run("late")  # Triton's file cache has it: loaded, which the monitor calls a compilation all the same
    added_again = [(kind, data["result"]) for kind, _, data in of(again, "triton") if data["phase"] == "add"]
    assert added_again == [("cache", "hit")]


def test_tuning_a_kernel_of_triton_holds_the_compilation_of_its_candidates(run: Any) -> None:
    found = run("late")
    if not found["triton"]:
        pytest.skip("no Triton in vLLM's environment")
    mine = [one for one in found["records"] if one[4]["phase"] == "one"]
    if found["facts"]["missing"] == ["triton.knobs.autotuning.listener"]:
        pytest.skip("Triton tells of its tuning from 3.8 on")
    (tuned,) = [one for one in mine if one[0] == "tune"]
    compiled = [one for one in mine if one[0] == "compile"]
    assert tuned[4]["candidates"] == 2 and "SIZE: 128" in tuned[4]["config"]
    assert len(compiled) == 2 and all(tuned[1] <= one[1] and one[2] <= tuned[2] for one in compiled)
    probe = JitProbe()
    raws = [Raw("jit", kind, start, end, thread, "7", data) for kind, start, end, thread, data in mine]
    names = [one.name for one in probe.collect(context(Answering([Columns("jit", "7", found["facts"], {})], raws)))]
    assert "compile autotune one" in names and "cache autotune miss" in names
    (sentence,) = [one for one in probe.state.facts["findings"] if "warm-up" in one]
    assert sentence.startswith("1 kernel was tuned after vLLM's warm-up") and "(one by Triton)" in sentence


def test_a_compilation_that_vllm_was_told_to_fail_on_fails_and_is_told(run: Any) -> None:
    found = run("error")
    assert [one.partition(":")[0] for one in found["raised"]][-1] == "unseen"  # the monitor itself goes on
    for compiler, name in (("cutedsl", "my_kernel"), ("tilelang", "my_tile")):
        ((kind, long, data),) = of(found, compiler)
        assert (kind, long, data["phase"], data["refused"]) == ("report", False, name, True)
        assert any(name in one for one in found["raised"])
    raws = [Raw("jit", kind, start, end, thread, "7", data) for kind, start, end, thread, data in found["records"]]
    answering = Answering([Columns("jit", "7", found["facts"], {})], raws)
    probe = JitProbe()
    records = {record.name: record for record in probe.collect(context(answering))}
    assert records["compile refused my_kernel"].status == 2
    assert any("my_kernel by CuTeDSL" in one for one in probe.state.facts["findings"])
    assert found["identical"]


def test_a_monitor_without_that_function_takes_this_one_probe_away_and_says_so(run: Any) -> None:
    found = run("missing")
    assert found["records"] == [] and found["identical"]
    assert found["facts"]["missing"] == [f"{MONITOR}._handle_jit_event"] and found["facts"]["errors"] == []
    probe = JitProbe()
    assert list(probe.collect(context(Answering([Columns("jit", "7", found["facts"], {})])))) == []
    assert f"lacks {MONITOR}._handle_jit_event" in probe.state.reason


_LOOK = """
import json, sys, vllm.version, vllm.utils.jit_monitor
sys.path.insert(0, sys.argv[1])
from tokentrace.agent import vllm_names as names
print(json.dumps([names.version(), {one: names.find(one, names.version())[0] for one in names.purposes("jit")}]))
"""


def test_the_names_of_the_installed_version_are_there(vllm_python: str) -> None:
    command = [vllm_python, "-c", _LOOK, str(HERE.parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    version, found = json.loads(done.stdout.splitlines()[-1])
    fitting = {name.purpose: name.target for name in NAMES if name.group == "jit" and fits(name, parsed(version))}
    assert found == fitting and set(fitting) == set(purposes("jit"))
