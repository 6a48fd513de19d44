"""vLLM in a program of one's own: `LLM.generate` in the block, made in the block, everything in one process or not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

_PROGRAM = """
import json, sys

def main():
    from tokentrace.engines.vllm.offline import Offline
    with Offline(deep=True) as seen:
        from vllm import LLM, SamplingParams
        llm = LLM(sys.argv[1], dtype="float32", max_model_len=256, enforce_eager=True)
        said = llm.generate(["Hi", "Once upon a time"], SamplingParams(temperature=0, max_tokens=5))
    groups = ("tokenizer", "engine", "model")
    rows = [[r.group, r.name, r.process, r.data] for g in groups for r in seen.agent.records(g)]
    columns = [[c.group, c.process, len(c.arrays["name"])] for g in ("modules", "ops") for c in seen.agent.columns(g)]
    print(json.dumps({"rows": rows, "columns": columns, "notes": seen.notes, "faults": seen.agent.faults,
                      "said": [one.outputs[0].text for one in said]}, default=str))

if __name__ == "__main__":
    main()
"""


def generate(python: str, model: Path, folder: Path, **environment: str) -> dict[str, Any]:
    program = folder / "program.py"  # a file: vLLM's children import it
    program.write_text(_PROGRAM)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TOKENTRACE_", "OTEL_"))}
    done = subprocess.run(
        [python, str(program), str(model)], capture_output=True, text=True, timeout=280,
        env={**plain, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(one for one in done.stdout.splitlines() if one.startswith('{"rows"'))
    found: dict[str, Any] = json.loads(line)
    return found


def test_children_that_appear_while_the_block_runs_are_watched(
    vllm_python: str, model_folder: Path, tmp_path: Path
) -> None:
    found = generate(vllm_python, model_folder, tmp_path)
    assert found["faults"] == [] and found["notes"] == []
    rows = found["rows"]
    where = {(group, name): process for group, name, process, _ in rows}
    assert len({where["tokenizer", "decode"], where["engine", "step"], where["model", "forward"]}) == 3
    decoded = [data for _, name, _, data in rows if name == "decode"]
    assert len(decoded) == 10 and len({data["rid"] for data in decoded}) == 2
    texts = {rid: "".join(d["text"] for d in decoded if d["rid"] == rid) for rid in {d["rid"] for d in decoded}}
    assert sorted(texts.values()) == sorted(found["said"])
    finished = [data for _, name, _, data in rows if name == "finish"]
    assert sorted(data["tokens"] for data in finished) == [5, 5]
    assert {data["text_in"] for _, name, _, data in rows if name == "encode"} == {"Hi", "Once upon a time"}
    assert {group for group, _, _ in found["columns"]} == {"modules", "ops"}
    assert {process for _, process, _ in found["columns"]} == {where["model", "forward"]}


def test_an_engine_in_the_same_process_is_watched_as_well(vllm_python: str, model_folder: Path, tmp_path: Path) -> None:
    found = generate(vllm_python, model_folder, tmp_path, VLLM_ENABLE_V1_MULTIPROCESSING="0")
    assert found["faults"] == []
    assert len({process for _, _, process, _ in found["rows"]}) == 1
    names = {name for _, name, _, _ in found["rows"]}
    assert {"encode", "submit", "wait", "step", "work", "forward", "sample", "output", "decode", "finish"} <= names
    assert any(group == "modules" and rows > 100 for group, _, rows in found["columns"])
