"""Without a server: a model that cannot be served is a failure of layer 6, and no model yet is not "nothing wrong"."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from test_doctor_command import COMMAND, doctor, environment


def _folder(path: Path, config: bool = True, tokenizer: bool = True) -> str:
    path.mkdir()
    if config:
        (path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    if tokenizer:
        (path / "tokenizer.json").write_text("{}")
    header = json.dumps({"a": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"x" * 10)
    return str(path)


BROKEN: dict[str, Callable[[Path], str]] = {
    "no such folder": lambda p: str(p / "no" / "such"),
    "cut weights": lambda p: _folder(p / "cut"),
    "no config": lambda p: _folder(p / "bare", config=False),
    "no tokenizer": lambda p: _folder(p / "mute", tokenizer=False),
    "a name without a server": lambda p: "meta-llama/Llama-3-8B",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_model_that_cannot_be_served_fails_as_in_a_run(name: str, tmp_path: Path) -> None:
    model = BROKEN[name](tmp_path)
    run = subprocess.run(
        [*COMMAND, "run", "Hi", "--model", model],
        capture_output=True, text=True, env=environment(tmp_path), timeout=240, check=False, cwd=tmp_path,
    )  # fmt: skip
    done = doctor("--model", model, "--json", "--layers", "8-6", home=tmp_path)
    verdict = json.loads(done.stdout)["verdict"]
    assert (done.returncode, verdict["layer"], verdict["status"]) == (1, 6, "fail")
    assert verdict["cause"] in run.stderr and verdict["fix"] in run.stderr, run.stderr
    assert doctor("--model", model, "--offline", "--layers", "8-6", home=tmp_path).returncode == 1


def test_no_model_yet_is_not_nothing_wrong(tmp_path: Path) -> None:
    done = doctor("--json", "--layers", "8-6", home=tmp_path)
    verdict = json.loads(done.stdout)["verdict"]
    assert (done.returncode, verdict["status"], verdict["layer"]) == (2, "unknown", 6)
    assert verdict["cause"] == 'no model is here yet: tokentrace run "Hi" fetches it'
    assert not any(p.suffix == ".safetensors" for p in tmp_path.rglob("*"))
