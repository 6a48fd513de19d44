"""Traces for tests: one like a real run's, and arbitrary ones for hypothesis."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from tokentrace.model import (
    KIND_CLIENT,
    KIND_SERVER,
    STATUS_ERROR,
    STATUS_OK,
    Event,
    IdSource,
    Link,
    Process,
    Trace,
)

T0 = 1_790_000_000_123_456_789


def run_trace(spans: int = 60, seed: int = 1) -> Trace:
    """All layers, two processes on one host, envelopes, events, links, an error; parents enclose children."""
    rng = random.Random(seed)
    trace = Trace(ids=IdSource(seed))
    for pid in ("100", "200"):
        trace.processes[pid] = Process(
            pid,
            {"process.pid": int(pid), "host.id": "host-a", "host.name": "a", "process.runtime.name": "cpython"},
        )
    trace.meta = {"run": "20261130-1", "reply": "Hello!", "coverage": 0.98, "passes": {"warm": {"wall_ns": 5}}}
    length = 2_000_000 + spans * 10_000
    root = trace.add("pass warm", 0, T0, T0 + length, -1, {"tokentrace.pass": "warm"}, process="100", envelope=True)
    chat = trace.add(
        "chat smollm2", 8, T0 + 10, T0 + length - 10, root,
        {"gen_ai.request.model": "smollm2", "gen_ai.request.temperature": 0.0, "gen_ai.request.stream": True},
        process="100", thread=1001, kind=KIND_CLIENT, envelope=True, direction="down", status=STATUS_OK,
        events=[Event("tokentrace.token", T0 + 500 + i, {"index": i, "form": t}) for i, t in enumerate("Hé!")],
    )  # fmt: skip
    server = trace.add("POST /v1/chat/completions", 8, T0 + 100, T0 + length - 100, chat, {"http.route": "/v1"},
                       process="200", thread=2001, kind=KIND_SERVER, envelope=True)  # fmt: skip
    trace.add("encode", 7, T0 + 200, T0 + 900, server, {"ids": [1, 9690, 198], "forms": ["Hi", "ü"]}, process="200",
              thread=2001, direction="down")  # fmt: skip
    request = trace.add("request", 6, T0 + 1000, T0 + length - 1000, server, process="200", envelope=True)
    trace.add("compile mlp", 2, T0 + 1100, T0 + 1500, request, {"tokentrace.jit.key": "f" * 300}, process="200")
    trace.add("power", 1, T0 + 1000, T0 + length - 2000, chat, {"tokentrace.power.joules": 1.5}, process="100",
              events=[Event("sample", T0 + 2000 + i * 1000, {"hw.power": 10.0 + i}) for i in range(3)])  # fmt: skip
    clock = T0 + 2000
    while len(trace) < spans:
        step = trace.add("step", 6, clock, clock + 9000, request,
                         {"tokentrace.step.index": len(trace), "tokentrace.join": "request_id"},
                         process="200", thread=2002, envelope=True)  # fmt: skip
        forward = trace.add("forward", 5, clock + 100, clock + 8900, step, process="200", thread=2002, direction="down")
        operator = trace.add(f"aten::{rng.choice(('mm', 'add'))}", 4, clock + 200, clock + 5000, forward,
                             {"shapes": f"[[1, {rng.randrange(99)}]]", "calls": 1, "ns": rng.randrange(2**40)},
                             process="200", thread=2002, direction="down")  # fmt: skip
        launch = trace.add("launch cudaLaunchKernel", 3, clock + 300, clock + 900, operator,
                           {"tokentrace.duration_ns": 600}, process="200", thread=2002, direction="down")  # fmt: skip
        trace.add("kernel sgemm", 3, clock + 1000, clock + 1600, forward, {"tokentrace.kernel.stream": 7},
                  process="200", thread=7, links=[Link(trace.span_id[launch], {"kind": "launch"})])  # fmt: skip
        clock += 10_000
    trace.add("sample", 5, T0 + length - 1500, T0 + length - 1400, request, process="200", direction="up",
              status=STATUS_ERROR, status_message="out of memory")  # fmt: skip
    return trace


texts = (
    st.text(max_size=12)
    | st.text(alphabet="aé\ud800\udfff\x00\x01", max_size=4)
    | st.text("x", min_size=120, max_size=140)
)
integers = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 200) | st.integers(2**63, 2**66)
scalars = texts | integers | st.booleans() | st.floats()
values = (
    scalars
    | st.lists(texts, max_size=3)
    | st.lists(integers, max_size=3)
    | st.lists(scalars, max_size=3)
    | st.tuples(st.integers(0, 300), st.integers(0, 3))
    | st.none()
    | st.binary(max_size=3)
    | st.dictionaries(st.text("ab", max_size=2), scalars, max_size=2)
)
keys = st.sampled_from(
    ["a", "b", "tokentrace.layer", "tokentrace.direction", "thread.id", "tokentrace.envelope", "k" * 130, "ключ"]
)
attributes = st.dictionaries(keys | st.text(max_size=3), values, max_size=5)
times = st.integers(0, 2**63 - 1)


@st.composite
def traces(draw: Any, max_spans: int = 8, repeats: int = 1) -> Trace:
    """Any trace that Trace.add takes. With `repeats` each drawn span comes that often, so that columns fill."""
    trace = Trace(ids=IdSource(draw(st.integers(0, 2**32))))
    trace.meta = draw(
        st.dictionaries(st.text("abc", max_size=2), st.integers(-5, 2**64 - 1) | st.text("xy"), max_size=2)
    )
    known = draw(st.lists(st.sampled_from(["1", "2", ""]), unique=True))
    for key in known:
        trace.processes[key] = Process(key, draw(st.dictionaries(st.sampled_from(
            ["process.pid", "host.id", "host.name", "service.name", "service.namespace", "service.instance.id", "x"]),
            st.text("ab", min_size=1, max_size=3) | st.integers(0, 9), max_size=4)))  # fmt: skip
    for _ in range(draw(st.integers(1, max_spans))):
        name, own = draw(texts), draw(attributes)
        layer, thread = draw(st.integers(0, 9)), draw(st.sampled_from([0, 5, 1 << 40]))
        process, direction = draw(st.sampled_from(["", "1", "2"])), draw(st.sampled_from(["", "down", "up"]))
        kind, status = draw(st.integers(0, 5)), draw(st.integers(0, 2))
        events = draw(st.lists(st.builds(Event, texts, times, attributes), max_size=2))
        links = draw(st.lists(st.builds(Link, st.integers(1, 2**64 - 1), attributes), max_size=2))
        envelope, start = draw(st.booleans()), draw(times)
        end = draw(st.integers(start, 2**63 - 1))
        for repeat in range(repeats):
            row = len(trace)
            changed = {
                k: v + repeat if type(v) is int and abs(v) < 2**62 else v + str(repeat % 3) if type(v) is str else v
                for k, v in own.items()
            }
            trace.add(
                name, layer, start, end, draw(st.integers(0, row - 1)) if row else -1, changed if repeats > 1 else own,
                process=process, thread=thread, direction=direction, kind=kind, status=status,
                status_message=draw(texts) if repeat == 0 else "", envelope=envelope, events=events, links=links,
            )  # fmt: skip
    return trace


span_names = st.sampled_from(
    [("step", 6), ("forward", 5), ("layers.0", 5), ("aten::a", 4), ("aten::b", 4), ("leaf a", 3), ("compile x", 2),
     ("chat m", 8)]
)  # fmt: skip


@st.composite
def trees(draw: Any) -> Trace:
    """Any tree of spans as a run has them, with steps and their phases; children lie in their parents."""
    trace = Trace(ids=IdSource(draw(st.integers(0, 9))))
    trace.add("run", 0, 0, 10_000, -1)
    for _ in range(draw(st.integers(0, 60))):
        parent = draw(st.integers(max(0, len(trace) - 6), len(trace) - 1))
        low = draw(st.integers(trace.start_ns[parent], trace.end_ns[parent]))
        high = draw(st.integers(low, trace.end_ns[parent]))
        name, layer = draw(span_names)
        phase = {"tokentrace.step.phase": draw(st.sampled_from(["prefill", "decode"]))} if name == "step" else {}
        trace.add(name, layer, low, high, parent, phase, thread=draw(st.integers(0, 1)))
    return trace
