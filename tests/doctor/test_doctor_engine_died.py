"""An engine that fails, and a server that is killed, while a request runs: layer 6, whatever the client saw of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from doctor_support import CHAT, chunk, healthy, json_answer, look, sse
from support.http_servers import event

#: vLLM's own words: its API server's answer when the engine's process ended.
ISSUE = "EngineCore encountered an issue. See stack trace (above) for the root cause."
DIED = {"error": {"message": "EngineCore died unexpectedly", "type": "InternalServerError", "code": 500}}

SERVER = """
import http.server, os, signal
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def send(self, body, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if kind == "application/json": self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
    def do_GET(self): self.send(b'{"object": "list", "data": [{"id": "alpha"}]}', "application/json")
    def do_POST(self):
        if HALF: self.send(b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\\n\\n', "text/event-stream")
        os.kill(os.getpid(), signal.SIGKILL)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def mortal(half: bool) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A real server in a process of its own, which is killed by its first chat request."""
    with subprocess.Popen(
        [sys.executable, "-c", f"HALF = {half}\n{SERVER}"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


def test_vllms_own_words_name_the_engine() -> None:
    with healthy() as server:
        value = {"error": {"message": ISSUE, "type": "InternalServerError", "param": None, "code": 500}}
        server.on("POST", CHAT, json_answer(value, 500))
        verdict = look(server.url + "/v1").verdict
        assert (verdict.check, verdict.layer) == ("TT602", 6) and verdict.fix.startswith("restart the server")
        server.on("POST", CHAT, sse(chunk("a"), event(DIED)))
        verdict = look(server.url + "/v1").verdict
        assert (verdict.check, verdict.layer) == ("TT602", 6) and verdict.fix.startswith("restart the server")


@pytest.mark.parametrize("half", [False, True])
def test_a_server_that_is_killed_during_the_call(half: bool) -> None:
    with mortal(half) as (process, url):
        verdict = look(url).verdict
        assert (verdict.check, verdict.layer) == ("TT602", 6), verdict
        assert f"its process ({process.pid}) ended" in verdict.cause or "nothing listens" in verdict.cause
        assert "went away during the request" in verdict.cause and "https" not in verdict.cause + verdict.fix
