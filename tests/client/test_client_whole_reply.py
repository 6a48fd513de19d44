"""A server that was asked for a stream and answers in one piece: no token has a time of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
from support.http_servers import ScriptedServer, json_answer

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()", "run", "Hi"]
WHOLE = {
    "id": "chatcmpl-1",
    "model": "whole",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello there"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
}


def run(server: ScriptedServer, data: Path, *more: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "OPENAI_", "TOKENTRACE_"))}
    command = [*COMMAND, "--url", f"{server.url}/v1", "--model", "whole", *more]
    done = subprocess.run(
        command, capture_output=True, text=True, env=env | {"TOKENTRACE_DATA_DIR": str(data)}, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_reply_in_one_piece_has_no_first_token(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", json_answer(WHOLE))
        report = orjson.loads(run(server, tmp_path, "--json"))
        shown = run(server, tmp_path)
    asked = [request.json for request in server.requests if request.path.endswith("/chat/completions")]
    assert asked and all(body["stream"] is True for body in asked)
    assert report["reply"] == "Hello there" and report["wall_ns"] > 0 and report["tokens"]["output"] == 3
    assert report["ttft_ns"] is None and all(one["ttft_ns"] is None for one in report["passes"].values())
    assert [row["text"] for row in report["token_times"]] == ["Hello there"]
    assert all(row["arrival_ns"] is None and row["itl_ns"] is None for row in report["token_times"])
    (facts,) = (row["facts"] for row in report["layers"] if row["layer"] == 8)
    assert facts.get("ttft_ns") is None and facts.get("tokens_per_s") is None
    assert "did not stream" in " ".join(shown.split()) and "first token" not in shown
