"""Records as the probes deliver them for one request: `Hi` to a small model, with a few steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokentrace.errors import EndpointError
from tokentrace.exchange import Chunk, Exchange, Phase
from tokentrace.model import KIND_CLIENT, KIND_SERVER, IdSource, Record, Trace
from tokentrace.probe import LEFT_OUT, LayerState
from tokentrace.stitch import PassRecords, stitch

T0 = 1_790_000_000_000_000_000
US, MS = 1_000, 1_000_000
ENGINE, CLIENT = "4711", "100"
LOOP, GENERATION = 4711, 4720  # threads of the engine's process
RID = "chatcmpl-0123"
REPLY = ("Hello", "!", " How", " can", " I", " help")
IDS = (19556, 17, 1073, 416, 339, 724, 2)
PROMPT_IDS = (1, 9690, 198, 2683, 359, 253, 5356)


def request_pass(
    name: str = "deep",
    *,
    at: int = T0,
    ids: IdSource | None = None,
    steps: int = 3,
    deep: bool = True,
    modules: int = 2,
    operators: int = 2,
    prefill_ms: int = 40,
    decode_ms: int = 10,
    compile_ms: int = 0,
    wait_us: int = 300,
    states: list[LayerState] | None = None,
    cached: int = 0,
    reply: tuple[str, ...] = REPLY,
    error: EndpointError | None = None,
) -> PassRecords:
    """One pass with `steps` steps (1 prefill, then decode), each with `modules` layers of `operators` operators."""
    ids = ids or IdSource(7)
    span_id = ids.span_id()
    found: list[Record] = []
    clock = at + 2 * MS  # the pass begins before the request

    def add(name: str, layer: int, start: int, end: int, **more: object) -> Record:
        record = Record(name, layer, start, end, **more)  # type: ignore[arg-type]
        found.append(record)
        return record

    def on(thread: int) -> dict[str, object]:
        return {"process": ENGINE, "thread": thread}

    start = clock
    phases = [("connect", clock, clock + 200 * US), ("send", clock + 200 * US, clock + 300 * US)]
    clock += 400 * US
    served = clock
    flow = {**on(LOOP), "request": RID, "parent_key": f"request-http:{RID}", "flow": True}
    add("parse request", 8, clock, clock + 100 * US, direction="down", **flow)
    add("chat template", 7, clock + 100 * US, clock + 400 * US, direction="down", **flow)
    add("encode", 7, clock + 400 * US, clock + 700 * US, direction="down",
        attributes={"tokentrace.form.in": '"Hi"', "tokentrace.form.out": "7 ids [1, 9690, …]"}, **flow)  # fmt: skip
    clock += 700 * US
    asked = clock
    inner = {**on(LOOP), "request": RID, "parent_key": f"request:{RID}", "flow": True}
    add("submit", 6, clock, clock + 50 * US, direction="down", **inner)
    clock += 50 * US
    add("queue wait", 6, clock, clock + wait_us * US, direction="down", **inner)
    clock += wait_us * US
    if compile_ms:
        add("compile mlp", 2, clock + 4 * MS, clock + (4 + compile_ms) * MS,
            attributes={"tokentrace.jit.compiler": "inductor"}, **on(GENERATION))  # fmt: skip
    arrivals = []
    for index in range(steps):
        length = (prefill_ms if index == 0 else decode_ms) * MS + (compile_ms * MS if index == 0 else 0)
        _step(add, index, clock, clock + length, deep, modules, operators, compile_ms if index == 0 else 0, cached)
        clock += length
        text = reply[index] if index < len(reply) else ""
        add("decode", 7, clock + 20 * US, clock + 60 * US, direction="up",
            attributes={"tokentrace.token.index": index, "tokentrace.token.id": IDS[min(index, 6)],
                        "tokentrace.form.in": str(IDS[min(index, 6)]), "tokentrace.form.out": f'"{text}"'},
            **flow)  # fmt: skip
        add("write chunk", 8, clock + 60 * US, clock + 100 * US, direction="up", **flow)
        arrivals.append(Chunk(clock + 120 * US, "content", text))
        clock += 30 * US  # the next step begins while the token is on its way
    add("finish", 6, clock, clock + 20 * US, direction="up", **inner)
    add("request", 6, asked, clock + 20 * US, key=f"request:{RID}", envelope=True,
        **{**flow, "flow": True})  # fmt: skip
    end = clock + 300 * US
    add("POST /v1/chat/completions", 8, served, end - 50 * US, parent_id=span_id, key=f"request-http:{RID}",
        request=RID, kind=KIND_SERVER, envelope=True, flow=True, **on(LOOP))  # fmt: skip
    phases += [("wait", start + 300 * US, arrivals[0].time_ns if arrivals else end)]
    if arrivals:
        phases += [("stream", arrivals[0].time_ns, end)]
    text = "".join(c.text for c in arrivals)
    forms = {"send": ('"Hi"', "HTTP body, 143 bytes"), "stream": (f"{len(arrivals)} SSE chunks", f'"{text}"')}
    for phase, begin, until in phases:
        form = dict(zip(("tokentrace.form.in", "tokentrace.form.out"), forms.get(phase, ()), strict=False))
        add(phase, 8, begin, until, parent_key="chat", flow=True, direction="up" if phase == "stream" else "down",
            envelope=phase in ("wait", "stream"), process=CLIENT, thread=100, attributes=form)  # fmt: skip
    add("chat smollm2", 8, start, end, span_id=span_id, key="chat", kind=KIND_CLIENT, envelope=True, flow=True,
        process=CLIENT, thread=100)  # fmt: skip
    exchange = Exchange(
        "http://127.0.0.1:8011/v1", "smollm2", span_id, "", {"messages": [{"role": "user", "content": "Hi"}]},
        request_bytes=143, start_ns=start, end_ns=end, phases=[Phase(*p) for p in phases], chunks=arrivals,
        status_code=200, response_bytes=1_830, text=text, finish_reason="stop",
        usage={"prompt_tokens": 7, "completion_tokens": steps, "prompt_tokens_details": {"cached_tokens": cached}},
        complete=error is None, streamed=True, error=error,
    )  # fmt: skip
    if states is None:
        numbers = (8, 7, 6, 5, 4, 3, 2, 1) if deep else (8, 7, 6, 5, 2, 1)
        states = [LayerState(n) for n in numbers if n not in (1, 2) or (n == 2 and compile_ms)]
        states.append(LayerState(1, "unseen", "no power sensor can be read", "use a machine with RAPL"))
        if not compile_ms:
            states.append(LayerState(2, "idle", "eager: nothing to compile"))
    return PassRecords(name, at, end + 2 * MS, found, states, span_id, exchange=exchange)


def _step(add, index, start, end, deep, modules, operators, compile_ms, cached) -> None:  # type: ignore[no-untyped-def]
    phase = "prefill" if index == 0 else "decode"
    here = {"process": ENGINE, "thread": GENERATION}
    tokens = 7 - cached if index == 0 else 1
    attributes = {"tokentrace.step.index": 100 + index, "tokentrace.step.phase": phase, "tokentrace.step.batch_size": 1,
                  "tokentrace.step.scheduled_tokens": tokens, "tokentrace.step.request_tokens": tokens}  # fmt: skip
    if index == 0:
        attributes["tokentrace.step.cached_tokens"] = cached
    add("step", 6, start, end, key=f"step:{ENGINE}:{100 + index}", parent_key=f"request:{RID}", join="request_id",
        attributes=attributes, **here)  # fmt: skip
    add("schedule", 6, start + 10 * US, start + 60 * US, direction="down", **here)
    add("prepare batch", 6, start + 60 * US, start + 160 * US, direction="down", **here)
    first, last = start + 200 * US, end - 700 * US
    add("forward", 5, first, last, direction="down",
        attributes={"tokentrace.form.in": f"int64[1,{tokens}]", "tokentrace.form.out": "float32[1,1,49152]"},
        **here)  # fmt: skip
    add("sample", 5, last + 10 * US, end - 200 * US, direction="up",
        attributes={"tokentrace.form.in": "logits[1,49152]", "tokentrace.form.out": str(IDS[min(index, 6)])},
        **here)  # fmt: skip
    add("update batch", 6, end - 180 * US, end - 10 * US, direction="up", **here)
    if not deep:
        return
    clock = first + 20 * US + compile_ms * MS
    room = (last - clock - 20 * US) // (modules + 1)
    for module in range(modules + 1):
        name = f"layers.{module}.mlp" if module < modules else "lm_head"
        add(name, 5, clock, clock + room - 2 * US, direction="up" if name == "lm_head" else "down", **here)
        inner = (room - 12 * US) // operators
        for number in range(operators):
            low = clock + 5 * US + number * inner
            add(
                "aten::linear",
                4,
                low,
                low + inner - US,
                attributes={"tokentrace.op.input_shapes": f"[[1,{module}]]"},
                **here,
            )
            add("leaf aten::mm", 3, low + 2 * US, low + inner - 3 * US,
                attributes={"tokentrace.duration_ns": inner - 5 * US}, **here)  # fmt: skip
        clock += room


def cold_warm_deep(
    ids: IdSource | None = None, *, cold: dict[str, Any] | None = None, deep: dict[str, Any] | None = None, **more: Any
) -> list[PassRecords]:
    """The passes of a default run, a second apart: the cold one compiles, the deep one is stretched. `cold` and `deep`
    change one pass, `more` all of them; see `request_pass`."""
    ids = ids or IdSource(3)
    return [
        request_pass("cold", ids=ids, deep=False, **{"compile_ms": 30, **more, **(cold or {})}),
        request_pass("warm", ids=ids, deep=False, at=T0 + 10**9, **more),
        request_pass("deep", ids=ids, at=T0 + 2 * 10**9, **{"prefill_ms": 60, "decode_ms": 15, **more, **(deep or {})}),
    ]


def three_passes(*, power: bool = False, **more: Any) -> Trace:
    """The trace of a default run. With `power` a sensor is on for the whole of each request."""
    ids = IdSource(3)
    passes = cold_warm_deep(ids, **more)
    for one in passes if power else ():
        asked = one.exchange
        assert asked is not None
        one.records.append(Record("power nvml", 1, asked.start_ns, asked.end_ns, parent_key="chat", process="100"))
    return stitch(passes, ids=ids, attributes={"tokentrace.prompt": "Hi"}, meta={"prompt": "Hi"})


def without_layers(left_out: Iterable[int], **more: Any) -> PassRecords:
    """A pass of which the user left layers out."""
    left_out = set(left_out)
    found = request_pass("once", **more)
    found.records = [record for record in found.records if record.layer not in left_out]
    states = {state.layer: state for state in found.states}
    states |= {number: LayerState(number, "unseen", LEFT_OUT, f"add {number} to --layers") for number in left_out}
    found.states = list(states.values())
    return found
