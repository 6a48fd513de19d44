"""Layer 5: the forward pass, the parts of the model with their shapes (deep pass), and sampling.

Through the agent only: the groups "model" (light) and "modules" (deep). A tensor's form is its dtype and shape,
"float32[1,31,576]". `tokentrace.tensor.bytes` is the size of what a part gives, not of its weights.

`state.facts`: device, dtype, forward_passes, forward_ns, sample_ns; modules (parts seen in one forward pass).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

from tokentrace.model import DOWN, UP, Attributes, Record
from tokentrace.probe import Agent, Columns, Finding, LayerState, ProbeContext, ProbeUnavailable, Raw
from tokentrace.probes._agent import FIX, AgentProbe, unseen_from_outside, without_agent
from tokentrace.probes._request import our_id, step_key, step_of, window

LAYER = 5
LIGHT, DEEP = "model", "modules"
#: Parts on the way from the chip to the text; everything before them is on the way down.
_UP = frozenset(("lm_head",))


class TensorProbe(AgentProbe):
    """See the module's docstring."""

    layer = LAYER

    def check(self, context: ProbeContext) -> Iterable[Finding]:
        if context.agent is None:
            return [unseen_from_outside(LAYER)]
        facts = context.agent.facts()
        what = f"{facts.get('model_class') or 'the model'} on {facts.get('device') or 'an unknown device'}"
        return [Finding(LAYER, f"{what} can be seen through the agent")]

    def arm(self, context: ProbeContext) -> None:
        self.state = LayerState(LAYER)
        agent = context.need_agent(FIX)
        self._enable(agent, LIGHT)
        if context.deep:
            try:
                self._enable(agent, DEEP)
            except ProbeUnavailable as error:
                # The forward pass as a whole is still seen.
                self.state.reason, self.state.fix = f"parts of the model are not seen: {error}", error.fix

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        agent = context.need_agent(FIX)
        raws = _ours(agent, context)
        forwards = [raw for raw in raws if raw.name == "forward"]
        tokens = _tokens(agent, context)
        records = [_record(raw, tokens) for raw in raws]
        known = [raw for raw in agent.records(LIGHT) if raw.name == "forward"]
        modules: list[Record] = []
        for columns in agent.columns(DEEP):
            spans = _intervals(forwards, columns.process) if known else [window(context)]
            modules += _modules(columns, spans)
            if columns.header.get("note"):
                self.state.reason = f"parts of the model are not seen: {columns.header['note']}"
            if columns.header.get("dropped"):
                self.state.reason = f"{columns.header['dropped']} parts found no room in the agent's buffer"
        if not records and not modules and {"wait"} == {r.name for r in agent.records("engine")} & {"wait", "step"}:
            raise ProbeUnavailable("the model ran nothing for this request: it left the engine's queue unserved")
        missing = without_agent(context, "engine", "worker")
        if not records and not modules and context.mode == "trace":  # a call in the program itself
            failed = context.exchange is not None and context.exchange.error is not None
            why = "it failed before its first forward pass" if failed else "no forward pass of it was seen"
            raise missing or ProbeUnavailable(f"the model ran nothing for this call: {why}")
        if not records and not modules:
            raise missing or ProbeUnavailable(
                "the model ran nothing for this request",
                fix="look at the server's log: the request may have been refused before it came to the model",
            )
        self._facts(raws, len(modules))
        return [*records, *modules]

    def _facts(self, raws: Sequence[Raw], modules: int) -> None:
        facts = self.state.facts
        passes = [raw for raw in raws if raw.name == "forward"]
        facts["forward_passes"] = len(passes)
        facts["forward_ns"] = sum(raw.end_ns - raw.start_ns for raw in passes)
        facts["sample_ns"] = sum(raw.end_ns - raw.start_ns for raw in raws if raw.name == "sample")
        for raw in passes[:1]:
            facts["device"], facts["dtype"] = raw.data.get("device", ""), raw.data.get("out_dtype", "")
        if modules and passes:
            facts["modules"] = round(modules / len(passes))


def _ours(agent: Agent, context: ProbeContext) -> list[Raw]:
    """Forward passes and samplings of the steps that served our request. Which steps those are, the engine's records
    tell; without them every one during the request is taken."""
    raws = [raw for raw in agent.records(LIGHT) if raw.name in ("forward", "logits", "sample")]
    steps = [raw for raw in agent.records("engine") if raw.name == "step" and raw.data.get("reqs")]
    rid = our_id(context, (str(one) for step in steps for one in step.data["reqs"]))
    if steps and rid:
        served = {step_of(step) for step in steps if rid in step.data["reqs"]}
        return [raw for raw in raws if step_of(raw) in served]
    first, last = window(context)
    return [raw for raw in raws if raw.start_ns < last and raw.end_ns >= first]


def _tokens(agent: Agent, context: ProbeContext) -> dict[tuple[str, int], int]:
    """Our new token of each step, from whoever knew it: the sampling itself, or the scheduler."""
    found: dict[tuple[str, int], int] = {}
    for raw in (*agent.records("engine"), *agent.records(LIGHT)):
        ids: dict[str, int] = raw.data.get("ids") or {}
        if raw.name in ("step", "sample") and ids:
            token = ids.get(our_id(context, ids))
            if token is not None:
                found[step_of(raw)] = token
    return found


def _record(raw: Raw, tokens: dict[tuple[str, int], int]) -> Record:
    if raw.name == "sample":
        return _sample(raw, tokens.get(step_of(raw)))
    return _logits(raw) if raw.name == "logits" else _forward(raw)


