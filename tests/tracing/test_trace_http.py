"""A program's own requests inside `with tokentrace.trace(...)`: one trace, nothing changed, no key kept."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

import tokentrace
from tests.support.http_servers import DONE, WAIT, Answer, ScriptedServer, chunk, json_answer, sse
from tokentrace.errors import UsageError
from tokentrace.layers import MARKS
from tokentrace.model import Span

KEY = "sk-canary-0123456789abcdef"
STREAM = {"model": "alpha", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
WHOLE = {
    "id": "chatcmpl-1",
    "model": "alpha",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


def server_with(answer: Any) -> ScriptedServer:
    return ScriptedServer().on("POST", "/v1/chat/completions", answer)


def shape(trace: Any) -> list[tuple[str, str]]:
    """(name, parent's name) of every span but those that say why a layer is unseen, and of power."""
    spans = list(trace.spans)
    return [
        (span.name, spans[span.parent].name if span.parent >= 0 else "")
        for span in spans
        if span.name not in MARKS and span.layer != 1
    ]


def calls(trace: Any) -> list[Span]:
    return [span for span in trace.spans if span.layer == 8 and span.envelope and span.kind == 3]


def test_a_streamed_reply_is_read_along_and_reaches_the_program_unchanged() -> None:
    pieces = [chunk("He"), chunk("llo", finish="stop"), DONE]
    with server_with(sse(*pieces)) as server:
        with tokentrace.trace("mine") as t, httpx.Client() as client:
            headers = {"Authorization": f"Bearer {KEY}"}
            with client.stream("POST", f"{server.url}/v1/chat/completions", json=STREAM, headers=headers) as response:
                body = b"".join(response.iter_raw())
        sent = server.requests[0]
    assert body == b"".join(pieces)
    assert (t.reply, t.report.model, t.report.prompt) == ("Hello", "alpha", "Hi")
    (call,) = calls(t)
    assert sent.headers["traceparent"] == f"00-{t.trace_id}-{call.span_id:016x}-01"
    assert shape(t) == [
        ("mine", ""),
        ("pass call 1", "mine"),
        ("chat alpha", "pass call 1"),
        ("connect", "chat alpha"),
        ("send", "chat alpha"),
        ("wait", "chat alpha"),
        ("stream", "chat alpha"),
    ]
    tokens = [event for event in call.events if event.name == "tokentrace.token"]
    assert [token.attributes["tokentrace.token.text"] for token in tokens] == ["He", "llo"]
    assert t.ttft_ns is not None and 0 < t.ttft_ns <= t.wall_ns
    assert [row.status for row in t.layers][1:7] == ["unseen"] * 6


def test_stages_name_the_calls_and_the_longest_one_speaks_for_the_chain() -> None:
    slow = json_answer(WHOLE)
    slow.before = 1.0
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", json_answer(WHOLE), slow)
        server.on("GET", "/v1/models", json_answer({"data": []}))
        with tokentrace.trace("chain") as t, httpx.Client(base_url=server.url) as client:
            client.get("/v1/models")
            with t.stage("condense"):
                client.post("/v1/chat/completions", json={**STREAM, "stream": False})
            with t.stage("answer"):
                client.post("/v1/chat/completions", json={**STREAM, "stream": False})
    assert list(t.report.passes) == ["call 1", "condense", "answer"]
    assert t.report.headline_pass == "answer"
    assert t.report.tokens == {"input": 3, "output": 2}
    assert t.ttft_ns is None, "nobody asked for a stream: when the first token was made is not known"
    assert [call.name for call in calls(t)] == ["GET /v1/models", "chat alpha", "chat alpha"]
    assert "gen_ai.operation.name" not in calls(t)[0].attributes


def test_async_calls_and_threads_begun_inside_belong_to_the_trace_and_others_do_not() -> None:
    with server_with(json_answer(WHOLE)) as server:
        url = f"{server.url}/v1/chat/completions"
        go, done = threading.Event(), threading.Event()

        def elsewhere() -> None:
            go.wait()
            httpx.post(url, json=STREAM)
            done.set()

        stranger = threading.Thread(target=elsewhere, daemon=True)
        stranger.start()

        async def two() -> None:
            async with httpx.AsyncClient() as client:
                await asyncio.gather(*(client.post(url, json=STREAM) for _ in range(2)))

        with tokentrace.trace() as t:
            asyncio.run(two())
            inside = threading.Thread(target=lambda: httpx.post(url, json=STREAM))
            inside.start()
            inside.join()
            go.set()
            done.wait()
        stranger.join()
        httpx.post(url, json=STREAM)
        traced = [request for request in server.requests if "traceparent" in request.headers]
    assert len(server.requests) == 5
    assert len(traced) == len(calls(t)) == 3


def test_an_inner_trace_takes_its_own_calls() -> None:
    with server_with(json_answer(WHOLE)) as server:
        url = f"{server.url}/v1/chat/completions"
        with tokentrace.trace("outer") as outer:
            httpx.post(url, json=STREAM)
            with tokentrace.trace("inner") as inner:
                httpx.post(url, json=STREAM)
                httpx.post(url, json=STREAM)
    assert (len(calls(outer)), len(calls(inner))) == (1, 2)


def test_httpx_is_put_back() -> None:
    before = httpx.HTTPTransport.handle_request, httpx.AsyncHTTPTransport.handle_async_request
    with tokentrace.trace(), tokentrace.trace():
        assert httpx.HTTPTransport.handle_request is not before[0]
    assert (httpx.HTTPTransport.handle_request, httpx.AsyncHTTPTransport.handle_async_request) == before


def test_a_failure_does_not_carry_the_prompt_that_the_server_repeats() -> None:
    asked = {**STREAM, "messages": [{"role": "user", "content": "the canary prompt of a patient"}]}
    refused = json_answer({"error": {"message": f"cannot parse {json.dumps(asked)}"}}, 400)
    with server_with(refused) as server, tokentrace.trace() as t:
        httpx.post(f"{server.url}/v1/chat/completions", json=asked)
    (call,) = calls(t)
    assert "cannot parse" in call.status_message and "canary" not in call.status_message


def test_failures_reach_the_program_and_are_diagnosed() -> None:
    refused = json_answer({"error": {"message": f"Incorrect API key provided: {KEY}"}}, 401)
    with server_with(refused) as server, tokentrace.trace() as t:
        response = httpx.post(
            f"{server.url}/v1/chat/completions", json=STREAM, headers={"Authorization": f"Bearer {KEY}"}
        )
        with pytest.raises(httpx.ConnectError):
            httpx.get("http://127.0.0.1:1/nothing")
    assert response.status_code == 401 and KEY in response.text, "the program sees what the server sent"
    key, nothing = calls(t)
    assert key.attributes["tokentrace.error.check"] == "TT831"
    assert "nothing listens" in nothing.status_message
    assert [f.status for f in t.findings[:2]] == ["fail", "fail"]
    assert KEY not in json.dumps(t.report.to_json())
    assert KEY.encode() not in t.to_otlp()


def test_a_key_in_the_address_or_echoed_in_the_reply_is_not_kept(tmp_path: Path) -> None:
    with server_with(sse(chunk(f"key {KEY}!"), DONE)) as server, tokentrace.trace() as t:
        answer = httpx.post(f"{server.url}/v1/chat/completions?api_key={KEY}", json=STREAM)
    assert KEY in answer.text
    assert t.reply == "key (hidden)!"
    saved = t.save(tmp_path / "t.jsonl").read_bytes()
    assert KEY.encode() not in saved


def test_a_compressed_reply_is_read_along() -> None:
    packed = Answer(200, {"content-type": "application/json", "content-encoding": "gzip"},
                    [gzip.compress(json.dumps(WHOLE).encode())])  # fmt: skip
    with server_with(packed) as server, tokentrace.trace() as t:
        assert httpx.post(f"{server.url}/v1/chat/completions", json=STREAM).json() == WHOLE
    assert t.reply == "Hello"


def test_a_reply_that_is_let_go_of_or_still_under_way_is_said_to_be_cut_and_interrupts_nothing() -> None:
    from tokentrace.analyze import analyze
    from tokentrace.emit.html._story import story

    with server_with(sse(chunk("He"), WAIT)) as server:
        url = f"{server.url}/v1/chat/completions"
        with httpx.Client() as client, contextlib.ExitStack() as later, tokentrace.trace() as t:
            with client.stream("POST", url, json=STREAM) as response:
                next(response.iter_raw())
            open_one = later.enter_context(client.stream("POST", url, json=STREAM))
            next(open_one.iter_raw())
    assert t.report.passes.keys() == {"call 1", "call 2"}
    notes = [note for call in calls(t) for note in call.attributes["tokentrace.notes"]]
    assert notes == [
        "the program closed the stream after 1 chunk",
        "the request was still under way when the trace ended",
    ]
    assert [call.attributes["tokentrace.complete"] for call in calls(t)] == [False, False]
    assert [call.status for call in calls(t)] == [0, 0] and "error.type" not in calls(t)[0].attributes
    assert t.report.interrupted == "" and t.report.error is None
    assert story(t.data, analyze(t.data), t.report)["interrupted"] == []


def test_a_call_that_the_program_cancels_is_no_interruption() -> None:
    with server_with(sse(chunk("He"), WAIT)) as server:
        arrived = asyncio.Event()

        async def read() -> None:
            url = f"{server.url}/v1/chat/completions"
            async with httpx.AsyncClient() as client, client.stream("POST", url, json=STREAM) as response:
                async for _ in response.aiter_raw():
                    arrived.set()

        async def main() -> None:
            task = asyncio.create_task(read())
            await arrived.wait()
            task.cancel()
            await asyncio.wait([task])

        with tokentrace.trace() as t:
            asyncio.run(main())
    (call,) = calls(t)
    assert call.attributes["tokentrace.notes"] == ["the program cancelled the call"]
    assert (call.status, t.report.interrupted) == (0, "")


def test_the_advice_of_a_finding_fits_a_program() -> None:
    cut = {**WHOLE, "choices": [{**WHOLE["choices"][0], "finish_reason": "length"}]}  # type: ignore[index]
    with server_with(json_answer(cut)) as server, tokentrace.trace() as t:
        httpx.post(f"{server.url}/v1/chat/completions", json=STREAM)
    fixes = [finding.fix for finding in t.findings]
    assert "raise the call's max_tokens" in fixes
    assert not [fix for fix in fixes if " --" in fix or "tokentrace run" in fix], fixes


def test_another_tracers_context_is_left_alone() -> None:
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with server_with(json_answer(WHOLE)) as server, tokentrace.trace() as t:
        httpx.post(f"{server.url}/v1/chat/completions", json=STREAM, headers={"traceparent": theirs})
        assert server.requests[0].headers["traceparent"] == theirs
    assert "another tracer" in " ".join(calls(t)[0].attributes["tokentrace.notes"])


def test_a_program_that_fails_fails_with_its_own_error_and_the_trace_is_there() -> None:
    with server_with(json_answer(WHOLE)) as server:
        t = tokentrace.trace("broken")
        with pytest.raises(ZeroDivisionError), t:
            httpx.post(f"{server.url}/v1/chat/completions", json=STREAM)
            1 / 0  # noqa: B018
    assert t.spans[0].attributes["error.type"] == "ZeroDivisionError"
    assert len(calls(t)) == 1


def test_an_empty_block_says_so_and_a_block_is_used_once() -> None:
    with tokentrace.trace() as t, pytest.raises(UsageError):
        t.report  # noqa: B018
    assert {row.status for row in t.layers} == {"unseen"}
    assert "no request and no call of a model was seen" in t.layers[0].reason
    assert not t.findings, "there is no request to speak of"
    with pytest.raises(UsageError), t:
        pass


def test_the_openai_package_is_traced_without_a_change() -> None:
    openai = pytest.importorskip("openai")
    with server_with(sse(chunk("He"), chunk("llo", finish="stop"), DONE)) as server, tokentrace.trace() as t:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY)
        stream = client.chat.completions.create(model="alpha", messages=STREAM["messages"], stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in stream) == "Hello"
    (call,) = calls(t)
    assert (call.name, t.reply) == ("chat alpha", "Hello")
    assert KEY.encode() not in t.to_otlp()


