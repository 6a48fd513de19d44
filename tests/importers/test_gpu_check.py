"""scripts/gpu_check.py: its plain count agrees with real recordings, and its CPU parts run here."""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import recordings

SCRIPTS = Path(__file__).parents[2] / "scripts"


def figures() -> Any:
    spec = importlib.util.spec_from_file_location("_gpu_figures", SCRIPTS / "_gpu_figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "gpu_check.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


@pytest.mark.parametrize(
    "name",
    ["a100_cuda_event_sync_small.json.gz", "mi300_vllm_decode_full_graph_step.json.gz",
     "mi300_torch_compile_triton_small.json.gz"],
)  # fmt: skip
def test_the_plain_count_of_a_gpu_trace_equals_the_import(name: str, tmp_path: Path) -> None:
    """The script's yardstick, held to recordings of real GPUs: on one it decides whether the import is right."""
    plain = tmp_path / "trace.json"
    plain.write_bytes(gzip.decompress((recordings.SMALL / name).read_bytes()))
    module = figures()
    counted = module.counted(plain)
    assert counted["kernels"] > 0 and counted["busy_ns"] > 0
    assert module.imported(plain) == counted


def test_a_part_that_is_not_there_and_a_machine_without_a_gpu_are_told(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    done = check("--parts", "none", "--out", str(tmp_path))
    assert done.returncode == 2 and "there is no part none" in done.stderr and "fix:" in done.stderr
    if not torch.cuda.is_available():
        done = check("--out", str(tmp_path))
        assert done.returncode == 2 and "torch finds no GPU" in done.stderr


@pytest.mark.model
def test_the_parts_that_need_no_gpu_hold_here(tmp_path: Path) -> None:
    done = check("--cpu", "--parts", "run,profile,graphs,energy", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["schema"] == "tokentrace.gpu_check/1" and result["ok"] is True
    parts = result["parts"]
    assert [name for name, part in parts.items() if part["skipped"]] == ["graphs", "energy"]
    assert parts["run"]["checks"] and parts["profile"]["checks"]
    operators = {check["check"]: check["got"] for check in parts["profile"]["checks"] if "operators" in check["check"]}
    assert len(operators) == 2 and len(set(operators.values())) == 1
    assert list((tmp_path / "runs" / "eager").rglob("*.jsonl*"))
    assert (tmp_path / "traces" / "eager.pt.trace.json.gz").is_file()


@pytest.mark.model
def test_a_check_that_does_not_hold_gives_exit_code_one(tmp_path: Path) -> None:
    """A run that ends with an error is a result, too."""
    script = SCRIPTS / "gpu_check.py"
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); sys.argv = [{str(script)!r}, '--cpu', '--parts', 'run', "
        f"'--out', {str(tmp_path)!r}]; import gpu_check; gpu_check.PROMPT = ' '; sys.exit(gpu_check.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NOT ok" in done.stdout and "the prompt is empty" in done.stdout
