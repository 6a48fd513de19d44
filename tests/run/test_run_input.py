"""The prompt from standard input, and a terminal that cannot show what the model writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.http_servers import DONE, ScriptedServer, chunk, sse

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]
GREETING = sse(chunk("Héllo "), chunk("\U0001f600", finish="stop"), DONE)


def run(data: Path, url: str, *arguments: str, given: bytes, **environ: str) -> subprocess.CompletedProcess[bytes]:
    drop = ("OTEL_", "OPENAI_", "TOKENTRACE_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    return subprocess.run([*COMMAND, "run", *arguments, "--url", f"{url}/v1", "--model", "m"], input=given,
                          capture_output=True, env={**clean, "TOKENTRACE_DATA_DIR": str(data), **environ},
                          timeout=120, check=False)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (b"Hi\n", "Hi"),
        (b"Hi\r\n", "Hi"),
        (b"Hi", "Hi"),
        (b"a\nb\n\n", "a\nb\n"),
        ("héllo 😀\n".encode(), "héllo 😀"),
    ],
)
def test_what_echo_pipes_in_is_the_prompt_that_was_meant(given: bytes, sent: str, tmp_path: Path) -> None:
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        done = run(tmp_path, server.url, "-", "-q", given=given, PYTHONUTF8="0", LC_ALL="C", PYTHONCOERCECLOCALE="0")
        assert done.returncode == 0, done.stderr
        (asked,) = [r for r in server.requests if r.path == "/v1/chat/completions"]
    assert json.loads(asked.body)["messages"][-1]["content"] == sent


@pytest.mark.parametrize(("given", "says"), [(b"\xff\xfe", b"not valid UTF-8"), (b"\n", b"empty"), (b"", b"empty")])
def test_what_cannot_be_a_prompt_is_one_sentence(given: bytes, says: bytes, tmp_path: Path) -> None:
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        done = run(tmp_path, server.url, "-", given=given, PYTHONIOENCODING="utf-8:strict")
        assert not [r for r in server.requests if r.method == "POST"]
    assert done.returncode == 2 and says in done.stderr and b"Traceback" not in done.stderr


def test_a_reply_that_the_terminal_cannot_show_is_no_failure(tmp_path: Path) -> None:
    with ScriptedServer().on("POST", "/v1/chat/completions", GREETING) as server:
        done = run(tmp_path, server.url, "Sag é", given=b"", PYTHONIOENCODING="ascii:strict")
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    assert rb"H\xe9llo \U0001f600" in done.stdout and b"Trace" in done.stdout
