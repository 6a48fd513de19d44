"""Which steps a request's joules are split over: the engine's own, by tokens; else arrivals at the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tokentrace.energy.device import (
    MAX_LIST,
    Condition,
    Log,
    Reading,
    SensorInfo,
    Split,
    Tokens,
    Window,
    device_record,
)
from tokentrace.exchange import Chunk, Exchange
from tokentrace.probe import Columns, ProbeContext, Raw
from tokentrace.probes._power_report import split_of, tokens_of, window_of

MS = 1_000_000


class Engine:
    """An agent that already holds its records."""

    def __init__(self, steps: Sequence[Raw]) -> None:
        self._steps = steps

    def enable(self, group: str, options: Mapping[str, Any] | None = None) -> None: ...

    def disable(self, group: str) -> None: ...

    def records(self, group: str) -> Sequence[Raw]:
        return self._steps if group == "engine" else ()

    def columns(self, group: str) -> Sequence[Columns]:
        return ()

    def facts(self) -> Mapping[str, Any]:
        return {}


def step(index: int, reqs: dict[str, int], process: str = "1", **data: Any) -> Raw:
    body = {"index": index, "reqs": reqs, "tokens": sum(reqs.values()), "batch": len(reqs), **data}
    return Raw("engine", "step", index * 100 * MS, index * 100 * MS + 90 * MS, 1, process, body)


def context(steps: Sequence[Raw], **kwargs: Any) -> ProbeContext:
    exchange = Exchange(url="u", model="m", span_id=1, traceparent="", start_ns=1, end_ns=10_000 * MS)
    exchange.usage = {"prompt_tokens": 31, "completion_tokens": 3}
    return ProbeContext(mode="local", pass_name="warm", deep=False, agent=Engine(steps), exchange=exchange, **kwargs)


def test_steps_are_shared_by_tokens_and_chunked_prefill_is_prefill() -> None:
    steps = [
        step(0, {"a": 16, "other": 16}),
        step(1, {"a": 15, "other": 1}),
        step(2, {"a": 1, "other": 1}),
        step(3, {"other": 1}),
        step(4, {"a": 1}),
    ]
    split = split_of(context(steps, request_id="a"))
    assert split.source == "steps"
    assert [(s.phase, s.share, s.batch) for s in split.stretches] == [
        ("prefill", 0.5, 2),
        ("prefill", 15 / 16, 2),
        ("decode", 0.5, 2),
        ("decode", 1.0, 1),
    ]


def test_cached_prompt_tokens_leave_a_one_token_prefill() -> None:
    steps = [step(0, {"a": 1}, cached_tokens={"a": 30}), step(1, {"a": 1})]
    assert [s.phase for s in split_of(context(steps, request_id="a")).stretches] == ["prefill", "decode"]


def test_an_engine_id_with_a_suffix_is_found_and_an_ambiguous_one_is_not_guessed() -> None:
    steps = [step(0, {"chatcmpl-x-1234": 5, "chatcmpl-y-1": 5})]
    assert len(split_of(context(steps, request_id="chatcmpl-x")).stretches) == 1
    assert split_of(context(steps, request_id="chatcmpl")).source == ""
    assert split_of(context(steps, request_id="zzz")).source == ""


def test_ranks_are_not_counted_twice() -> None:
    steps = [step(i, {"a": 4 if i == 0 else 1}, process=p) for i in range(3) for p in ("1", "2")]
    assert len(split_of(context(steps, request_id="a")).stretches) == 3


def test_without_steps_arrivals_divide_the_request() -> None:
    ctx = context([])
    assert ctx.exchange is not None
    ctx.exchange.chunks = [Chunk(5, "role"), Chunk(10, "content"), Chunk(15, "content"), Chunk(20, "done")]
    split = split_of(ctx)
    assert split.source == "arrivals"
    assert [(s.start_ns, s.end_ns, s.phase) for s in split.stretches] == [(1, 10, "prefill"), (10, 15, "decode")]


def test_given_steps_win() -> None:
    given = [{"start_ns": 1, "end_ns": 2, "phase": "prefill", "tokens": 3, "batch_tokens": 4, "batch": 2}]
    split = split_of(context([step(0, {"a": 1})], options={"steps": given}))
    assert [(s.phase, s.share, s.batch) for s in split.stretches] == [("prefill", 0.75, 2)]


def test_tokens_name_their_source() -> None:
    ctx = context([])
    assert ctx.exchange is not None
    assert tokens_of(ctx.exchange, Split((), "")) == Tokens(3, "usage")
    ctx.exchange.usage = None
    assert tokens_of(ctx.exchange, Split((), "")) == Tokens(None, "")
    ctx.exchange.chunks = [Chunk(10, "content")]
    assert tokens_of(ctx.exchange, Split((), "")) == Tokens(1, "chunks")
    assert window_of(None, 5, 9) == Window(5, 9, "")


def log_of(watts: float, seconds: float) -> Log:
    info = SensorInfo(id="x", type="gpu", name="GPU 0", vendor="V", interface="NVML", resolution_joules=0.001)
    log = Log(info)
    for i in range(int(seconds * 100)):
        log.readings.append(Reading(i * 10 * MS, joules=watts * i / 100, watts=watts))
        log.conditions.append(Condition(i * 10 * MS))
    return log


def test_a_record_leaves_out_what_is_not_known_and_bounds_its_lists() -> None:
    record, problem, parts = device_record(
        log_of(200.0, 20.0), Window(0, 19_000 * MS, "chat"), Split((), ""), Tokens(None, ""), None
    )
    a = record.attributes
    assert problem == "" and parts is not None and a["tokentrace.power.joules"] == pytest.approx(3800)
    assert len(a["tokentrace.power.samples_w"]) == len(a["tokentrace.power.samples_ms"]) == MAX_LIST
    for unknown in (
        "joules_per_token",
        "temperature_c",
        "throttle_reasons",
        "before_w",
        "prefill_joules",
        "serves",
        "cap_w",
    ):
        assert f"tokentrace.power.{unknown}" not in a
    assert "hw.model" not in a
    assert all(isinstance(v, (str, bool, int, float, list)) for v in a.values())


def test_a_dead_sensor_says_its_last_error() -> None:
    log = log_of(200.0, 0.0)
    log.error = "GPU is lost"
    record, problem, _ = device_record(log, Window(0, 1000 * MS, "chat"), Split((), ""), Tokens(None, ""), None)
    assert "GPU is lost" in problem and record.attributes["tokentrace.power.method"] == "unavailable"
