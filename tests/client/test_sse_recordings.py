"""Every recorded stream parses to the facts listed beside it, through a real socket in odd chunk sizes."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from tokentrace.client import chat as chat_module
from tokentrace.client.settings import Endpoint

ROOT = Path(os.environ.get("TOKENTRACE_RECORDINGS", "/nonexistent"))
FACTS = json.loads((ROOT / "sse/sse_facts.json").read_text()) if (ROOT / "sse/sse_facts.json").exists() else {}
pytestmark = pytest.mark.skipif(not FACTS, reason="TOKENTRACE_RECORDINGS is not set")


def serve(body: bytes, size: int, content_type: str) -> tuple[str, threading.Thread]:
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        connection, _ = listener.accept()
        with connection, listener:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            got = b""
            while b"\r\n\r\n" not in got:
                got += connection.recv(65536)
            head, _, rest = got.partition(b"\r\n\r\n")
            length = int(next(x for x in head.lower().split(b"\r\n") if x.startswith(b"content-length")).split(b":")[1])
            while len(rest) < length:
                rest += connection.recv(65536)
            connection.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-type: " + content_type.encode() + b"\r\nconnection: close\r\n\r\n"
            )
            for start in range(0, len(body), size):
                connection.sendall(body[start : start + size])

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/v1", thread


@pytest.mark.parametrize("size", [7, 1021])
@pytest.mark.parametrize("name", sorted(FACTS))
def test_recorded_stream(name: str, size: int) -> None:
    facts = FACTS[name]
    path = ROOT / name
    url, thread = serve(path.read_bytes(), size, "text/event-stream")
    x = chat_module.chat(Endpoint(url, model="m"), [{"role": "user", "content": "Hi"}], trace_id=1, span_id=2)
    thread.join(10)
    assert x.response_bytes == facts["bytes"] or facts["error_at"]
    if facts["error_at"]:
        assert x.error is not None
        return
    if "anthropic" in name:  # another protocol: its events hold no choices
        assert x.error is not None
        return
    assert x.keepalives == facts["comments"]
    assert x.saw_done == facts["done"]
    first = [c for c in x.chunks if c.choice == 0]
    if facts["choice_indexes"] == [0]:
        assert sum(c.kind == "content" for c in first) == facts["content_chunks"]
        assert x.text.startswith(facts["text"]) or facts["text"].startswith(x.text)
        assert sum(c.kind == "reasoning" for c in first) == facts["reasoning_chunks"]
        assert sum(c.kind == "tool" for c in first) == facts["tool_chunks"]
    else:
        assert sum(c.kind == "content" for c in x.chunks) == facts["content_chunks"]
    assert x.finish_reason in (facts["finish"] or [""])
    if facts["usage_at"]:
        assert x.usage == facts["usage_last"]
