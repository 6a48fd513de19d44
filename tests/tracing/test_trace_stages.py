"""Stages of a traced program: spans that hold their calls, and each other."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tokentrace
from tests.support.http_servers import DONE, ScriptedServer, chunk, json_answer, sse
from tokentrace.tracing.stages import BY_TIME

ASK = {"model": "alpha", "messages": [{"role": "user", "content": "Hi"}]}
WHOLE = {
    "model": "alpha",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


@pytest.fixture
def url() -> Iterator[str]:
    with ScriptedServer().on("POST", "/v1/chat/completions", json_answer(WHOLE)) as server:
        yield f"{server.url}/v1/chat/completions"


def outline(trace: Any) -> list[str]:
    """Stages and passes, each behind what holds it, which it does in time too."""
    spans = list(trace.spans)
    for span in spans[1:]:
        above = spans[span.parent]
        assert above.row < span.row and above.start_ns <= span.start_ns <= span.end_ns <= above.end_ns
    return [f"{spans[span.parent].name} > {span.name}" for span in spans[1:] if not span.layer]


def test_a_stage_holds_its_calls_and_the_stages_inside_it(url: str) -> None:
    with tokentrace.trace("mine") as t:
        with t.stage("outer"):
            httpx.post(url, json=ASK)
            with t.stage("inner"):
                httpx.post(url, json=ASK)
        httpx.post(url, json=ASK)
    assert outline(t) == [
        "mine > stage outer",
        "stage outer > stage inner",
        "stage outer > pass outer",
        "stage inner > pass inner",
        "mine > pass call 1",
    ]
    assert list(t.report.passes) == ["outer", "inner", "call 1"]
    spans = {span.name: span for span in t.spans}
    assert spans["pass inner"].attributes["tokentrace.stage"] == "inner"
    outer, inner = spans["stage outer"], spans["stage inner"]
    assert outer.duration_ns >= inner.duration_ns + spans["pass outer"].duration_ns


def test_the_report_tells_what_each_stage_took_with_the_waits_in_it(url: str) -> None:
    busy = json_answer({"error": {"message": "slow down"}}, 429)
    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", busy, busy, json_answer(WHOLE))
        with tokentrace.trace("mine") as t:
            with t.stage("outer"):
                httpx.post(url, json=ASK)
                with t.stage("inner"):
                    for _ in range(3):
                        httpx.post(f"{server.url}/v1/chat/completions", json=ASK)
            with t.stage("outer"):
                pass
            httpx.post(url, json=ASK)
    outer, inner, rest = t.report.stages
    spans = list(t.spans)
    took = [span.duration_ns for span in spans if span.name == "stage outer"]
    assert (outer.way, outer.runs, outer.wall_ns) == (["outer"], 2, sum(took))
    assert (inner.way, inner.runs, inner.calls) == (["outer", "inner"], 1, ["inner 1", "inner 2", "inner 3"])
    assert outer.calls == ["outer", *inner.calls] and rest.calls == ["call 1"]
    assert (outer.failed, inner.failed, rest.failed) == (2, 2, 0)
    assert (outer.tokens, inner.tokens) == ({"input": 6, "output": 4}, {"input": 3, "output": 2})
    walls = {name: row.wall_ns for name, row in t.report.passes.items()}
    assert [row.in_calls_ns for row in (outer, inner, rest)] == [
        sum(walls[name] for name in row.calls) for row in (outer, inner, rest)
    ]
    assert t.report.program is not None
    assert outer.wall_ns + rest.wall_ns == t.report.program.wall_ns
    assert inner.wall_ns > inner.in_calls_ns, "what the program did between its calls is in the stage"


def test_stages_beside_each_other_are_not_counted_twice(url: str) -> None:
    async def one(t: Any, mine: asyncio.Event, others: asyncio.Event) -> None:
        with t.stage("work"):
            mine.set()
            await others.wait()
            async with httpx.AsyncClient() as client:
                await client.post(url, json=ASK)

    async def both(t: Any) -> None:
        left, right = asyncio.Event(), asyncio.Event()
        await asyncio.gather(one(t, left, right), one(t, right, left))

    with tokentrace.trace() as t:
        asyncio.run(both(t))
    work, rest = t.report.stages
    runs = [span for span in t.spans if span.name == "stage work"]
    assert (work.runs, len(work.calls)) == (2, 2)
    assert work.wall_ns == max(run.end_ns for run in runs) - min(run.start_ns for run in runs)
    assert t.report.program is not None and work.wall_ns + rest.wall_ns == t.report.program.wall_ns
    assert work.in_calls_ns <= work.wall_ns


def test_a_saved_run_shows_its_stages(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from tokentrace.cli import cli

    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    with tokentrace.trace("mine", save=True) as t, t.stage("outer"), t.stage("inner"):
        httpx.post(url, json=ASK)
        httpx.post(url, json=ASK)
    shown = CliRunner().invoke(cli, ["show", "--no-color"], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.output.splitlines()]
    table = lines[lines.index(["Stages", "of", "the", "program"]) + 1 :][:4]
    assert [line[0] for line in table] == ["stage", "outer", "inner", "(outside"]
    assert all(line[-3:] == ["2", "6", "4"] for line in table[1:3]), table
    tree = CliRunner().invoke(cli, ["show", "--tree", "--pass", "inner 2"])
    assert tree.exit_code == 0 and tree.output.startswith("pass inner 2"), tree.output


def test_each_calls_own_times_add_up_wherever_it_hangs(url: str) -> None:
    with tokentrace.trace() as t, t.stage("outer"), t.stage("inner"):
        httpx.post(url, json=ASK)
        httpx.post(url, json=ASK)
    assert list(t.report.passes) == ["inner 1", "inner 2"]
    for row in t.report.passes.values():
        assert row.wall_ns == sum(row.own_ns.values()) + (row.unattributed_ns or 0)


def test_a_plain_threads_call_is_of_the_only_stage_that_is_open(url: str) -> None:
    """Threads get no context of their own maker; this one is asked for where it is begun, else nobody knows."""

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: httpx.post(url, json=ASK))
        thread.start()
        thread.join()

    with tokentrace.trace("mine") as t:
        with t.stage("threads"):
            elsewhere()
        with t.stage("one"), t.stage("two"):
            elsewhere()
        elsewhere()
    assert outline(t)[3] == "stage threads > pass threads"
    notes = next(span for span in t.spans if span.name == "chat alpha").attributes.get("tokentrace.notes")
    if _threads_inherit():
        assert notes is None
        return
    assert notes == [BY_TIME]
    assert list(t.report.passes) == ["threads", "call 1", "call 2"]
    assert outline(t)[-2:] == ["mine > pass call 1", "mine > pass call 2"]


def _threads_inherit() -> bool:
    return bool(getattr(sys.flags, "thread_inherit_context", 0))


def test_a_stage_of_a_thread_does_not_name_the_calls_of_the_block_itself(url: str) -> None:
    inside, go_on = threading.Event(), threading.Event()
    with tokentrace.trace("mine") as t:

        def work() -> None:
            with t.stage("beside"):
                inside.set()
                go_on.wait()

        thread = threading.Thread(target=work)
        thread.start()
        inside.wait()
        httpx.post(url, json=ASK)
        go_on.set()
        thread.join()
    assert outline(t) == ["mine > stage beside", "mine > pass call 1"]


def test_a_reply_that_is_read_after_its_stage_says_whose_it_is() -> None:
    with contextlib.ExitStack() as later, ScriptedServer() as server, tokentrace.trace("mine") as t:
        server.on("POST", "/v1/chat/completions", sse(chunk("He"), chunk("llo"), DONE))
        with t.stage("answer"):
            asked = httpx.stream("POST", f"{server.url}/v1/chat/completions", json={**ASK, "stream": True})
            reply = later.enter_context(asked)
        for _ in reply.iter_raw():
            pass
    assert outline(t) == ["mine > stage answer", "mine > pass answer"]
    spans = {span.name: span for span in t.spans}
    told = spans["pass answer"].attributes
    assert [row.calls for row in t.report.stages] == [["answer"], []]
    assert t.report.stages[0].in_calls_ns < spans["chat alpha"].duration_ns
    assert told["tokentrace.stage.span_id"] == f"{spans['stage answer'].span_id:016x}"
    assert told["tokentrace.stage.outlived_ns"] == spans["pass answer"].end_ns - spans["stage answer"].end_ns


def test_how_the_program_left_a_stage_is_said_on_it(url: str) -> None:
    with tokentrace.trace("mine") as t:
        with contextlib.suppress(KeyError), t.stage("bad"):
            raise KeyError("sk-canary")
        open_one = t.stage("left open")
        open_one.__enter__()
        httpx.post(url, json=ASK)
    spans = {span.name: span for span in t.spans}
    assert (spans["stage bad"].status, spans["stage bad"].status_message) == (2, "the program left it with KeyError")
    assert spans["stage left open"].attributes["tokentrace.notes"] == ["it was still open when the trace ended"]
    assert spans["pass left open"].parent == spans["stage left open"].row
    assert spans["mine"].status == 0
    open_one.__exit__(None, None, None)


def test_a_saved_chain_reads_back_as_it_was(url: str, tmp_path: Path) -> None:
    with tokentrace.trace("mine") as t, t.stage("outer"), t.stage("inner"):
        httpx.post(url, json=ASK)
    again = tokentrace.load(t.save(tmp_path / "t.jsonl"))
    assert outline(again) == outline(t)
    assert list(again.report.passes) == ["inner"]
    assert again.report.to_json() == {**t.report.to_json(), "spans": again.report.to_json()["spans"]}
