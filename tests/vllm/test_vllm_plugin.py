"""Attaching to a real vLLM server in which tokentrace waits as a plugin: what is seen, and that nobody is disturbed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from vllm_server import MODEL, UNTIL_LEFT, Stream, VllmServer

from tokentrace import attach, workflow
from tokentrace.agent_client import AgentGroup
from tokentrace.attach import progress
from tokentrace.attach.session import ask
from tokentrace.attach.watch import Row, watch
from tokentrace.client.settings import Endpoint
from tokentrace.errors import AttachError, EngineError, ProbeUnavailable
from tokentrace.model import Trace
from tokentrace.session import Ask

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
PASSES = ("warm", "deep")


@contextlib.contextmanager
def attached(server: VllmServer) -> Iterator[attach.Attached]:
    with attach.open(attach.find(server.url), method="agent") as found:
        assert found.depth == "agent"
        yield found


def settings(server: VllmServer, once: bool = False) -> workflow.Settings:
    return workflow.Settings(Endpoint(server.url, model=MODEL), once=once, save=False)


def our_prompt(server: VllmServer, tokens: int = 10, once: bool = False) -> workflow.Run:
    with attached(server) as found:
        return ask(found, Ask("Hi", max_tokens=tokens, temperature=0.0), settings(server, once), workflow.Quiet())


def functions(server: VllmServer) -> list[dict[str, int]]:
    """Of every process of the server, which object each function is."""
    with attached(server) as found:
        return [dict(one.functions()) for one in found.agents]


def names(trace: Trace, pass_name: str) -> Counter[str]:
    return Counter(s.name for s in trace.spans if s.attributes.get("tokentrace.pass") == pass_name)


def check_tree(trace: Trace, whole: bool = True) -> None:
    """One root, no orphan, every span inside its parent. A `whole` trace has a place for every record."""
    assert trace.parent[0] == -1
    for row in range(1, len(trace)):
        parent = trace.parent[row]
        assert 0 <= parent < row
        assert trace.start_ns[parent] <= trace.start_ns[row] <= trace.end_ns[row] <= trace.end_ns[parent]
    told = trace.meta["stitch"]
    assert told["cycles"] == told["duplicate_keys"] == 0
    if whole:
        assert told["unresolved"] == told["dropped_outside"] == 0


@pytest.fixture(scope="module")
def run(server: VllmServer) -> workflow.Run:
    assert server.answers()  # a server's very first request loads a few things that nobody watches
    return our_prompt(server)


def test_one_prompt_gives_one_tree_through_three_processes(server: VllmServer, run: workflow.Run) -> None:
    assert run.error is None
    check_tree(run.trace)
    seen = {process for process in run.trace.process if process}
    inside = {str(one.pid) for one in attach.find(server.url).processes}
    assert len(inside) == 3 and inside <= seen
    for pid in inside:
        assert run.trace.processes[pid].attributes["host.id"]
        assert run.trace.processes[pid].attributes["process.pid"] == int(pid)


def test_all_eight_layers_are_seen_or_explained(run: workflow.Run) -> None:
    by_layer = {row.layer: row for row in run.report.layers}
    assert set(by_layer) == set(range(1, 9))
    for number in (8, 7, 6, 5, 4, 3):
        assert by_layer[number].status == "seen", by_layer[number].reason
    assert by_layer[2].status == "idle" and "eager" in by_layer[2].reason
    assert by_layer[1].status == "seen" or by_layer[1].reason
    # More than that on a quiet machine; on a busy one the three processes also wait for each other.
    passes = run.report.passes.values()
    assert max(1 - one.unattributed_ns / one.wall_ns for one in passes) > 0.4


def test_tokens_and_steps_are_those_of_the_reply(run: workflow.Run) -> None:
    assert run.report.tokens == {"input": 31, "output": 10}
    for name in PASSES:
        found = names(run.trace, name)
        # The prefill gives the first token, each decode step one more.
        assert found["step"] == found["forward"] == found["sample"] == found["decode"] == 10
        assert found["lm_head"] == found["hop to worker"] == found["hop to api"] == 10
        assert found["chat template"] == found["encode"] == found["submit"] == found["queue wait"] == 1
        phases = [s.attributes["tokentrace.step.phase"] for s in run.trace.spans
                  if s.name == "step" and s.attributes["tokentrace.pass"] == name]  # fmt: skip
        assert phases == ["prefill"] + 9 * ["decode"]


def test_each_step_says_with_whom_it_was_shared_and_which_token_it_gave(run: workflow.Run) -> None:
    reply = run.trace.meta["passes"]["warm"]["exchange"]["text"]
    decoded = [s for s in run.trace.spans if s.name == "decode" and s.attributes["tokentrace.pass"] == "warm"]
    assert "".join(s.attributes["tokentrace.token.text"] for s in decoded) == reply
    steps = [s for s in run.trace.spans if s.name == "step" and s.attributes["tokentrace.pass"] == "warm"]
    assert [s.attributes["tokentrace.token.id"] for s in steps] == [
        s.attributes["tokentrace.token.id"] for s in decoded
    ]
    for step in steps:
        told = step.attributes
        assert told["tokentrace.step.batch_size"] == 1 and told["tokentrace.step.share"] == 1.0
        assert told["tokentrace.step.kv_blocks_total"] >= told["tokentrace.step.kv_blocks_used"] > 0


def test_only_the_first_steps_are_profiled_and_the_parts_of_the_model_are_all_there(run: workflow.Run) -> None:
    deep = [s for s in run.trace.spans if s.attributes.get("tokentrace.pass") == "deep"]
    profiled = {
        run.trace.span(row).attributes["tokentrace.step.index"]
        for s in deep
        if s.layer == 4
        for row in above(run.trace, s.row)
        if _is_step(run.trace, row)
    }
    steps = sorted(s.attributes["tokentrace.step.index"] for s in deep if s.name == "step")
    assert sorted(profiled) == steps[:3]
    layers = Counter(s.name for s in deep if s.name.startswith("layers."))
    assert names(run.trace, "deep")["embed_tokens"] == names(run.trace, "deep")["norm"] == 10
    assert len(layers) == 30 * 4 and set(layers.values()) == {10}
    warm = {s.name for s in run.trace.spans if s.layer == 4 and s.attributes["tokentrace.pass"] == "warm"}
    assert warm == {"unseen"}


def above(trace: Trace, row: int) -> Iterator[int]:
    while row > 0:
        row = trace.parent[row]
        yield row


def _is_step(trace: Trace, row: int) -> bool:
    return trace.names[trace.name[row]] == "step"


def test_what_crosses_a_process_says_how_it_was_joined(run: workflow.Run) -> None:
    trace = run.trace
    for row in range(1, len(trace)):
        parent = trace.parent[row]
        if trace.process[row] and trace.process[parent] and trace.process[row] != trace.process[parent]:
            assert trace.attributes(row).get("tokentrace.join"), trace.names[trace.name[row]]


def test_every_known_function_of_this_version_is_found_in_some_process(run: workflow.Run) -> None:
    missing = run.trace.meta["engine"]["missing_hooks"]
    assert missing == [], f"vLLM {run.trace.meta['engine']['versions']['vllm']} has moved: {missing}"
    assert run.trace.meta["engine"]["notes"] == []


def test_every_function_is_the_identical_object_again_after_detach(server: VllmServer) -> None:
    our_prompt(server)  # so that the model was seen
    before = functions(server)
    our_prompt(server)
    assert functions(server) == before
    assert max(one["functions on the model"] for one in before) == 0


def test_a_stream_of_another_client_is_the_same_with_and_without_attach(server: VllmServer) -> None:
    prompt = "Tell me about rivers."
    plain = Stream(server.url, prompt, 400).end()
    during = Stream(server.url, prompt, UNTIL_LEFT)
    assert during.started.wait(60)
    run = our_prompt(server)
    assert during.came(60)
    text = during.leave()
    both = min(len(plain), len(text))
    assert both > 100 and plain[:both] == text[:both]
    assert run.error is None
    shared = [s for s in run.trace.spans if s.name == "step" and s.attributes["tokentrace.step.batch_size"] == 2]
    assert shared, "the two requests did not meet"
    assert all(0 < s.attributes["tokentrace.step.share"] < 1 for s in shared)


def test_of_eight_streams_only_ours_is_in_the_trace(server: VllmServer) -> None:
    others = [Stream(server.url, f"Count from {n}", UNTIL_LEFT) for n in range(8)]
    assert all(one.started.wait(60) for one in others)
    run = our_prompt(server)
    for one in others:
        one.leave()
        assert not one.error and one.pieces > 10
    check_tree(run.trace)
    for name in PASSES:
        facts = run.trace.meta["passes"][name]
        ids = {s.attributes["tokentrace.request_id"] for s in run.trace.spans
               if "tokentrace.request_id" in s.attributes and s.attributes["tokentrace.pass"] == name}  # fmt: skip
        assert ids == {facts["request_id"]} and facts["request_id"].startswith(facts["exchange"]["response_id"])
        assert names(run.trace, name)["decode"] == 10
    batches = [s.attributes["tokentrace.step.batch_size"] for s in run.trace.spans if s.name == "step"]
    assert max(batches) == 9


def test_requests_of_others_are_traced_as_they_come_without_their_text(server: VllmServer) -> None:
    with attached(server) as found:
        streams: list[Stream] = []

        def begin(under_way: int) -> None:
            if not streams:
                streams.extend(Stream(server.url, f"A secret word: zanzibar {n}", 12) for n in range(3))

        seen = list(watch(found, settings(server), for_s=240, requests=3, idle=begin))
    assert len(seen) == 3 and all(one.end() != "" for one in streams)
    for row, run in seen:
        check_tree(run.trace)
        assert row.reply_tokens == 12 and row.status == 200
        assert row.ttft_ns and row.wait_ns is not None and row.prefill_ns and row.decode_ns_per_token
        assert row.layer and names(run.trace, "once")["decode"] == 12
        assert "zanzibar" not in json.dumps([s.attributes for s in run.trace.spans], default=str)
        assert not [s.name for s in run.trace.spans if "tokentrace.token.id" in s.attributes]
        assert "zanzibar" not in json.dumps(run.report.to_json(), default=str)
    assert len({run.trace.trace_id for _, run in seen}) == 3


def complete_text(server: VllmServer, model: str, prompt: str | list[str], **more: Any) -> Any:
    asked = {"model": model, "prompt": prompt, "max_tokens": 3, "ignore_eos": True, "temperature": 0, **more}
    body = json.dumps(asked).encode()
    request = urllib.request.Request(f"{server.url}/completions", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=240))["choices"][0]


def test_requests_of_others_that_end_otherwise_are_told_as_they_were(server: VllmServer) -> None:
    wanted = {"/v1/chat/completions abort", "/v1/completions ", "/v1/completions length", "/v1/completions stop"}
    letter = next(one for one in reversed(complete_text(server, MODEL, "Once", max_tokens=12)["text"]) if one.isalpha())
    with attached(server) as found:
        streams: list[Stream] = []

        def begin(under_way: int) -> None:
            if not streams:
                streams.append(Stream(server.url, "Count", UNTIL_LEFT))
                assert streams[0].came(2)
                streams[0].leave()
                with pytest.raises(urllib.error.HTTPError):
                    complete_text(server, "no such model", "Hi")
                complete_text(server, MODEL, ["One", "Two"])
                stopped = complete_text(server, MODEL, "Once", max_tokens=60, stop=[letter])
                assert stopped["finish_reason"] == "stop" and stopped["stop_reason"] == letter

        seen: dict[str, tuple[Row, workflow.Run]] = {}
        for row, run in watch(found, settings(server), for_s=240, stop=lambda: seen.keys() >= wanted, idle=begin):
            seen[f"{row.path} {row.ended}"] = row, run
    assert seen.keys() >= wanted
    refused, several = seen["/v1/completions "][0], seen["/v1/completions length"][0]
    assert (refused.status, refused.prompt_tokens) == (404, None)
    assert (several.replies, several.reply_tokens) == (2, 3)
    run = seen["/v1/completions length"][1]
    assert not any("also served other" in one.sentence for one in run.report.findings)
    stopped = seen["/v1/completions stop"][1]  # by the API server, which has the engine abort what it goes on with
    check_tree(stopped.trace, whole=False)
    assert not any("aborted" in one.sentence for one in stopped.report.findings)
    finishes = [s.attributes for s in stopped.trace.spans if s.name == "finish"]  # none where the engine is late
    assert all(one["tokentrace.engine.finish_reason"] == "abort" for one in finishes)
    assert {stopped.trace.span(s.parent).name for s in stopped.trace.spans if s.name == "step"} == {"request"}


def test_others_watched_deeply_are_profiled_between_their_steps(server: VllmServer) -> None:
    with attached(server) as found:
        streams: list[Stream] = []

        def begin(under_way: int) -> None:
            if not streams:
                streams.extend(Stream(server.url, f"Count from {n}", 20 + 20 * n) for n in range(4))

        seen = list(watch(found, settings(server), for_s=240, requests=4, deep=True, idle=begin))
        for one in streams:
            one.end()
    profiled = [run for _, run in seen if names(run.trace, "once")["layers.0.mlp"]]
    assert profiled
    costs = [cost for run in profiled for state in run.trace.meta["passes"]["once"]["states"] if state["layer"] == 4
             for cost in state["facts"].get("profiler", ())]  # fmt: skip
    assert costs and all(cost["stopped_between_steps"] for cost in costs)


def test_a_second_tokentrace_is_told_who_is_there(server: VllmServer) -> None:
    with attached(server):
        with pytest.raises((AttachError, EngineError)) as refused:
            our_prompt(server)
        assert str(os.getpid()) in str(refused.value) or "another tokentrace" in str(refused.value)
    assert our_prompt(server, once=True).error is None


_HOLD = """
import sys, time
from tokentrace import attach, workflow
from tokentrace.attach.session import ask
from tokentrace.client.settings import Endpoint
from tokentrace.session import Ask
class Ui(workflow.Quiet):
    def text(self, piece):
        print("token", flush=True)
