"""vLLM in a program of one's own, inside `with tokentrace.trace(...)`: engine and workers in children or not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

_PROGRAM = """
import json, sys
import tokentrace

def main():
    with tokentrace.trace("offline", deep=True) as t:
        from vllm import LLM, SamplingParams
        llm = LLM(sys.argv[1], dtype="float32", max_model_len=256, enforce_eager=True)
        said = llm.generate(["Hi", "Once upon a time"], SamplingParams(temperature=0, max_tokens=5))
    spans = [[s.name, s.layer, s.process, s.parent, s.attributes.get("tokentrace.pass", "")] for s in t.spans]
    passes = {name: len(one.steps) for name, one in t.report.passes.items()}
    replies = [facts["exchange"]["text"] for facts in t.data.meta["passes"].values()]
    print(json.dumps({"spans": spans, "passes": passes, "replies": replies, "notes": t.notes,
                      "status": {row.layer: row.status for row in t.layers},
                      "said": [one.outputs[0].text for one in said]}, default=str))

if __name__ == "__main__":
    main()
"""


def generate(python: str, model: Path, folder: Path, **environment: str) -> dict[str, Any]:
    program = folder / "program.py"  # a file: vLLM's children import it
    program.write_text(_PROGRAM)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TOKENTRACE_", "OTEL_"))}
    done = subprocess.run(
        [python, str(program), str(model)], capture_output=True, text=True, timeout=800,
        env={**plain, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(one for one in done.stdout.splitlines() if one.startswith('{"spans"'))
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("processes", [3, 1])
def test_each_prompt_is_a_pass_of_one_trace_whatever_the_processes(
    processes: int, vllm_python: str, model_folder: Path, tmp_path: Path
) -> None:
    more = {} if processes > 1 else {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    found = generate(vllm_python, model_folder, tmp_path, **more)
    assert found["notes"] == []
    assert sorted(found["replies"]) == sorted(found["said"])
    assert list(found["passes"]) == ["call 1", "call 2"] and set(found["passes"].values()) == {5}
    assert [found["status"][str(layer)] for layer in (8, 7, 6, 5)] == ["unseen", "seen", "seen", "seen"]
    spans = found["spans"]
    assert [parent for *_, parent, _ in spans].count(-1) == 1, "one root"
    where = {name: process for name, _, process, _, _ in spans}
    assert len({where["encode"], where["step"], where["forward"]}) == processes
    names = {name for name, *_ in spans}
    assert {"encode", "submit", "step", "forward", "sample", "decode", "layers.0.mlp"} <= names
    if processes > 1:
        assert found["status"]["4"] == "seen", "the worker's operators"
