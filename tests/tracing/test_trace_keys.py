"""The key of a program's own request is in nothing that a trace of it keeps, however the server repeats it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

import tokentrace
from tests.support.http_servers import DONE, ScriptedServer, body_answer, chunk, event, sse

CHAT = "/v1/chat/completions"
BODY = {"model": "alpha", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


@pytest.mark.parametrize("key", ["hunter2", "mysecretpass", "sk-AbCd/EfGh+0123456789=="])
@pytest.mark.parametrize("how", ["pieces", "escaped error", "error in the stream", "basic"])
def test_a_key_is_in_nothing_that_a_trace_keeps(key: str, how: str, tmp_path: Path) -> None:
    escaped = "".join(f"\\u{ord(c):04x}" for c in key)
    refused = f'{{"error": {{"message": "no key \'{escaped}\'"}}}}'.encode()
    answer = {
        "pieces": sse(*(chunk(one) for one in f"you sent '{key}'!"), DONE),
        "escaped error": body_answer(refused, "application/json", 401),
        "error in the stream": sse(chunk("He"), event({"error": {"message": f"no key '{key}'"}})),
        "basic": sse(chunk("you sent "), chunk(key[:4]), chunk(key[4:]), chunk("!"), DONE),
    }[how]
    headers = {"Authorization": f"Bearer {key}"}
    auth = None
    if how == "basic":
        headers, auth = {}, ("user", key)
    with ScriptedServer().on("POST", CHAT, answer) as server, tokentrace.trace() as t:
        httpx.post(server.url + CHAT, json=BODY, headers=headers, auth=auth)
    t.save(tmp_path / "trace.jsonl")
    kept = [(tmp_path / "trace.jsonl").read_text(), json.dumps(t.report.to_json()), t.reply]
    assert not [text for text in kept if key in text or json.dumps(key)[1:-1] in text]
    assert any("(hidden)" in text for text in kept)


def test_hiding_that_fails_reaches_no_program_and_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("hiding")

    monkeypatch.setattr("tokentrace.tracing.call.hide_keys", fails)
    key = "sk-AbCd/EfGh+0123456789=="
    ended = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "id": f"of-{key}", "model": key}
    with ScriptedServer() as server, tokentrace.trace() as t:
        for said in (event(ended), event({"error": {"message": f"no key '{key}'"}})):
            server.on("POST", CHAT, sse(chunk(f"you sent {key}!"), said, DONE))
            told = httpx.post(server.url + CHAT, json=BODY, headers={"Authorization": f"Bearer {key}"})
            assert key in told.text
    t.save(tmp_path / "trace.jsonl")
    kept = [(tmp_path / "trace.jsonl").read_text(), json.dumps(t.report.to_json()), t.reply]
    assert not [text for text in kept if key in text]
    assert "what the server sent is left out" in kept[1]
