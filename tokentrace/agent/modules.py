"""The group "modules": every part of the model as it runs, with shapes. A call costs about a microsecond.

The parts are found by structure, for any Hugging Face causal language model: the longest ModuleList is the stack of
decoder layers; each layer's children and what stands beside the stack are watched. A module that torch.compile has
compiled is watched from outside its compiled code.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from threading import get_native_id
from time import time_ns
from typing import Any

from tokentrace.agent.core import Emit, GroupUnavailable

_KNOWN = ("embed_tokens", "norm", "lm_head")
_UP = "lm_head"


class ModulesGroup:
    """Columns start_ns, end_ns, thread, name, in_shape, out_shape, dtype (codes of the header's lists)."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._rows: list[tuple[str, int, int, int, Any, Any, Any]] = []
        self._device = ""

    def enable(self, emit: Emit, options: Mapping[str, Any] | None) -> None:
        module = sys.modules.get("tokentrace.engines.local.engine")
        engine = module.current() if module is not None else None
        if engine is None:
            raise GroupUnavailable("no model is running in this process", "look at the process that runs the model")
        self._device = str(engine.device)
        self._rows = []
        for name, part in parts(engine.model):
            self._watch(name, part)

    def disable(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def bulk(self) -> list[tuple[dict[str, Any], dict[str, tuple[str, bytes]]]]:
        rows, self._rows = self._rows, []
        if not rows:
            return []
        names: dict[str, int] = {}
        shapes: dict[str, int] = {}
        dtypes: dict[str, int] = {}

        def code(table: dict[str, int], value: str) -> int:
            return table.setdefault(value, len(table))

        columns = {k: array("q") for k in ("start_ns", "end_ns", "thread", "name", "in_shape", "out_shape", "dtype")}
        for name, start, end, thread, taken, given, dtype in rows:
            columns["start_ns"].append(start)
            columns["end_ns"].append(end)
            columns["thread"].append(thread)
            columns["name"].append(code(names, name))
            columns["in_shape"].append(code(shapes, _shape(taken)))
            columns["out_shape"].append(code(shapes, _shape(given)))
            columns["dtype"].append(code(dtypes, str(dtype).removeprefix("torch.") if dtype is not None else ""))
        header = {"names": list(names), "shapes": list(shapes), "dtypes": list(dtypes), "device": self._device}
        return [(header, {k: (a.typecode, a.tobytes()) for k, a in columns.items()})]

    def _watch(self, name: str, part: Any) -> None:
        compiled = getattr(part, "_compiled_call_impl", None) is not None
        attribute = "_compiled_call_impl" if compiled else "forward"
        own = attribute in part.__dict__
        original = getattr(part, attribute)
        rows = self._rows.append

        def forward(*args: Any, **kwargs: Any) -> Any:
            start = time_ns()
            result = original(*args, **kwargs)
            end = time_ns()
            taken = args[0] if args else kwargs.get("hidden_states", kwargs.get("input"))
            given = result[0] if isinstance(result, (tuple, list)) and result else result
            # A torch.Size is kept as it is and written out later.
            shape = getattr(taken, "shape", None)
            rows(
                (name, start, end, get_native_id(), shape, getattr(given, "shape", None), getattr(given, "dtype", None))
            )
            return result

        part.__dict__[attribute] = forward

        def undo() -> None:
            if part.__dict__.get(attribute) is forward:
                if own:
                    part.__dict__[attribute] = original
                else:
                    del part.__dict__[attribute]

        self._undo.append(undo)


def parts(model: Any) -> Iterator[tuple[str, Any]]:
    """(name, module) of what is watched, `layers.0.mlp` and the like."""
    stacks = [(path, m) for path, m in model.named_modules() if type(m).__name__ == "ModuleList"]
    if not stacks:
        raise GroupUnavailable("this model has no stack of decoder layers", "use a Hugging Face causal language model")
    path, stack = max(stacks, key=lambda item: len(item[1]))
    trunk_path = path.rpartition(".")[0]
    trunk = model.get_submodule(trunk_path) if trunk_path else model
    for name, child in trunk.named_children():
        if child is not stack:
            yield _named(name), child
    for index, layer in enumerate(stack):
        for name, child in layer.named_children():
            yield f"layers.{index}.{name}", child
    if trunk is not model:
        for name, child in model.named_children():
            if child is not trunk:
                yield _named(name), child


def _named(name: str) -> str:
    return name if name in _KNOWN else f"module {name}"


def _shape(shape: Any) -> str:
    return "" if shape is None else "[" + ",".join(str(int(n)) for n in shape) + "]"
