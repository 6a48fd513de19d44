"""`tokentrace run "Hi"` on the local engine: what a newcomer relies on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from tokentrace import emit, layers, runs
from tokentrace.model import Trace

pytestmark = pytest.mark.model
COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]


def tokentrace(*arguments: str, data: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    drop = ("OTEL_", "OPENAI_", "TOKENTRACE_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(drop) or k == "TOKENTRACE_CACHE_DIR"}
    env = {**clean, "TOKENTRACE_DATA_DIR": str(data), **environment}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=env, timeout=240, check=False)


@pytest.fixture(scope="module")
def hi(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Trace, Path]:
    data = tmp_path_factory.mktemp("data")
    done = tokentrace("run", "Hi", "--json", data=data)
    assert done.returncode == 0, done.stderr
    report = orjson.loads(done.stdout)
    return report, emit.load(Path(report["files"][0])), data


def test_answers_with_a_greeting(hi: tuple[dict[str, Any], Trace, Path]) -> None:
    report, _, _ = hi
    assert report["schema"] == "tokentrace.report/1"
    assert report["reply"].startswith("Hello")
    assert report["tokens"] == {"input": 31, "output": 10}
    assert list(report["passes"]) == ["cold", "warm", "deep"]


def test_own_times_add_up_to_the_wall_time(hi: tuple[dict[str, Any], Trace, Path]) -> None:
    report, _, _ = hi
    own = sum((row["own_ns_down"] or 0) + (row["own_ns_up"] or 0) for row in report["layers"])
    assert own + report["unattributed_ns"] == report["wall_ns"]
    for one in report["passes"].values():
        assert sum(one["own_ns"].values()) + one["unattributed_ns"] == one["wall_ns"]
    # Of the pass that the machine disturbed least; on a busy one client and engine also wait for each other.
    assert max(1 - one["unattributed_ns"] / one["wall_ns"] for one in report["passes"].values()) >= 0.9


def test_one_root_no_orphan_and_children_inside(hi: tuple[dict[str, Any], Trace, Path]) -> None:
    _, trace, _ = hi
    assert len(trace) <= 10_000
    assert [row for row in range(len(trace)) if trace.parent[row] < 0] == [0]
    for row in range(1, len(trace)):
        parent = trace.parent[row]
        assert trace.start_ns[parent] <= trace.start_ns[row] <= trace.end_ns[row] <= trace.end_ns[parent]


def test_every_pass_shows_eight_layers_under_their_names(hi: tuple[dict[str, Any], Trace, Path]) -> None:
    _, trace, _ = hi
    seen: dict[str, set[int]] = {}
    for span in trace.spans:
        if span.layer:
            seen.setdefault(span.attributes["tokentrace.pass"], set()).add(span.layer)
            assert layers.by_number(span.layer).owns(span.name), span.name
    assert seen == {name: set(range(1, 9)) for name in ("cold", "warm", "deep")}


def test_the_token_changes_its_form(hi: tuple[dict[str, Any], Trace, Path]) -> None:
    report, _, _ = hi
    rows = {row["layer"]: row for row in report["layers"]}
    assert rows[7]["form_in"] == '"Hi"'
    assert rows[7]["form_out"].startswith("31 ids [1, 9690")
    assert rows[7]["form_up_in"] == "19556"
    assert rows[7]["form_up_out"] == '"Hello"'
    assert "float32" in rows[5]["form_out"]
    assert rows[5]["form_up_in"].startswith("logits[")
    assert rows[4]["evidence"] > 1000 and rows[3]["evidence"] > 1000
    assert "eager" in rows[2]["reason"]


def test_steps_are_one_a_token(hi: tuple[dict[str, Any], Trace, Path]) -> None:
    report, _, _ = hi
    for one in report["passes"].values():
        assert [step["phase"] for step in one["steps"]] == ["prefill", *["decode"] * 9]


def test_a_saved_run_is_listed_shown_and_exported(hi: tuple[dict[str, Any], Trace, Path], tmp_path: Path) -> None:
    _, _, data = hi
    assert "Hello" in tokentrace("list", data=data).stdout
    shown = tokentrace("show", data=data).stdout
    assert "tokenizer" in shown and "Hello" in shown
    for target, suffix in (("jaeger", ".jaeger.json"), ("perfetto", ".perfetto.json")):
        out = tmp_path / f"x{suffix}"
        name = next((data / "runs").iterdir()).name
        done = tokentrace("export", name, "--to", target, "-o", str(out), data=data)
        assert done.returncode == 0, done.stderr
        orjson.loads(out.read_bytes())


def test_interrupt_keeps_what_was_seen(tmp_path: Path) -> None:
    env = {**os.environ, "TOKENTRACE_DATA_DIR": str(tmp_path)}
    process = subprocess.Popen(
        [*COMMAND, "run", "Count from one to one hundred.", "--max-tokens", "1500", "--once"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.read(20)  # some tokens, and far from all
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 130, stderr
    saved = list((tmp_path / "runs").glob(f"*/{runs.TRACE}"))
    assert saved, stderr
    assert len(emit.load(saved[0])) > 20
