"""Layer 5: the forward pass, the parts of the model with their shapes (deep pass), and sampling."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tokentrace.errors import ProbeUnavailable
from tokentrace.model import DOWN, UP, Attributes, Record
from tokentrace.probe import Columns, Finding, LayerState, ProbeContext, Raw

LAYER = 5
FIX = "trace a server of this machine with the agent in it: tokentrace run without --url"
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int64": 8, "int32": 4, "int8": 1}


class TensorProbe:
    """See the module's docstring."""

    layer = LAYER

    def __init__(self) -> None:
        self.state = LayerState(LAYER)
        self._agent: Any = None
        self._groups: list[str] = []

    def check(self, context: ProbeContext) -> Iterable[Finding]:
        return ()

    def arm(self, context: ProbeContext) -> None:
        self.state = LayerState(LAYER)
        agent = context.need_agent(FIX)
        self._agent, self._groups = agent, []
        for group in ("model", "modules") if context.deep else ("model",):
            agent.enable(group)
            self._groups.append(group)

    def disarm(self) -> None:
        for group in self._groups:
            self._agent.disable(group)
        self._groups = []

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        agent = context.need_agent(FIX)
        exchange = context.exchange
        window = (exchange.start_ns, exchange.end_ns) if exchange and exchange.end_ns else (0, 1 << 63)
        records = [
            _step_part(raw, context.request_id)
            for raw in agent.records("model")
            if window[0] <= raw.start_ns <= window[1]
        ]
        for columns in agent.columns("modules"):
            records += _modules(columns, window)
        if not records:
            raise ProbeUnavailable("the model ran nothing for this request", fix="look at the server's log")
        return records


def _step_part(raw: Raw, rid: str) -> Record:
    data = raw.data
    device = data.get("device", "")
    if raw.name == "forward":
        taken = _form(data.get("in_dtype", ""), data.get("in_shape"))
        given = f"logits{_shape(data.get('out_shape'))}"
        attributes: Attributes = {
            "code.function.name": "ModelRunner.compute_batch",
            "tokentrace.tensor.in_shape": _shape(data.get("in_shape")),
            "tokentrace.tensor.out_shape": _shape(data.get("out_shape")),
            "tokentrace.tensor.dtype": data.get("out_dtype", ""),
            "tokentrace.tensor.device": device,
            "tokentrace.form.in": taken,
            "tokentrace.form.out": given,
        }
        way = DOWN
    else:
        sampled = (data.get("ids") or {}).get(rid)
        attributes = {
            "code.function.name": "ModelRunner._sample",
            "tokentrace.tensor.in_shape": _shape(data.get("shape")),
            "tokentrace.tensor.dtype": data.get("dtype", ""),
            "tokentrace.form.in": f"logits{_shape(data.get('shape'))}",
        }
        if sampled is not None:
            attributes["tokentrace.token.id"] = sampled
            attributes["tokentrace.form.out"] = str(sampled)
        way = UP
    return Record(raw.name, LAYER, raw.start_ns, raw.end_ns, attributes, way, raw.process, raw.thread, join="time")


def _modules(columns: Columns, window: tuple[int, int]) -> Iterable[Record]:
    header = columns.header
    names, shapes, dtypes = header["names"], header["shapes"], header["dtypes"]
    order = ("name", "start_ns", "end_ns", "thread", "in_shape", "out_shape", "dtype")
    rows = zip(*(columns.arrays[key].tolist() for key in order), strict=True)
    for name, start, end, thread, taken, given, dtype in rows:
        if not window[0] <= start <= window[1]:
            continue
        label, kind = names[name], dtypes[dtype]
        attributes: Attributes = {
            "tokentrace.tensor.module": label.removeprefix("module "),
            "tokentrace.tensor.in_shape": shapes[taken],
            "tokentrace.tensor.out_shape": shapes[given],
            "tokentrace.tensor.dtype": kind,
            "tokentrace.tensor.device": header.get("device", ""),
        }
        size = _size_bytes(shapes[given], kind)
        if size is not None:
            attributes["tokentrace.tensor.bytes"] = size
        if label == "embed_tokens":
            attributes["tokentrace.form.in"] = f"ids{shapes[taken]}"
            attributes["tokentrace.form.out"] = f"{kind}{shapes[given]}"
        elif label == "lm_head":
            attributes["tokentrace.form.in"] = f"{kind}{shapes[taken]}"
            attributes["tokentrace.form.out"] = f"logits{shapes[given]}"
        way = UP if label == "lm_head" else DOWN
        yield Record(label, LAYER, start, end, attributes, way, columns.process, thread, join="time")


def _size_bytes(shape: str, dtype: str) -> int | None:
    """Product of the dimensions times the element size; None when either is not known."""
    if not shape or dtype not in _BYTES:
        return None
    size = _BYTES[dtype]
    for dimension in json.loads(shape):
        size *= dimension
    return size


def _shape(shape: Any) -> str:
    return f"[{','.join(map(str, shape))}]" if shape is not None else ""


def _form(dtype: str, shape: Any) -> str:
    return f"{dtype}{_shape(shape)}" if shape is not None else "token ids"
