"""The group "modules": every part of the model as it runs, with its shapes. A call costs a few microseconds.

The parts are found by the model's structure, for any Hugging Face causal language model: the longest ModuleList is the
stack of decoder layers; watched are each layer's children that have weights, what stands beside the stack, and the
output head. Names are "embed_tokens", "layers.<n>.<child>", "norm", "lm_head", else "module <path>"; the path of each
in its model is in the header.

Columns: start_ns, end_ns, thread, name, in_shape, in_dtype, out_shape, dtype (codes into the header's names, shapes,
dtypes; the last one of the result). Header: names, paths, shapes ("[1,31,576]"; "" unknown), dtypes, device, dropped.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import count
from time import time_ns
from typing import Any

from tokentrace.agent.core import Bulk, GroupUnavailable, here, running_engine
from tokentrace.agent.model_hooks import call_attribute, dtype_name
from tokentrace.agent.stock import GAP_S, Stock
from tokentrace.agent.wrap import Hook, HookGroup

#: Room there is from the beginning, for a second of a large model; more is made while the reply goes on.
PLACES, MAX_ROWS = 16_384, 500_000
_CODES = ("name", "in_shape", "in_dtype", "out_shape", "dtype")
#: Rows that are taken out at a time before the engine's thread gets its turn.
_CHUNK = 500


class ModulesGroup(HookGroup):
    """Option `model`: the model, for use inside one process; else the local engine's."""

    def __init__(self) -> None:
        super().__init__()
        #: part, start_ns, end_ns, thread, code of the shape, code of the result's shape, dtype, the result's dtype.
        #: The garbage collector follows none of it: a long reply's rows alone could call upon it otherwise.
        self._rows = Stock(8, PLACES, MAX_ROWS)
        self._shapes = _Codes()
        self._parts: list[tuple[str, str]] = []  # (name, path)
        self._device = ""
        self._dropped = 0

    def hooks(self) -> list[Hook]:
        """One for each part of the model. Raises GroupUnavailable: there is no model, or it has no known structure."""
        model = self.options.get("model") or _running_model()
        found = list(parts(model))
        if not found:
            raise GroupUnavailable(
                f"{type(model).__name__} has no parts that can be watched one by one", "the forward pass is still seen"
            )
        return self.hooks_of(model, found)

    def hooks_of(self, model: Any, found: list[tuple[str, str, Any]]) -> list[Hook]:
        """A hook for each (name, path, module)."""
        first = next(iter(model.parameters()), None)
        self._device = str(first.device) if first is not None else ""
        base = len(self._parts)  # rows of an earlier time may still be here, with their codes
        self._parts += [(name, path) for name, path, _ in found]
        return [
            Hook(f"{path}:{call_attribute(part)}", owner=part, make=self._maker(base + index))
            for index, (_, path, part) in enumerate(found)
        ]

    def wanted(self) -> bool:
        """Whether the call that is under way is to be written down."""
        return True

    def facts(self) -> dict[str, Any]:
        return {"parts": len(self._hooks)}

    def tend(self) -> None:
        """Make room ahead of the model."""
        self._rows.grow()

    def bulk(self) -> list[Bulk]:
        waiting = len(self._rows)
        dropped, self._dropped = self._dropped, 0
        if not waiting and not dropped:
            return []
        known = {code: shape for shape, code in list(self._shapes.items())}
        shapes: dict[Any, int] = {}
        dtypes: dict[Any, int] = {}
        columns = {name: array("q") for name in ("start_ns", "end_ns", "thread")}
        columns.update((name, array("i")) for name in _CODES)
        while waiting > 0:
            index, starts, ends, threads, ins, outs, in_dtypes, out_dtypes = self._rows.take(min(waiting, _CHUNK))
            waiting -= len(index)
            columns["start_ns"].extend(starts)
            columns["end_ns"].extend(ends)
            columns["thread"].extend(threads)
            columns["name"].extend(index)
            columns["in_shape"].extend([shapes.setdefault(known[code], len(shapes)) for code in ins])
            columns["out_shape"].extend([shapes.setdefault(known[code], len(shapes)) for code in outs])
            columns["in_dtype"].extend([dtypes.setdefault(dtype, len(dtypes)) for dtype in in_dtypes])
            columns["dtype"].extend([dtypes.setdefault(dtype, len(dtypes)) for dtype in out_dtypes])
            if waiting > 0:
                time.sleep(GAP_S)  # lets the engine's thread have the interpreter
        header = {
            "names": [name for name, _ in self._parts],
            "paths": [path for _, path in self._parts],
            "shapes": ["" if shape is None else f"[{','.join(map(str, shape))}]" for shape in shapes],
            "dtypes": ["" if dtype is None else dtype_name(dtype) for dtype in dtypes],
            "device": self._device,
            "dropped": dropped,
        }
        return [(header, {name: (column.typecode, column.tobytes()) for name, column in columns.items()})]

    def _maker(self, index: int) -> Callable[[Hook, Callable[..., Any]], Callable[..., Any]]:
        place, ready, shapes, wanted = self._rows.free.pop, self._rows.ready.append, self._shapes, self.wanted
        parts, starts, ends, threads, ins, outs, in_dtypes, out_dtypes = self._rows.columns

        def make(hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if not hook.active or not wanted():
                    return function(*args, **kwargs)
                start = time_ns()
                result = function(*args, **kwargs)
                end = time_ns()
                try:
                    taken = args[0] if args else kwargs.get("hidden_states")
                    if taken is None:
                        taken = _first_tensor(kwargs)
                    given = result[0] if type(result) is tuple and result else result
                    at = place()
                    parts[at] = index
                    starts[at] = start
                    ends[at] = end
                    threads[at] = here.thread
                    ins[at] = shapes[getattr(taken, "shape", None)]
                    outs[at] = shapes[getattr(given, "shape", None)]
                    in_dtypes[at] = getattr(taken, "dtype", None)
                    out_dtypes[at] = getattr(given, "dtype", None)
                    ready(at)
                except IndexError:  # all places are taken
                    self._dropped += 1
                except Exception as error:  # noqa: BLE001 - nothing of ours may reach the model
                    hook.fail(error)
                return result

            return call

        return make


class _Codes(dict[Any, int]):
    """value -> a number of its own, without a lock for several threads. A torch.Size keeps no tensor alive."""

    def __init__(self) -> None:
        super().__init__()
        self._next = count()

    def __missing__(self, value: Any) -> int:
        return self.setdefault(value, next(self._next))


def _first_tensor(kwargs: dict[str, Any]) -> Any:
    for value in kwargs.values():
        if hasattr(value, "shape"):
            return value
    return None


def _running_model() -> Any:
    engine = running_engine()
    if engine is None:
        raise GroupUnavailable("no model is running in this process", "look at the process that runs the model")
    return engine.model


def parts(model: Any) -> Iterator[tuple[str, str, Any]]:
    """(name, path in the model, module) of what is watched, in the order of the model's structure."""
    stacks = [(path, m) for path, m in model.named_modules() if type(m).__name__ == "ModuleList" and len(m) > 0]
    stacks = [(path, m) for path, m in stacks if not _inside_compiled(model, path)]
    if not stacks:
        return
    stack_path, stack = max(stacks, key=lambda found: len(found[1]))
    trunk_path = stack_path.rpartition(".")[0]
    trunk = model.get_submodule(trunk_path) if trunk_path else model
    embedding = _asked(model, "get_input_embeddings")
    head = _asked(model, "get_output_embeddings")
    # Beside the stack stands one norm, the last one the activations pass; some models define it before the stack. Where
    # there are several, it is the one behind the stack.
    norms = [child for child in trunk.children() if child is not embedding and child is not head and _is_norm(child)]
    behind = list(trunk.children())
    behind = behind[behind.index(stack) + 1 :] if stack in behind else []
    final_norm = norms[0] if len(norms) == 1 else next((child for child in norms if child in behind), None)
    for name, child in trunk.named_children():
        path = f"{trunk_path}.{name}".lstrip(".")
        if child is stack:
            yield from _layers(stack_path, stack)
        elif child is head:
            continue
        elif child is embedding:
            yield "embed_tokens", path, child
        elif child is final_norm:
            yield "norm", path, child
        elif _weights(child):
            yield f"module {path}", path, child
    if head is not None:
        yield "lm_head", next(path for path, m in model.named_modules() if m is head), head


def _layers(stack_path: str, stack: Any) -> Iterator[tuple[str, str, Any]]:
    for index, layer in enumerate(stack):
        if call_attribute(layer) != "forward":
            yield f"layers.{index}", f"{stack_path}.{index}", layer
            continue
        for name, child in layer.named_children():
            if _weights(child):
                yield f"layers.{index}.{name}", f"{stack_path}.{index}.{name}", child


def _inside_compiled(model: Any, path: str) -> bool:
    """Whether the module at `path`, or one that holds it, runs as compiled code: nothing inside that may be wrapped."""
    steps = path.split(".")
    holders = [".".join(steps[:n]) for n in range(len(steps))]
    return any(call_attribute(model.get_submodule(holder)) != "forward" for holder in holders)


def _asked(model: Any, method: str) -> Any:
    try:
        return getattr(model, method)()
    except (AttributeError, NotImplementedError, TypeError):
        return None


def _weights(module: Any) -> bool:
    return next(iter(module.parameters()), None) is not None


def _is_norm(module: Any) -> bool:
    """A norm's weights are vectors, whatever it is called."""
    return _weights(module) and all(p.dim() <= 1 for p in module.parameters())
