"""The table of vLLM's function names: whole for every version it speaks of, true for the one that is installed."""

from __future__ import annotations

import json
import subprocess

import pytest

from tokentrace.agent import vllm_names
from tokentrace.agent.vllm_names import NAMES, candidates, find, fits, parsed, purposes

VERSIONS = [(0, minor) for minor in range(11, 33)]
#: What an older vLLM does not have at all, and since when it does.
LATER = {
    "preempt": (0, 12), "sample step": (0, 12), "prepare (runner V2)": (0, 12), "sample (runner V2)": (0, 12),
    "tokenize": (0, 18), "render chat": (0, 18), "render text": (0, 18),
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_each_purpose_has_one_place_in_each_version(version: tuple[int, int]) -> None:
    for purpose in purposes():
        fitting = [name for name in NAMES if name.purpose == purpose and fits(name, version)]
        expected = 0 if version < LATER.get(purpose, (0, 0)) else 1
        assert len(fitting) == expected, (purpose, version)


def test_the_places_of_the_running_version_are_tried_first() -> None:
    assert candidates("process", "0.32.0")[0].target.endswith("InputProcessor.process_inputs")
    assert candidates("process", "0.11.2+cu129")[0].target.endswith("processor:Processor.process_inputs")
    assert len(candidates("process", "dev")) == 2  # a version that is not known: all of them


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.18.1", (0, 18, 1)), ("0.18.1rc2+cpu", (0, 18, 1)), ("0.32.0.post1", (0, 32, 0)), ("dev", ()), ("", ())],
)
def test_versions_are_read_as_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert parsed(text) == numbers


def test_a_module_that_is_not_loaded_is_no_fault() -> None:
    assert find("schedule", "0.32.0") == ("", "not loaded")


_LOOK = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
from tokentrace.agent import vllm_names as names
import vllm
for name in names.NAMES:
    if names.fits(name, names.parsed(names.version())):
        try:
            importlib.import_module(name.target.partition(":")[0])
        except ImportError as error:
            print(name.target, error, file=sys.stderr)
print(json.dumps([names.version(), {one: names.find(one, names.version()) for one in names.purposes()}]))
"""


@pytest.mark.vllm
def test_every_name_of_the_installed_version_is_there(vllm_python: str) -> None:
    version, found = json.loads(_run(vllm_python, _LOOK))
    for purpose, (target, why) in found.items():
        assert target, f"vLLM {version}: {purpose}: {why}"
        expected = [name.target for name in NAMES if name.purpose == purpose and fits(name, parsed(version))]
        assert target in expected


_LACKS_ONE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import vllm.v1.core.sched.scheduler as module, vllm.v1.engine.core, starlette.applications
from tokentrace.agent.vllm_names import identities
del module.Scheduler._preempt_request
before = identities()
from tokentrace.agent.vllm_groups import EngineGroup
group = EngineGroup()
group.enable(lambda *_: None)
during, told = identities(), group.facts()["hooks"]
group.disable()
print(json.dumps([told["preempt"], told["schedule"], before != during, before == identities()]))
"""


@pytest.mark.vllm
def test_a_missing_name_takes_one_hook_away_and_says_so(vllm_python: str) -> None:
    preempt, schedule, changed, back = json.loads(_run(vllm_python, _LACKS_ONE))
    assert preempt.startswith("missing: ") and "_preempt_request" in preempt
    assert schedule == "on" and changed and back


def _run(python: str, program: str) -> str:
    from pathlib import Path

    root = str(Path(vllm_names.__file__).parents[2])
    done = subprocess.run([python, "-c", program, root], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]