def test_what_goes_out_is_what_was_recorded(tmp_path: Path) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    with server_with(json_answer(WHOLE)) as server, tokentrace.trace() as t:
        httpx.post(f"{server.url}/v1/chat/completions", json=STREAM)
    sent = ExportTraceServiceRequest.FromString(t.to_otlp())
    there = {span.span_id.hex() for r in sent.resource_spans for s in r.scope_spans for span in s.spans}
    assert there == {f"{span.span_id:016x}" for span in t.spans}
    again = tokentrace.load(t.save(tmp_path / "t.jsonl"))
    assert [(s.name, s.start_ns, s.end_ns, s.parent) for s in again.spans] == [
        (s.name, s.start_ns, s.end_ns, s.parent) for s in t.spans
    ]


def test_a_saved_trace_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokentrace import runs

    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    with server_with(json_answer(WHOLE)) as server, tokentrace.trace("kept", save=True) as t:
        httpx.post(f"{server.url}/v1/chat/completions", json=STREAM)
    ((name, report),) = runs.listing()
    assert t.folder is not None and t.folder.name == name
    assert report is not None and report.trace_id == t.trace_id


def test_run_gives_the_same_kind_of_trace_and_raises_what_failed() -> None:
    with server_with(sse(chunk("He"), chunk("llo", finish="stop"), DONE)) as server:
        t = tokentrace.run("Hi", url=f"{server.url}/v1", model="alpha", max_tokens=3)
        assert (t.reply, len(t.layers), t.report.headline_pass) == ("Hello", 8, "once")
        (asked,) = [request.json for request in server.requests if request.path == "/v1/chat/completions"]
        assert (asked["max_tokens"], asked["messages"]) == (3, [{"role": "user", "content": "Hi"}])
    with pytest.raises(tokentrace.TokentraceError) as failed:
        tokentrace.run("Hi", url="http://127.0.0.1:1/v1", model="alpha")
    assert "nothing listens" in str(failed.value) and failed.value.fix


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyboardInterrupt(), "interrupted after 1 call"),
        (asyncio.CancelledError(), "cancelled after 1 call"),
        (ValueError(KEY), "the program ended with ValueError after 1 call"),
        (SystemExit(0), ""),
    ],
)
def test_how_a_program_left_the_block_is_said_on_the_root(
    error: BaseException, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    with (
        server_with(json_answer(WHOLE)) as server,
        pytest.raises(type(error)),
        tokentrace.trace("chain", save=True) as t,
    ):
        httpx.post(f"{server.url}/v1/chat/completions", json=STREAM)
        raise error
    assert t.folder is not None
    again = tokentrace.load(t.folder / "trace.jsonl")
    for one in (t, again):
        root = one.spans[0]
        assert (root.status, root.status_message) == ((2, told) if told else (0, ""))
        cut = told if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)) else ""
        assert root.attributes.get("tokentrace.interrupted", "") == one.report.interrupted == cut
        assert [event.name for event in root.events] == (["tokentrace.interrupted"] if cut else [])
    assert KEY not in b"".join(path.read_bytes() for path in t.folder.iterdir()).decode("utf-8", "replace")


def test_a_call_that_was_under_way_when_the_program_was_interrupted_is_named() -> None:
    with server_with(sse(chunk("He"), WAIT)) as server, pytest.raises(KeyboardInterrupt), tokentrace.trace() as t:  # noqa: SIM117
        with t.stage("answer"), httpx.Client() as client:
            with client.stream("POST", f"{server.url}/v1/chat/completions", json=STREAM) as response:
                for _ in response.iter_raw():
                    raise KeyboardInterrupt
    assert t.report.interrupted == "interrupted in answer"


def test_a_stream_that_the_error_broke_off_is_named_and_one_of_an_earlier_error_is_not() -> None:
    with (
        server_with(sse(chunk("He"), WAIT)) as server,
        pytest.raises(ValueError, match="late"),
        tokentrace.trace() as t,
    ):
        url = f"{server.url}/v1/chat/completions"
        for late in (False, True):
            with (
                contextlib.suppress(KeyError),
                httpx.Client() as client,
                client.stream("POST", url, json=STREAM) as one,
            ):
                next(one.iter_raw())
                raise ValueError("late") if late else KeyError
    assert t.spans[0].status_message == "the program ended with ValueError in call 2"