with attach.open(attach.find(sys.argv[1]), method="agent") as found:
    ask(found, Ask("Tell me a long story.", max_tokens=600, temperature=0.0),
        workflow.Settings(Endpoint(sys.argv[1], model=sys.argv[2]), save=False), Ui())
"""


def test_when_tokentrace_is_killed_the_server_is_as_before_within_seconds(server: VllmServer) -> None:
    before = functions(server)
    other = Stream(server.url, "Tell me about rivers.", 60)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, server.url, MODEL], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"token\n"
    holder.kill()  # SIGKILL
    holder.wait()
    deadline = time.monotonic() + 60
    after: list[dict[str, int]] = []
    while after != before and time.monotonic() < deadline:
        with contextlib.suppress(AttachError, EngineError, ProbeUnavailable):
            after = functions(server)
    assert after == before
    assert other.end() and not other.error
    assert server.answers()


def test_busy_idle_and_stalled_are_told_by_progress(server: VllmServer) -> None:
    endpoint = Endpoint(server.url, model=MODEL)
    deadline = time.monotonic() + 60
    while progress.look(endpoint, 0.5).state != "idle" and time.monotonic() < deadline:
        time.sleep(0.2)  # what a test before this one left running
    assert progress.look(endpoint, 0.5).state == "idle"
    stream = Stream(server.url, "Tell me about rivers.", UNTIL_LEFT)
    assert stream.started.wait(60)
    assert progress.look(endpoint).state == "busy"
    engine = next(one for one in attach.find(server.url).processes if one.role == "engine")
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 60
        found = progress.look(endpoint, 2.0)
        while found.state != "stalled" and time.monotonic() < deadline:  # what was on its way arrives
            found = progress.look(endpoint, 2.0)
        assert found.state == "stalled" and found.fix
    finally:
        os.kill(engine.pid, signal.SIGCONT)
    assert stream.came(stream.pieces + 1)  # and it goes on
    stream.leave()


def test_when_the_server_is_killed_what_was_seen_is_kept(server: VllmServer) -> None:
    """The last test of this module: the server does not come back."""

    with attached(server) as found:
        agents = AgentGroup(found.agents)

        class KillsAfterSteps(workflow.Quiet):
            killed = False

            def text(self, piece: str) -> None:
                arrived = sum(raw.name == "step" for raw in agents.records("engine"))
                if arrived >= 5 and not self.killed:
                    self.killed = True
                    server.stop()

        run = ask(found, Ask("Tell me a long story.", max_tokens=900, temperature=0.0), settings(server, once=True),
                  KillsAfterSteps())  # fmt: skip
        assert agents.lost
    assert run.error is not None and run.error.fix
    check_tree(run.trace, whole=False)  # the last step's end nobody told
    assert names(run.trace, "once")["step"] >= 3
    assert any("gaps" in note for note in run.trace.meta["engine"]["notes"])
