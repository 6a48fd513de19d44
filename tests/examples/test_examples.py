"""The programs in examples/ run as they are, on the local engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.model
EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str, data: Path) -> str:
    drop = ("OTEL_", "OPENAI_", "TOKENTRACE_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(drop) or k == "TOKENTRACE_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, timeout=240, check=False,
        env={**clean, "TOKENTRACE_DATA_DIR": str(data)}, cwd=data,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hi.py", ["'Hello", "7 tokenizer", "31 ids [1, 9690"]),
        ("openai_sdk.py", ["Hello", "chunks with text, the first after", "one trace of"]),
        ("two_chip_chain.py", ["condense", "answer", "in 1 call, 0 failed", "the rest", "one trace, id", "saved in"]),
        ("cluster_check.py", ["first      3 of 3 answered", "second     3 of 3 answered", "together"]),
        ("offline_generate.py", ["Hello", "aten::", "4 operator profiler"]),
    ],
)
def test_an_example_runs_as_it_is(name: str, says: list[str], tmp_path: Path) -> None:
    if name == "openai_sdk.py":
        pytest.importorskip("openai")
    out = run(name, data=tmp_path)
    for piece in says:
        assert piece in out, out


def test_a_busy_chip_is_asked_again_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    from support.http_servers import ScriptedServer, json_answer

    answer = json_answer(
        {"choices": [{"message": {"content": "At seven."}}], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    )
    busy = json_answer({"error": {"message": "slow down"}}, 429).with_headers(Retry_After="1")
    with ScriptedServer().on("POST", "/v1/chat/completions", busy, answer) as server:
        (tmp_path / "c.toml").write_text(
            f'[profiles.prefill]\nbase_url = "{server.url}/v1"\n[profiles.decode]\nbase_url = "http://127.0.0.1:1/v1"\n'
            f'[profiles.fallback]\nbase_url = "{server.url}/v1"\n'
        )
        out = run("two_chip_chain.py", "c.toml", data=tmp_path)
    assert len(server.requests) == 3, "once refused, once again, and once for the dead chip"
    assert "trying the next" in out and "'At seven.'" in out
    lines = {line.split()[0]: line for line in out.splitlines() if " ms in " in line}
    assert "in 2 calls, 1 failed, " in lines["condense"]
    assert all("; 5 tokens read, 3 written" in lines[name] for name in ("condense", "answer"))
    took_ms, in_calls_ms = (float(part.split(" ms")[0].split()[-1]) for part in lines["condense"].split(":"))
    assert took_ms - in_calls_ms >= 1000 - 1, "the pause that the server asked for is in the stage"


def test_a_cluster_with_one_dead_endpoint_says_why(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[profiles.gone]\nbase_url = "http://127.0.0.1:1/v1"\n')
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "cluster_check.py"), "c.toml", "2"], capture_output=True, text=True,
        timeout=240, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "gone       0 of 2 answered" in done.stdout and "nothing listens" in done.stdout
