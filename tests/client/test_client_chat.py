"""A chat request on real sockets: what is sent, what is received, its phases."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest
from client_support import CHAT, HI, SPAN, TRACE, ask, everything_said, phases_of, say_hi
from support.http_servers import (
    DONE,
    ScriptedServer,
    chunk,
    hello,
    json_answer,
    sse,
    usage_chunk,
)

from tokentrace.client.chat import chat
from tokentrace.client.settings import Endpoint

WHOLE = {"id": "c-1", "model": "alpha", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"},
         "finish_reason": "stop"}], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}  # fmt: skip


def test_what_is_sent(server: ScriptedServer) -> None:
    with server:
        x = ask(server, api_key="sk-1", headers={"X-Team": "perf"}, more={"max_tokens": 5, "temperature": 0.0})
    [request] = server.requests
    assert request.json == {"model": "alpha", "messages": HI, "stream": True, "max_tokens": 5, "temperature": 0.0,
                            "stream_options": {"include_usage": True}} == x.request  # fmt: skip
    assert len(request.body) == x.request_bytes
    assert request.headers["traceparent"] == "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01" == x.traceparent
    assert request.headers["authorization"] == "Bearer sk-1"
    assert request.headers["x-team"] == "perf"
    assert request.headers["x-request-id"] == "tokentrace-00f067aa0ba902b7"
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["content-type"] == "application/json"


def test_what_is_received(server: ScriptedServer) -> None:
    shown: list[str] = []
    with server.on("POST", CHAT, hello().with_headers(server="uvicorn", set_cookie="session=secret")):
        x = ask(server, more={"on_text": shown.append})
    assert shown == ["He", "llo"] and x.text == "Hello"
    assert (x.status_code, x.http_version, x.finish_reason) == (200, "1.1", "stop")
    assert (x.response_id, x.response_model) == ("chatcmpl-1", "alpha")
    assert (x.input_tokens, x.output_tokens) == (9, 2)
    assert [c.kind for c in x.chunks] == ["role", "content", "content", "finish", "usage", "done"]
    assert x.response_headers["server"] == "uvicorn" and "secret" not in everything_said(x)
    assert sum(c.size_bytes for c in x.chunks) == x.response_bytes
    assert x.complete and x.streamed and not x.notes


def test_phases_are_in_order_and_within(server: ScriptedServer) -> None:
    came = threading.Event()  # the pause begins once the client has what came before it
    steps = [0.5, chunk("a"), came, 0.1, chunk("b", finish="stop"), usage_chunk(), DONE]
    with server.on("POST", CHAT, sse(*steps)):
        x = ask(server, more={"on_text": lambda _: came.set()})
    assert phases_of(x) == ["connect", "send", "wait", "stream"]
    for one, other in zip(x.phases, x.phases[1:], strict=False):
        assert one.end_ns <= other.start_ns
    assert x.start_ns <= x.phases[0].start_ns and x.phases[-1].end_ns == x.end_ns
    wait, stream = x.phases[2:]
    assert wait.end_ns == stream.start_ns == x.token_times_ns[0]
    assert wait.end_ns - wait.start_ns >= 95_000_000 and stream.end_ns - stream.start_ns >= 95_000_000
    between_s = (x.token_times_ns[1] - x.token_times_ns[0]) / 1e9
    assert x.phases[0].attributes["network.peer.address"] == "127.0.0.1"
    latencies = x.latencies
    assert latencies.ttft_ns == x.ttft_ns and latencies.text_chunks == 2 and len(latencies.inter_token_ns) == 1
    assert latencies.tokens_per_s == pytest.approx(1 / between_s)


def test_a_name_is_looked_up_in_a_phase_of_its_own(server: ScriptedServer) -> None:
    with server:
        x = say_hi(f"http://localhost:{server.port}/v1")
    assert phases_of(x) == ["dns", "connect", "send", "wait", "stream"]
    assert "127.0.0.1" in x.phases[0].attributes["tokentrace.dns.addresses"]


def test_arrivals_are_those_of_the_socket(server: ScriptedServer) -> None:
    """What came in one read has one time; what came later has a later one."""
    came = threading.Event()
    with server.on("POST", CHAT, sse(chunk("a") + chunk("b"), came, 0.08, chunk("c", finish="stop"), DONE)):
        times = ask(server, more={"on_text": lambda _: came.set()}).token_times_ns
    assert times[0] == times[1] and times[2] - times[1] >= 75_000_000


def test_answer_in_one_piece(server: ScriptedServer) -> None:
    with server.on("POST", CHAT, json_answer(WHOLE)):
        x = ask(server)
        assert x.complete and x.text == "Hello" and not x.streamed and x.output_tokens == 2
        assert any("did not stream" in n for n in x.notes)
        x = ask(server, more={"stream": False})
        assert x.complete and not any("stream" in n for n in x.notes)
        assert "stream_options" not in server.requests[-1].json and server.requests[-1].json["stream"] is False
        server.on("POST", CHAT, json_answer([WHOLE]))
        assert ask(server).text == "Hello"


@pytest.mark.parametrize("content_type", ["text/plain", "application/json", "text/html", "application/octet-stream"])
def test_a_stream_under_a_wrong_content_type(server: ScriptedServer, content_type: str) -> None:
    with server.on("POST", CHAT, sse(b"da", 0.02, chunk("Hi", finish="stop")[2:], DONE, content_type=content_type)):
        x = ask(server)
    assert x.complete and x.text == "Hi" and x.streamed


def test_last_event_without_its_blank_line(server: ScriptedServer) -> None:
    with server.on("POST", CHAT, sse(chunk("Hi", finish="stop"), b"data: [DONE]")):
        x = ask(server)
    assert x.complete and x.saw_done


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_although_not_asked_for(server: ScriptedServer, coding: str) -> None:
    body = chunk("Hi", finish="stop") + DONE
    packed = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    with server.on("POST", CHAT, sse(packed[:9], packed[9:]).with_headers(content_encoding=coding)):
        x = ask(server)
        assert x.complete and x.text == "Hi" and x.response_bytes == len(packed)
        assert server.requests[0].headers["accept-encoding"] == "identity"
        server.on("POST", CHAT, sse(b"xx").with_headers(content_encoding="br"))
        x = ask(server)
        assert x.error is not None and x.error.check == "TT829" and "(br)" in str(x.error)


def test_a_display_that_fails_does_not_fail_the_request(server: ScriptedServer) -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError("gone")

    with server:
        x = ask(server, more={"on_text": broken})
    assert x.complete and x.text == "Hello" and "BrokenPipeError" in x.notes[0]


def test_a_long_reply_of_many_chunks(server: ScriptedServer) -> None:
    many = [chunk(f"word{i} ") for i in range(3000)]
    with server.on("POST", CHAT, sse(*many, chunk(finish="stop"), DONE)):
        x = ask(server)
    assert x.complete and len(x.token_times_ns) == 3000 and x.text.endswith("word2999 ")


def test_importing_the_client_loads_no_http_library() -> None:
    """Start-up: what a request needs is loaded when a request is sent, and nothing heavy even then."""
    code = (
        "import sys, json\n"
        "import tokentrace.client.settings, tokentrace.client.chat, tokentrace.client.server\n"
        "early = [m for m in ('httpx', 'httpcore', 'rich', 'numpy') if m in sys.modules]\n"
        "import tokentrace.client.network\n"
        "late = [m for m in ('httpx', 'anyio', 'trio', 'rich', 'numpy', 'torch') if m in sys.modules]\n"
        "print(json.dumps([early, late]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    early, late = json.loads(run.stdout)
    assert early == []
    assert not set(late) & {"httpx", "rich", "numpy", "torch"}


def test_the_endpoint_s_query_goes_along(server: ScriptedServer) -> None:
    with server:
        x = say_hi(f"{server.url}{CHAT}?api-version=1&sig=secret")
    assert server.paths() == [f"{CHAT}?api-version=1&sig=secret"]
    assert x.complete and "secret" not in x.url


def test_extra_fields_and_headers(server: ScriptedServer) -> None:
    with server:
        chat(Endpoint.of(server.url + "/v1", model="alpha"), HI, trace_id=TRACE, span_id=SPAN, environ={},
             body={"top_p": 0.5, "stream_options": {"include_usage": False}},
             headers={"x-request-id": "mine"})  # fmt: skip
    assert server.requests[0].json["top_p"] == 0.5
    assert server.requests[0].json["stream_options"] == {"include_usage": False}
    assert server.requests[0].headers["x-request-id"] == "mine"
    assert server.requests[0].raw.lower().count(b"x-request-id") == 1


def test_certificates_and_imports_are_no_part_of_the_request(tmp_path: Path, server: ScriptedServer) -> None:
    gaps_ns = []
    with server:
        for _ in range(10):  # one of them is not held up by what else the machine does
            before = time.time_ns()
            x = ask(server)
            assert before <= x.start_ns
            gaps_ns.append(x.phases[0].start_ns - x.start_ns)
    assert min(gaps_ns) < 50_000_000
