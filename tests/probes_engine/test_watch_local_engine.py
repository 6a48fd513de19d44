"""Requests of others in the local engine, watched as they come: each a trace of its own, the server's side only."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tokentrace import workflow
from tokentrace.agent_client import AgentClient
from tokentrace.attach.found import Depth, Found
from tokentrace.attach.joined import Left
from tokentrace.attach.table import table
from tokentrace.attach.watch import Row, watch
from tokentrace.client.settings import Endpoint
from tokentrace.errors import AttachError
from tokentrace.interrupts import held

pytestmark = pytest.mark.model


@dataclass
class Attached:
    found: Found
    depth: Depth = "agent"
    agents: list[AgentClient] = field(default_factory=list)
    left_alone: tuple[()] = ()


def post(url: str, prompt: str, tokens: int, stream: bool, headers: dict[str, str]) -> None:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "stream": stream}
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    )
    urllib.request.urlopen(request, timeout=240).read()


def watched(running: Any, *asked: tuple[str, int, bool], headers: dict[str, str] | None = None, **settings: Any) -> Any:
    with AgentClient.connect(running.agent_socket) as client:
        attached = Attached(Found(running.base_url, "tokentrace", ""), agents=[client])
        threads: list[threading.Thread] = []

        def begin(under_way: int) -> None:
            if not threads:
                for one in asked:
                    threads.append(threading.Thread(target=post, args=(running.base_url, *one, headers or {})))
                    threads[-1].start()

        where = workflow.Settings(Endpoint(running.base_url), save=False)
        found = list(watch(attached, where, for_s=240, requests=len(asked), idle=begin, **settings))
        for thread in threads:
            thread.join()
    return found


def test_each_request_is_a_trace_with_its_own_steps_and_without_text(running: Any) -> None:
    found = watched(running, ("The word is zanzibar", 4, True), ("Hi", 6, True))
    assert sorted(row.reply_tokens for row, _ in found) == [4, 6]
    for row, run in found:
        names = [s.name for s in run.trace.spans]
        assert names.count("decode") == row.reply_tokens and names.count("queue wait") == 1
        assert run.trace.parent[0] == -1 and run.report.layers[0].status == "seen"
        assert row.ttft_ns and row.decode_ns_per_token and row.layer
        kept = [s.attributes for s in run.trace.spans]
        assert "zanzibar" not in json.dumps(kept, default=str)
        # Token ids are text to whoever has the tokenizer.
        assert not [one for one in kept if "tokentrace.token.id" in one or "tokentrace.tokens.first" in one]
        assert "[" not in next(s.attributes["tokentrace.form.out"] for s in run.trace.spans if s.name == "encode")
        states = {one["layer"]: one for one in run.trace.meta["passes"]["once"]["states"]}
        assert states[4]["status"] == states[1]["status"] == "unseen" and states[4]["reason"]


def test_with_text_the_reply_is_there(running: Any) -> None:
    ((_, run),) = watched(running, ("Hi", 4, True), with_text=True)
    assert run.report.reply and run.report.layers[1].form_in
    assert sum("tokentrace.token.id" in s.attributes for s in run.trace.spans if s.name == "decode") == 4
    assert run.report.reply == "".join(
        s.attributes["tokentrace.token.text"] for s in run.trace.spans if s.name == "decode"
    )


def test_a_request_that_came_with_a_traceparent_stays_in_its_callers_trace(running: Any) -> None:
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    ((_, run),) = watched(running, ("Hi", 3, True), headers={"traceparent": f"00-{trace}-{span}-01"})
    assert run.trace.trace_id_hex == trace and run.trace.meta["parent_span_id"] == int(span, 16)


def test_a_reply_in_one_piece_has_no_time_to_its_first_token(running: Any) -> None:
    ((row, _),) = watched(running, ("Hi", 4, False))
    assert row.reply_tokens == 4 and row.ttft_ns is None


def three_that_have_ended(running: Any, seen: list[int]) -> Callable[[int], None]:
    """An `idle` that asks for three replies and comes back when all of them have ended."""

    def ask(under_way: int) -> None:
        if not seen:
            threads = [threading.Thread(target=post, args=(running.base_url, "Hi", 4, True, {})) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        seen.append(under_way)

    return ask


def test_what_had_ended_when_the_watching_is_stopped_is_saved(running: Any) -> None:
    seen: list[int] = []
    left = Left()
    with AgentClient.connect(running.agent_socket) as client:
        attached = Attached(Found(running.base_url, "tokentrace", ""), agents=[client])
        where = workflow.Settings(Endpoint(running.base_url), save=False)
        found = list(
            watch(attached, where, stop=lambda: bool(seen), idle=three_that_have_ended(running, seen), left=left)
        )
    assert [row.reply_tokens for row, _ in found] == [4, 4, 4]
    assert (left.under_way, left.ended) == (0, 0)


def test_a_second_ctrl_c_ends_the_saving_and_what_is_not_saved_is_counted(running: Any) -> None:
    seen: list[int] = []
    left = Left()
    rows = []
    with AgentClient.connect(running.agent_socket) as client, contextlib.suppress(KeyboardInterrupt), held() as ctrl_c:
        attached = Attached(Found(running.base_url, "tokentrace", ""), agents=[client])
        where = workflow.Settings(Endpoint(running.base_url), save=False)
        idle = three_that_have_ended(running, seen)
        with contextlib.closing(watch(attached, where, stop=lambda: ctrl_c.came, idle=idle, left=left)) as watching:
            for row, _ in watching:
                rows.append(row)
                signal.raise_signal(signal.SIGINT)  # the first one ends the watching
                if len(rows) == 2:
                    raise AssertionError("it went on")
    assert (len(rows), left.under_way, left.ended) == (2, 0, 1)


def test_from_outside_others_cannot_be_watched() -> None:
    attached = Attached(Found("http://127.0.0.1:1/v1", "", ""), "outside")
    with pytest.raises(AttachError) as refused:
        next(watch(attached, workflow.Settings(), for_s=1))
    assert refused.value.fix


def test_the_table_says_what_is_not_known() -> None:
    import io

    from rich.console import Console

    row = Row("chatcmpl-1", 200, None, None, 10, None, None, None, None, None, "", None)
    console = Console(width=150, file=io.StringIO())
    console.print(table([row], under_way=2))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("?") >= 8 and "2 requests under way" in shown
