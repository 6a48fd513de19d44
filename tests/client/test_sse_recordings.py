"""Every recorded stream parses to the facts listed beside it, through a real socket in odd chunk sizes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.http_servers import RESET, Answer, ScriptedServer, in_pieces

from tokentrace.client.chat import chat
from tokentrace.client.settings import Endpoint
from tokentrace.exchange import Exchange

ROOT = Path(os.environ.get("TOKENTRACE_RECORDINGS", "/nonexistent"))
LISTED = ROOT / "sse" / "sse_facts.json"
FACTS: dict[str, Any] = json.loads(LISTED.read_text()) if LISTED.exists() else {}
pytestmark = pytest.mark.skipif(not FACTS, reason="TOKENTRACE_RECORDINGS is not set")


def replay(name: str, size: int, framing: str = "chunked", *, body: bytes | None = None, end: bool = True) -> Exchange:
    data = (ROOT / name).read_bytes() if body is None else body
    steps = [*in_pieces(data, size), *([] if end else [0.05, RESET])]
    content_type = FACTS[name].get("content_type") or "text/event-stream"
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", Answer(200, {"Content-Type": content_type}, steps, framing))
        endpoint = Endpoint(server.url + "/v1", model="m")
        return chat(endpoint, [{"role": "user", "content": "Hi"}], trace_id=1, span_id=2, timeout_s=120, environ={})


def count(x: Exchange, kind: str) -> int:
    return sum(c.kind == kind for c in x.chunks)


@pytest.mark.parametrize("size", [1, 7, 1021])
@pytest.mark.parametrize("name", sorted(FACTS))
def test_recorded_stream(name: str, size: int) -> None:
    facts = FACTS[name]
    if size == 1 and facts["bytes"] > 60_000:
        size = 3
    x = replay(name, size)
    assert x.status_code == facts["status"] if "status" in facts else 200
    assert x.response_bytes == facts["bytes"]
    assert x.streamed and x.malformed == facts["bad_json"]
    assert x.keepalives == count(x, "keepalive") == facts["comments"]
    assert x.saw_done == facts["done"]
    assert count(x, "content") == facts["content_chunks"]
    assert count(x, "reasoning") == facts["reasoning_chunks"]
    assert count(x, "tool") == facts["tool_chunks"]
    assert (
        sorted({c.choice for c in x.chunks if c.kind in ("role", "content", "reasoning", "tool", "finish")})
        == (facts["choice_indexes"])
    )
    assert "".join(c.text for c in x.chunks if c.kind == "content")[:80] == facts["text"]
    assert ([x.finish_reason] if x.finish_reason else []) == facts["finish"]
    assert x.usage == facts["usage_last"]
    assert count(x, "usage") == len(facts["usage_at"])
    assert count(x, "error") == len(facts["error_at"])
    assert sum(c.size_bytes for c in x.chunks) <= facts["bytes"]
    times = [c.time_ns for c in x.chunks]
    assert times == sorted(times) and x.start_ns <= times[0] and times[-1] <= x.end_ns
    _judge(name, facts, x)


def _judge(name: str, facts: dict[str, Any], x: Exchange) -> None:
    """Whole or not, and what is said about it."""
    if facts["error_at"]:
        assert x.error is not None and x.error.check == "TT852" and not x.complete
        assert "Tool call validation failed" in str(x.error) and f"after {facts['reasoning_chunks']} chunks" in str(
            x.error
        )
    elif not facts["choice_indexes"]:
        assert x.error is not None and x.error.check == "TT853" and "Anthropic" in str(x.error), name
    else:
        assert x.error is None and x.complete
        assert any("without [DONE]" in n for n in x.notes) == (not facts["done"])
        tokens = facts["content_chunks"] + facts["reasoning_chunks"] + facts["tool_chunks"]
        if facts["choice_indexes"] == [0]:
            assert len(x.token_times_ns) == tokens
            assert x.text[:80] == facts["text"]


@pytest.mark.parametrize("framing", ["length", "close"])
@pytest.mark.parametrize("name", [n for n in sorted(FACTS) if FACTS[n]["bytes"] < 3000])
def test_other_framings_give_the_same(name: str, framing: str) -> None:
    one, other = replay(name, 11), replay(name, 13, framing)
    assert [(c.kind, c.text, c.choice, c.size_bytes) for c in one.chunks] == [
        (c.kind, c.text, c.choice, c.size_bytes) for c in other.chunks
    ]
    assert (one.text, one.usage, one.complete) == (other.text, other.usage, other.complete)


@pytest.mark.parametrize("end", ["\r\n", "\r"])
@pytest.mark.parametrize("name", [n for n in sorted(FACTS) if FACTS[n]["bytes"] < 3000])
def test_other_line_ends_give_the_same(name: str, end: str) -> None:
    turned = (ROOT / name).read_bytes().replace(b"\n", end.encode())
    one, other = replay(name, 1000), replay(name, 5, body=turned)
    assert [(c.kind, c.text, c.choice) for c in one.chunks] == [(c.kind, c.text, c.choice) for c in other.chunks]


@pytest.mark.parametrize("name", [n for n in sorted(FACTS) if FACTS[n]["done"] and FACTS[n]["bytes"] < 8000])
def test_cut_streams_are_never_whole(name: str) -> None:
    """Cut anywhere before the chunk with the finish_reason, by an orderly end or by a reset: an error, text kept."""
    data = (ROOT / name).read_bytes()
    finish = data.index(b'"finish_reason":"' if b'"finish_reason":"' in data else b'"finish_reason": "')
    for part in (0.3, 0.6, 0.95):
        body = data[: int(finish * part)]
        for end in (True, False):
            x = replay(name, 64, body=body, end=end)
            assert x.error is not None and not x.complete, (part, end)
            assert x.error.layer == 8
            assert x.error.check == ("TT860" if not end else x.error.check)
            assert x.phases[-1].name in ("wait", "stream") and x.phases[-1].end_ns <= x.end_ns