def _parent(raw: Raw) -> str:
    """A worker in a process of its own names its step; else the step holds it in time."""
    return step_key(raw) if "engine" in raw.data else ""


def _forward(raw: Raw) -> Record:
    data = raw.data
    attributes: Attributes = {"code.function.name": "forward", "tokentrace.step.index": data.get("index", -1)}
    attributes.update(_tensors(data.get("in_shape"), data.get("in_dtype"), data.get("out_shape"), data.get("out_dtype"),
                               data.get("device"), data.get("out", "logits")))  # fmt: skip
    if "error" in data:
        attributes["error.type"] = data["error"]
    return Record("forward", LAYER, raw.start_ns, raw.end_ns, attributes, DOWN, raw.process, raw.thread,
                  parent_key=_parent(raw), join="step")  # fmt: skip


def _logits(raw: Raw) -> Record:
    """The head where it is a call of its own, beside the forward pass."""
    data = raw.data
    attributes: Attributes = {"code.function.name": "compute_logits", "tokentrace.step.index": data.get("index", -1)}
    attributes.update(_tensors(data.get("in_shape"), data.get("in_dtype"), data.get("out_shape"), data.get("out_dtype"),
                               data.get("device"), "logits"))  # fmt: skip
    return Record("lm_head", LAYER, raw.start_ns, raw.end_ns, attributes, UP, raw.process, raw.thread,
                  parent_key=_parent(raw), join="step")  # fmt: skip


def _sample(raw: Raw, token: int | None) -> Record:
    data = raw.data
    shape = shape_text(data.get("shape"))
    attributes: Attributes = {
        "tokentrace.step.index": data.get("index", -1),
        "tokentrace.tensor.in_shape": shape,
        "tokentrace.tensor.dtype": data.get("dtype", ""),
        "tokentrace.form.in": f"logits{shape}",
    }
    if token is not None:
        attributes["tokentrace.token.id"] = token
        attributes["tokentrace.form.out"] = str(token)
    return Record("sample", LAYER, raw.start_ns, raw.end_ns, attributes, UP, raw.process, raw.thread,
                  parent_key=_parent(raw), join="step")  # fmt: skip


def _tensors(taken: Any, taken_dtype: Any, given: Any, dtype: Any, device: Any, given_name: str = "") -> Attributes:
    """The attributes of something that takes one tensor and gives one; what is not known is left out."""
    attributes: Attributes = {}
    taken, given = shape_text(taken), shape_text(given)
    if taken:
        attributes["tokentrace.tensor.in_shape"] = taken
        attributes["tokentrace.form.in"] = f"{taken_dtype or 'tensor'}{taken}"
    if given:
        attributes["tokentrace.tensor.out_shape"] = given
        attributes["tokentrace.form.out"] = f"{given_name or dtype or 'tensor'}{given}"
    if dtype:
        attributes["tokentrace.tensor.dtype"] = dtype
        size = size_bytes(given, dtype)
        if size is not None:
            attributes["tokentrace.tensor.bytes"] = size
    if device:
        attributes["tokentrace.tensor.device"] = device
    return attributes


def _intervals(forwards: Sequence[Raw], process: str) -> list[tuple[int, int]]:
    return sorted((raw.start_ns, raw.end_ns) for raw in forwards if raw.process == process)


def _modules(columns: Columns, spans: Sequence[tuple[int, int]]) -> Iterator[Record]:
    """A record for each part that ran inside one of `spans`, forward passes in order of time."""
    header, arrays = columns.header, columns.arrays
    if "name" not in arrays or not spans:
        return
    names, paths, shapes, dtypes = (header[key] for key in ("names", "paths", "shapes", "dtypes"))
    starts = [start for start, _ in spans]
    shared: dict[tuple[int, ...], Attributes] = {}
    order = ("start_ns", "end_ns", "thread", "name", "in_shape", "in_dtype", "out_shape", "dtype")
    for start, end, thread, *codes in zip(*(arrays[key].tolist() for key in order), strict=True):
        at = bisect_right(starts, start) - 1
        if at < 0 or start >= spans[at][1]:
            continue
        key = tuple(codes)
        attributes = shared.get(key)
        if attributes is None:
            name, taken, taken_dtype, given, dtype = codes
            attributes = shared[key] = {
                "tokentrace.tensor.module": paths[name],
                **_tensors(shapes[taken], dtypes[taken_dtype], shapes[given], dtypes[dtype], header.get("device"),
                           "logits" if names[name] == "lm_head" else ""),
            }  # fmt: skip
        name = names[codes[0]]
        way = UP if name in _UP else DOWN
        yield Record(name, LAYER, start, end, dict(attributes), way, columns.process, thread, join="time")


def shape_text(shape: Any) -> str:
    """[1, 31] as "[1,31]"; a text stays as it is; "" when it is not known."""
    if shape is None or isinstance(shape, str):
        return shape or ""
    return f"[{','.join(str(int(n)) for n in shape)}]"


def size_bytes(shape: str, dtype: str) -> int | None:
    """Bytes of a tensor of the shape "[1,31]"; None when the size of an element is not in the dtype's name."""
    bits = re.search(r"\d+", dtype)
    width = 1 if dtype == "bool" else int(bits[0]) // 8 if bits and int(bits[0]) % 8 == 0 else 0
    if not shape or not width:
        return None
    return prod(int(n) for n in shape.strip("[]").split(",") if n) * width
