"""Layers 7, 6 and 5 of real requests to the real local engine, through the agent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from probe_requests import UrlServer, stream_chat

from tokentrace.agent_client import AgentClient
from tokentrace.attach import progress
from tokentrace.client.settings import Endpoint
from tokentrace.layers import MARKS
from tokentrace.model import DOWN, UP, Record
from tokentrace.probe import ProbeContext, Raw
from tokentrace.probes.queue import QueueProbe
from tokentrace.probes.tensor import TensorProbe
from tokentrace.probes.tokenizer import TokenizerProbe
from tokentrace.stitch import PassRecords, stitch

pytestmark = pytest.mark.model


@pytest.fixture
def agent(running: Any) -> Iterator[AgentClient]:
    with AgentClient.connect(running.agent_socket) as client:
        yield client
    deadline = time.monotonic() + 60
    while progress.look(Endpoint(running.base_url)).state != "idle" and time.monotonic() < deadline:
        time.sleep(0.02)  # a request whose client has left ends a little later, and is not the next test's


def trace_one(agent: AgentClient, running: Any, prompt: str, *, deep: bool, span_id: int = 7, **more: Any) -> Any:
    """(context, {layer: records}, {layer: state}) of one request."""
    probes = [TokenizerProbe(), QueueProbe(), TensorProbe()]
    context = ProbeContext("local", "deep" if deep else "warm", deep, running.model_name, agent)
    agent.enable("http")  # the client's probe does this
    agent.begin_pass()
    for probe in probes:
        probe.arm(context)
    context.exchange = stream_chat(running.base_url, running.model_name, prompt, span_id, **more)
    for probe in probes:
        probe.disarm()
    agent.disable("http")
    agent.end_pass(context.exchange.response_id)
    assert agent.faults == [] and agent.dropped == 0
    found = {probe.layer: list(probe.collect(context)) for probe in probes}
    return context, found, {probe.layer: probe.state for probe in probes}


def named(records: list[Record], name: str) -> list[Record]:
    return sorted((r for r in records if r.name == name), key=lambda r: r.start_ns)


def test_a_light_pass_shows_the_tokens_way_down_and_up(agent: AgentClient, running: Any) -> None:
    context, found, states = trace_one(agent, running, "Hi", deep=False, max_tokens=5)
    exchange = context.exchange
    assert exchange.text == "Hello! How can I" and exchange.usage["completion_tokens"] == 5
    rid = exchange.response_id

    (template,), (encode,), decodes = (named(found[7], n) for n in ("chat template", "encode", "decode"))
    assert (
        template.attributes["tokentrace.form.in"] == '"Hi"'
        and "Hi<|im_end|>" in template.attributes["tokentrace.template.text"]
    )
    assert encode.attributes["tokentrace.tokens.count"] == exchange.input_tokens == 31
    assert encode.attributes["tokentrace.tokens.first"][:3] == [1, 9690, 198]
    assert encode.attributes["tokentrace.form.out"] == "31 ids [1, 9690, 198, …]"
    ids = [d.attributes["tokentrace.token.id"] for d in decodes]
    assert "".join(d.attributes["tokentrace.token.text"] for d in decodes) == exchange.text
    assert decodes[0].attributes["tokentrace.form.in"] == str(ids[0]) and (encode.direction, decodes[0].direction) == (
        DOWN,
        UP,
    )

    steps = named(found[6], "step")
    assert len(steps) == 5, "one prefill that gives the first token, four decodes"
    assert [s.attributes["tokentrace.step.phase"] for s in steps] == ["prefill"] + ["decode"] * 4
    assert [s.attributes["tokentrace.token.id"] for s in steps] == ids
    first = steps[0].attributes
    assert first["tokentrace.step.request_tokens"] + first["tokentrace.step.cached_tokens"] == 31
    assert 0 < first["tokentrace.step.kv_blocks_used"] < first["tokentrace.step.kv_blocks_total"]
    assert all(s.attributes["tokentrace.step.share"] == 1.0 for s in steps)
    (submit,), (wait,), (finish,) = (named(found[6], n) for n in ("submit", "queue wait", "finish"))
    assert submit.end_ns == wait.start_ns <= wait.end_ns <= steps[0].end_ns
    assert finish.attributes["tokentrace.finish_reason"] == "length" == exchange.finish_reason
    assert states[6].facts["decode_steps"] == 4 and states[6].facts["shared_steps"] == 0
    (request,) = named(found[6], "request")
    assert request.key == f"request:{rid}" and request.envelope
    assert request.start_ns == submit.start_ns and request.end_ns == steps[-1].end_ns

    forwards, samples = named(found[5], "forward"), named(found[5], "sample")
    assert {r.name for r in found[5]} == {"forward", "sample"}, "a light pass has no modules"
    assert [s.attributes["tokentrace.token.id"] for s in samples] == ids
    assert forwards[1].attributes["tokentrace.tensor.in_shape"] == "[1,1]"
    assert forwards[1].attributes["tokentrace.form.out"] == "logits[1,1,49152]"
    for step, forward, sample in zip(steps, forwards, samples, strict=True):
        assert step.start_ns <= forward.start_ns < forward.end_ns <= sample.start_ns < sample.end_ns <= step.end_ns


def test_a_deep_pass_shows_every_part_of_the_model_and_the_same_tokens(agent: AgentClient, running: Any) -> None:
    light, before, _ = trace_one(agent, running, "Hi there", deep=False, max_tokens=3)
    deep, found, states = trace_one(agent, running, "Hi there", deep=True, max_tokens=3)
    assert deep.exchange.text == light.exchange.text
    assert {r.name for r in before[5]} == {"forward", "sample"}
    forwards = named(found[5], "forward")
    parts = [r for r in found[5] if r.name not in ("forward", "sample")]
    assert len(parts) == 123 * len(forwards) and states[5].facts["modules"] == 123
    assert all(any(f.start_ns <= p.start_ns and p.end_ns <= f.end_ns for f in forwards) for p in parts)
    embed, head = named(parts, "embed_tokens")[0], named(parts, "lm_head")[-1]
    tokens = named(found[6], "step")[0].attributes["tokentrace.step.request_tokens"]
    assert embed.attributes["tokentrace.form.out"] == f"float32[1,{tokens},576]"
    assert embed.attributes["tokentrace.tensor.bytes"] == tokens * 576 * 4
    assert (embed.direction, head.direction) == (DOWN, UP)
    assert head.attributes["tokentrace.form.out"] == "logits[1,1,49152]"
    assert {r.name for r in parts if r.name.startswith("layers.29.")} == {
        "layers.29.input_layernorm", "layers.29.self_attn", "layers.29.post_attention_layernorm", "layers.29.mlp",
    }  # fmt: skip


def test_all_of_it_makes_one_tree(agent: AgentClient, running: Any) -> None:
    context, found, states = trace_one(agent, running, "Hi", deep=True, span_id=99, max_tokens=3)
    exchange, rid = context.exchange, context.exchange.response_id
    chat = Record("chat m", 8, exchange.start_ns, exchange.end_ns, span_id=99, key="chat", flow=True, envelope=True)
    handler = next(r for r in agent.records("http") if r.name == "request")
    assert handler.data["rid"] == rid and handler.data["status"] == 200
    post = Record(
        "POST /v1/chat/completions", 8, handler.start_ns, handler.end_ns, parent_id=99, key=f"request-http:{rid}",
        process=handler.process, thread=handler.thread, request=rid, flow=True, envelope=True,
    )  # fmt: skip
    records = [chat, post, *(r for layer in found.values() for r in layer)]
    until = max(exchange.end_ns, *(r.end_ns for r in records))  # a pass lasts until its records are collected
    one = PassRecords("deep", exchange.start_ns, until, records, list(states.values()), 99, rid)
    trace = stitch([one])
    name = [trace.names[i] for i in trace.name]
    above = [name[p] if p >= 0 else "" for p in trace.parent]
    pairs = {(child, parent) for child, parent in zip(name, above, strict=True)}
    for pair in (
        ("POST /v1/chat/completions", "chat m"), ("encode", "POST /v1/chat/completions"),
        ("decode", "POST /v1/chat/completions"), ("request", "POST /v1/chat/completions"), ("submit", "request"),
        ("queue wait", "request"), ("finish", "request"), ("step", "request"), ("prepare batch", "step"),
        ("schedule", "prepare batch"), ("update batch", "step"), ("forward", "step"), ("sample", "step"),
        ("embed_tokens", "forward"), ("layers.3.mlp", "forward"), ("lm_head", "forward"),
    ):  # fmt: skip
        assert pair in pairs
        # The engine tidies up a little after the client has read the last byte: that hangs below the pass.
        late = {"pass deep"} if any(r.name == pair[0] and r.end_ns > exchange.end_ns for r in records) else set()
        assert {p for c, p in pairs if c == pair[0]} - late == {pair[1]}, f"{pair[0]} hangs below several"
    assert trace.meta["stitch"]["dropped_outside"] == trace.meta["stitch"]["unresolved"] == 0
    assert sum(one not in MARKS for one in name) == len(records) + 2, "the root and the pass"


def streamed(running: Any, prompt: str, **more: Any) -> Iterator[dict[str, Any]]:
    """The events of one reply as they come; whoever stops reading hangs up."""
    body = {"model": running.model_name, "messages": [{"role": "user", "content": prompt}], "stream": True, **more}
    with httpx.stream("POST", f"{running.base_url}/chat/completions", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


def test_a_request_is_told_from_those_it_shared_steps_with(agent: AgentClient, running: Any) -> None:
    others: set[str] = set()
    ours_is_done, begun = threading.Event(), [threading.Event(), threading.Event()]

    def other(prompt: str, began: threading.Event) -> None:
        """Asks again and again until ours is done, and then hangs up."""
        while not ours_is_done.is_set():
            for event in streamed(running, prompt, max_tokens=400, ignore_eos=True):
                others.add(event["id"])
                if event["choices"] and event["choices"][0]["delta"].get("content"):
                    began.set()
                if ours_is_done.is_set():
                    return

    threads = [
        threading.Thread(target=other, args=(f"Count to {n}", began)) for n, began in zip((20, 30), begun, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        assert all(began.wait(60) for began in begun)
        context, found, states = trace_one(agent, running, "Hi", deep=True, max_tokens=6)
    finally:
        ours_is_done.set()
        for thread in threads:
            thread.join()
    steps = named(found[6], "step")
    assert len(steps) == 6 and states[6].facts["shared_steps"] > 0
    shared = [s.attributes for s in steps if s.attributes["tokentrace.step.batch_size"] > 1]
    assert all(0 < a["tokentrace.step.share"] < 1 for a in shared)
    assert all(a["tokentrace.step.scheduled_tokens"] > a["tokentrace.step.request_tokens"] for a in shared)
    assert len(named(found[5], "forward")) == 6
    rid = context.exchange.response_id
    assert {r.request for r in found[7]} == {rid} and rid not in others and len(others) >= 2
    assert "".join(r.attributes["tokentrace.token.text"] for r in named(found[7], "decode")) == context.exchange.text


def test_a_refused_request_is_explained_not_shown_as_empty(agent: AgentClient, running: Any) -> None:
    from tokentrace.probe import ProbeUnavailable

    probe, context = QueueProbe(), ProbeContext("local", "once", False, running.model_name, agent)
    agent.begin_pass()
    probe.arm(context)
    answer = httpx.post(f"{running.base_url}/chat/completions", json={"model": "nonsense", "messages": []})
    assert answer.status_code in (400, 404)
    probe.disarm()
    agent.end_pass()
    with pytest.raises(ProbeUnavailable, match="recorded no request of ours") as unseen:
        list(probe.collect(context))
    assert unseen.value.fix


def test_a_client_that_goes_away_is_an_abort(agent: AgentClient, running: Any) -> None:
    agent.begin_pass()
    agent.enable("engine")
    body = {"messages": [{"role": "user", "content": "Tell a story"}], "max_tokens": 200, "stream": True,
            "ignore_eos": True}  # fmt: skip
    with httpx.stream("POST", f"{running.base_url}/chat/completions", json=body, timeout=60) as response:
        rid = json.loads(next(response.iter_lines()).removeprefix("data: "))["id"]

    def ours() -> list[Raw]:  # a request that an earlier test left may end only now
        return [r for r in agent.records("engine") if r.name == "finish" and r.data["rid"] == rid]

    deadline = time.monotonic() + 60
    while not (ends := ours()) and time.monotonic() < deadline:
        time.sleep(0.02)
    agent.disable("engine")
    assert [end.data["reason"] for end in ends] == ["abort"]


def test_a_stream_that_runs_while_groups_come_and_go_is_not_changed(agent: AgentClient, running: Any) -> None:
    def story() -> str:
        return stream_chat(running.base_url, running.model_name, "Tell a story", max_tokens=40).text

    expected, got = story(), []
    thread = threading.Thread(target=lambda: got.append(story()))
    thread.start()
    while thread.is_alive():
        groups = ("http", "tokenizer", "engine", "model", "modules")
        for group in groups:
            agent.enable(group)
        time.sleep(0.02)
        for group in groups:
            agent.disable(group)
    assert got == [expected] and agent.facts()["on"] == [] and agent.facts()["faults"] == []


def test_outside_probes_read_this_engines_metrics_and_tokenizer(running: Any) -> None:
    server = UrlServer(running.base_url.removesuffix("/v1"))
    context = ProbeContext("url", "once", False, running.model_name, server=server)
    queue, tokenizer = QueueProbe(), TokenizerProbe()
    queue.arm(context)
    tokenizer.arm(context)
    context.exchange = exchange = stream_chat(running.base_url, running.model_name, "Hi", max_tokens=4)
    (metrics,), (tokenize,) = queue.collect(context), tokenizer.collect(context)
    told = metrics.attributes
    assert told["tokentrace.metrics.requests"] == 1 and "its own" in told["tokentrace.metrics.note"]
    assert (told["tokentrace.metrics.prompt_tokens"], told["tokentrace.metrics.generation_tokens"]) == (31, 4)
    assert 0 < told["tokentrace.metrics.time_to_first_token_s"] < told["tokentrace.metrics.e2e_s"]
    assert told["tokentrace.metrics.e2e_s"] < (exchange.end_ns - exchange.start_ns) / 1e9
    assert "tokentrace.metrics.queue_s" not in told, "this engine does not say; unknown is not 0"
    assert tokenize.attributes["tokentrace.tokens.count"] == exchange.input_tokens
    assert (
        tokenize.start_ns == tokenize.end_ns
        and "no part of its time" in tokenize.attributes["tokentrace.tokenize.note"]
    )
