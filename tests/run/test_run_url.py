"""`tokentrace run` against a URL: errors in one sentence, receivers that fail, keys that never show."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.otlp_receiver import OtlpReceiver

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]
CANARY = "sk-canary-123456"
STREAM = (
    b'data: {"id":"a","model":"alpha","choices":[{"index":0,"delta":{"content":"He"}}]}\n\n'
    b": ping\n\n"
    b'data: {"choices":[{"index":0,"delta":{"content":"llo"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        return

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, "application/json", b'{"data":[{"id":"alpha"}]}')
        elif self.path.startswith("/v1/"):
            self._answer(404, "application/json", b'{"detail":"Not Found"}')
        else:
            self._answer(200, "text/html", b"<!doctype html><title>Console</title>")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/v1/chat/completions":
            if self.headers.get("authorization") == "Bearer wrong":
                self._answer(401, "application/json", b'{"error":"no"}')
            else:
                self._answer(200, "text/event-stream", STREAM)
        elif self.path.startswith("/v1/"):
            self._answer(404, "application/json", b'{"detail":"Not Found"}')
        else:
            self._answer(200, "text/html", b"<!doctype html><title>Console</title>")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{found.server_address[1]}"
        found.shutdown()


def run(*arguments: str, data: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "OPENAI_", "TOKENTRACE_"))}
    env = {**clean, "TOKENTRACE_DATA_DIR": str(data), **environment}
    done = subprocess.run(
        [*COMMAND, "run", *arguments], capture_output=True, text=True, env=env, timeout=240, check=False
    )
    assert "Traceback" not in done.stderr + done.stdout
    return done


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/chat/completions"])
def test_url_forms_that_work(server: str, path: str, tmp_path: Path) -> None:
    done = run("Hi", "--url", server + path, data=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Hello\n")


def test_a_web_page_is_named_with_the_right_url(server: str, tmp_path: Path) -> None:
    done = run("Hi", "--url", server, data=tmp_path)
    assert done.returncode == 2
    assert "web page" in done.stderr and f"{server}/v1" in done.stderr


def test_doubled_path_never_leaves(server: str, tmp_path: Path) -> None:
    done = run("Hi", "--url", f"{server}/v1/v1", data=tmp_path)
    assert done.returncode == 2
    assert "doubled" in done.stderr and f"{server}/v1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["   "], {}, "empty"),
        (["\udcff"], {}, "UTF-8"),
        (["Hi", "--layers", "99"], {}, "no layer 99"),
        (["Hi", "--url", "http://127.0.0.1:9/v1"], {}, "nothing listens"),
        (["Hi", "--url", "ftp://x"], {}, "ftp://"),
        (["Hi", "--config", "/nonexistent.toml"], {}, "cannot be read"),
        (["Hi", "--model", "/nonexistent"], {}, "/nonexistent"),
        (["Hi", "-o", "x.weird"], {}, "x.weird"),
        (["Hi", "--url", "http://127.0.0.1:9"], {"OPENAI_API_KEY": "None"}, "malformed"),
        (["Hi", "--url", "http://127.0.0.1:9"], {"OPENAI_API_KEY": "Bearer abc"}, "Bearer"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    arguments: list[str], environment: dict[str, str], said: str, tmp_path: Path
) -> None:
    done = run(*arguments, data=tmp_path, **environment)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and "fix:" in done.stderr


def test_the_key_shows_nowhere(server: str, tmp_path: Path) -> None:
    done = run("Hi", "--url", f"{server}/v1", "--json", data=tmp_path, OPENAI_API_KEY=CANARY)
    assert done.returncode == 0
    assert CANARY not in done.stdout + done.stderr
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes()


def test_a_wrong_key_names_the_server(server: str, tmp_path: Path) -> None:
    done = run("Hi", "--url", f"{server}/v1", data=tmp_path, OPENAI_API_KEY="wrong")
    assert done.returncode == 2
    assert "401" in done.stderr and "key" in done.stderr


def test_what_is_sent_arrives(server: str, tmp_path: Path) -> None:
    with OtlpReceiver() as receiver:
        done = run("Hi", "--url", f"{server}/v1", "--otlp", receiver.http_url, "--json", data=tmp_path)
        assert done.returncode == 0, done.stderr
        import orjson

        spans = orjson.loads(done.stdout)["spans"]
        assert spans["produced"] == spans["accepted"] == len(receiver.received())
        assert spans["rejected"] == 0


def test_an_absent_receiver_loses_nothing(server: str, tmp_path: Path) -> None:
    asked = run("Hi", "--url", f"{server}/v1", "--otlp", "http://127.0.0.1:9", data=tmp_path)
    assert asked.returncode == 1 and "export" in asked.stderr
    by_variable = run("Hi", "--url", f"{server}/v1", data=tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert by_variable.returncode == 0 and "warning" in by_variable.stderr
    assert len(list((tmp_path / "runs").glob("*/trace.jsonl"))) == 2
