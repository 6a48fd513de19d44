"""The time of a token in a comparison is that of `run` and `bench`: no silence before the end is in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.http_servers import DONE, Answer, ScriptedServer, chunk, event, sse, usage_chunk
from support.records import request_pass

from tokentrace import runs
from tokentrace.compare import compare
from tokentrace.compare.sides import alike
from tokentrace.exchange import SEVERAL_A_CHUNK
from tokentrace.model import IdSource
from tokentrace.report import build
from tokentrace.stitch import stitch

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]
URL = "/v1/chat/completions"


def answer(chunks: int, tail_s: float = 0.0, tokens: int | None = None) -> Answer:
    steps: list[Any] = [step for _ in range(chunks) for step in (0.05, chunk("a"))]
    return sse(*steps, tail_s, chunk(finish="length"), usage_chunk(9, tokens or chunks), DONE)


def traced(server: ScriptedServer, folder: Path, name: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "OPENAI_", "TOKENTRACE_"))}
    command = [*COMMAND, "run", "Hi", "--url", f"{server.url}/v1", "--model", "alpha", "--out", str(folder / name)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**env, "TOKENTRACE_DATA_DIR": str(folder)}, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return str(folder / name)


def both(folder: Path, base: Answer, new: Answer) -> tuple[str, str]:
    """Runs against a server that answers so."""
    with ScriptedServer() as server:
        server.on("POST", URL, base)
        first = traced(server, folder, "base")
        server.on("POST", URL, new)
        return first, traced(server, folder, "new")


def test_silence_before_the_end_is_no_tokens_time(tmp_path: Path) -> None:
    base, new = both(tmp_path, answer(6), answer(11, tail_s=2.0))
    found = compare([base], [new])
    sides = [sample.pace for sample in (*found.base, *found.new)]
    # A reader that is held up finds several chunks in one read; what came with the first of them does not count.
    assert all(pace.exact and pace.tokens for pace in sides)
    assert 1 <= sides[0].tokens <= 5 and 1 <= sides[1].tokens <= 10
    assert found.new[0].wall_ns - found.new[0].ttft_ns >= sides[1].window_ns + 1_900_000_000
    assert found.per_token is not None and found.per_token.new_ns == sides[1].window_ns / sides[1].tokens
    assert "A token after the first took" in found.verdict.sentence
    assert found.to_json()["new"]["measurements"][0]["pace"] == sides[1].as_dict()
    # A saved report tells the same.
    reports = [next(Path(side).rglob("report.json")) for side in (base, new)]
    again = compare([str(reports[0])], [str(reports[1])])
    assert again.per_token == found.per_token


def test_of_chunks_with_several_tokens_it_is_not_known(tmp_path: Path) -> None:
    base, new = both(tmp_path, answer(6), answer(6, tokens=24))
    found = compare([base], [new])
    assert found.per_token is None and found.to_json()["per_token"] is None
    assert f"How long a token after the first took is not known of the new side: {SEVERAL_A_CHUNK}." in (
        found.verdict.sentence
    )


def test_a_saved_report_of_a_server_that_counts_tells_the_same(tmp_path: Path) -> None:
    def counting(count: int) -> bytes:
        choice = {"index": 0, "delta": {"content": "two words"}, "finish_reason": None}
        return event({"id": "c", "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": count}})

    steps: list[Any] = [step for n in range(6) for step in (0.05, counting(2 * n + 2))]
    with ScriptedServer() as server:
        server.on("POST", URL, sse(*steps, chunk(finish="length"), DONE))
        run = traced(server, tmp_path, "counting")
    report = str(next(Path(run).rglob("report.json")))
    found = compare([run], [report])
    assert found.base[0].pace.exact and found.base[0].pace.tokens
    assert found.new[0].kind == "report" and found.new[0].pace == found.base[0].pace


def test_a_run_of_before_is_worked_out_from_its_arrivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    ids = IdSource(1)
    made = stitch([request_pass("once", ids=ids, steps=5)], ids=ids, meta={"prompt": "Hi"})
    kept = made.meta["passes"]["once"]["exchange"]
    want = kept.pop("pace")
    name = runs.save(made, made, build(made)).name
    (sample,), _ = alike([name], [name], "", "")
    assert sample.pace.as_dict() == want and sample.pace.tokens == 4
