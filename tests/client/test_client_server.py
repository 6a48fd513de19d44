"""The endpoint's other addresses, and what layer 8 records of a request."""

from __future__ import annotations

from typing import Any

import pytest
from client_support import CHAT, SPAN, TRACE, ask
from support.http_servers import (
    DONE,
    WAIT,
    Answer,
    Refusing,
    ScriptedServer,
    body_answer,
    chunk,
    hello,
    json_answer,
    models,
    sse,
    usage_chunk,
)

from tokentrace.client.chat import traceparent
from tokentrace.client.server import HttpServer
from tokentrace.client.settings import Endpoint
from tokentrace.errors import EndpointError, ProbeUnavailable
from tokentrace.model import KIND_CLIENT, KIND_SERVER, STATUS_ERROR, Record
from tokentrace.probe import Probe, ProbeContext, Raw
from tokentrace.probe import Server as ServerProtocol
from tokentrace.probes.client import ClientProbe


def test_server_paths_and_key() -> None:
    with ScriptedServer() as server:
        server.on("GET", "/metrics", body_answer(b"a 1\n", "text/plain")).on("GET", "/v1/models", models("alpha"))
        server.on("POST", "/tokenize", json_answer({"count": 1, "tokens": [5]}))
        seen: ServerProtocol = HttpServer(Endpoint.of(server.url + "/v1", api_key="sk-1"))
        assert seen.get_text("/metrics") == "a 1\n"
        assert '"alpha"' in seen.get_text("/v1/models")
        assert seen.post_json("/tokenize", {"prompt": "Hi"}) == {"count": 1, "tokens": [5]}
        assert server.requests[-1].json == {"prompt": "Hi"}
        assert {r.headers.get("authorization") for r in server.requests} == {"Bearer sk-1"}


def test_server_behind_a_prefix() -> None:
    with ScriptedServer() as server:
        server.on("GET", "/p/metrics", body_answer(b"a 1\n", "text/plain")).on("GET", "/p/v1/models", models("alpha"))
        seen = HttpServer(Endpoint.of(server.url + "/p/v1"))
        assert seen.get_text("/metrics") == "a 1\n" and seen.models() == ["alpha"]
        assert '"alpha"' in seen.get_text("/v1/models")


def test_server_failures_are_endpoint_errors() -> None:
    with ScriptedServer() as server:
        server.on("POST", "/html", body_answer(b"<html>", "text/html")).on("GET", "/slow", Answer(200, {}, [WAIT]))
        server.on("GET", "/long", Answer(200, {}, [b"x" * (1 << 20)] * 9))
        with ScriptedServer().on("GET", "/x", json_answer({})) as other:
            server.on("GET", "/away", Answer(302, {"Location": other.url + "/x"}, [], "length"))
            seen = HttpServer(Endpoint.of(server.url + "/v1", api_key="sk-1"))
            for path in ("/absent", "/away", "/long"):
                with pytest.raises(EndpointError):
                    seen.get_text(path)
            assert other.connections == 0
        with pytest.raises(EndpointError):
            seen.post_json("/html", {})
        with pytest.raises(EndpointError):
            seen.get_text("/slow", timeout_s=0.3)
    with Refusing() as port, pytest.raises(EndpointError, match="nothing listens"):
        HttpServer(Endpoint.of(port.url)).get_text("/metrics")


class RecordingAgent:
    """Stands for the agent's socket: gives what an agent would have written, and remembers what was switched."""

    def __init__(self, raws: list[Raw], refuse: str = "") -> None:
        self.raws, self.refuse, self.calls = raws, refuse, []  # type: ignore[var-annotated]

    def enable(self, group: str, options: Any = None) -> None:
        self.calls.append(f"+{group}")
        if self.refuse:
            raise ProbeUnavailable(self.refuse)

    def disable(self, group: str) -> None:
        self.calls.append(f"-{group}")

    def records(self, group: str) -> list[Raw]:
        return self.raws

    def columns(self, group: str) -> list[Any]:
        return []

    def facts(self) -> dict[str, Any]:
        return {}


def collected(answer: Answer, agent: RecordingAgent | None = None) -> tuple[list[Record], ClientProbe]:
    probe = ClientProbe()
    assert isinstance(probe, Probe)
    context = ProbeContext("url", "once", False, agent=agent)
    probe.arm(context)
    with ScriptedServer().on("POST", CHAT, answer) as server:
        context.exchange = ask(server, more={"max_tokens": 5}, api_key="sk-secret")
    probe.disarm()
    return list(probe.collect(context)), probe


def test_records_of_a_whole_reply() -> None:
    steps = (chunk(role="assistant"), chunk("He"), b": ping\n\n", chunk("llo", finish="stop"), usage_chunk(), DONE)
    records, probe = collected(sse(*steps))
    chat = records[0]
    assert (chat.name, chat.layer, chat.kind, chat.key, chat.span_id) == ("chat alpha", 8, KIND_CLIENT, "chat", SPAN)
    assert chat.envelope and chat.flow and chat.status != STATUS_ERROR
    told = chat.attributes
    assert told["gen_ai.usage.input_tokens"] == 9 and told["gen_ai.usage.output_tokens"] == 2
    assert told["gen_ai.response.finish_reasons"] == ["stop"] and told["gen_ai.request.max_tokens"] == 5
    assert 0 < told["gen_ai.response.time_to_first_chunk"] < 60 and "error.type" not in told
    assert told["http.response.status_code"] == 200 and told["server.address"] == "127.0.0.1"
    assert (told["tokentrace.form.in"], told["tokentrace.form.out"]) == ('"Hi"', '"Hello"')
    tokens = [e for e in chat.events if e.name == "tokentrace.token"]
    assert [(e.attributes["tokentrace.token.index"], e.attributes["tokentrace.token.text"]) for e in tokens] == [
        (0, "He"),
        (1, "llo"),
    ]
    assert [e.name for e in chat.events].count("tokentrace.keepalive") == 1
    assert all(chat.start_ns <= e.time_ns <= chat.end_ns for e in chat.events)
    phases = records[1:]
    assert [(p.name, p.direction) for p in phases] == [
        ("connect", "down"), ("send", "down"), ("wait", "down"), ("stream", "up")]  # fmt: skip
    assert all(p.flow and p.parent_key == "chat" for p in phases)
    assert [p.name for p in phases if p.envelope] == ["wait", "stream"]
    send = phases[1].attributes
    assert send["tokentrace.form.in"] == '"Hi"' and send["tokentrace.form.out"].startswith("HTTP body, ")
    assert sum("gen_ai.usage.output_tokens" in r.attributes for r in records) == 1
    assert "secret" not in repr(records)
    assert probe.state.status == "seen" and probe.state.facts["text_chunks"] == 2


def test_the_first_chunk_is_the_role_and_the_first_token_is_not() -> None:
    """The conventions' time to the first chunk, and ours to the first token."""
    records, _ = collected(sse(b": ping\n\n", 0.05, chunk(role="assistant"), 0.05, chunk("He", finish="stop"), DONE))
    chat = records[0]
    at = {e.name: e.time_ns - chat.start_ns for e in chat.events}
    assert chat.attributes["gen_ai.response.time_to_first_chunk"] == at["tokentrace.role"] / 1e9
    assert chat.attributes["tokentrace.ttft_ns"] == at["tokentrace.token"]
    assert at["tokentrace.keepalive"] < at["tokentrace.role"] < at["tokentrace.token"]


def test_records_of_a_failed_request() -> None:
    records, probe = collected(json_answer({"error": {"message": "no"}}, 500))
    chat = records[0]
    assert chat.status == STATUS_ERROR and chat.attributes["error.type"] == "500" and "failed" in chat.status_message
    for unknown in ("gen_ai.usage.output_tokens", "gen_ai.response.time_to_first_chunk", "gen_ai.response.id",
                    "tokentrace.ttft_ns"):  # fmt: skip
        assert unknown not in chat.attributes
    assert probe.state.facts["ttft_ns"] is None and probe.state.facts["error_check"] == "TT846"


def test_the_server_s_side_is_joined_by_traceparent_and_others_are_left_out() -> None:
    def raws(rid: str, parent: str) -> list[Raw]:
        request = {"rid": rid, "traceparent": parent, "method": "POST", "path": CHAT, "status": 200}
        return [Raw("http", "parse", 11, 12, 7, "99", {"rid": rid, "bytes": 40}),
                Raw("http", "write", 15, 16, 7, "99", {"rid": rid, "index": 0, "bytes": 60}),
                Raw("http", "request", 10, 20, 7, "99", request)]  # fmt: skip

    agent = RecordingAgent(
        [*raws("a", traceparent(TRACE, SPAN)), *raws("b", traceparent(TRACE, SPAN + 1)), *raws("c", "")]
    )
    records, _ = collected(hello(), agent)
    served = [r for r in records if r.process == "99"]
    assert [(r.name, r.direction, r.request) for r in served] == [
        ("parse request", "down", "a"), ("write chunk", "up", "a"), (f"POST {CHAT}", "", "a")]  # fmt: skip
    handler = served[2]
    assert (handler.parent_id, handler.key, handler.kind, handler.join) == (
        SPAN, "request-http:a", KIND_SERVER, "traceparent")  # fmt: skip
    assert handler.envelope and [r.parent_key for r in served[:2]] == ["request-http:a"] * 2
    assert agent.calls == ["+http", "-http"]


def test_without_the_server_s_side_the_client_s_stays() -> None:
    agent = RecordingAgent([], refuse="its hooks do not fit")
    records, probe = collected(hello(), agent)
    assert records[0].name == "chat alpha" and agent.calls == ["+http"]
    assert probe.state.facts["server_side"] == "its hooks do not fit"
    with pytest.raises(ProbeUnavailable):
        list(ClientProbe().collect(ProbeContext("url", "once", False)))
