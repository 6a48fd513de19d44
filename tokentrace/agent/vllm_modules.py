"""vLLM: the group "modules", every part of the model as it runs in marked steps. See `module_hooks` for the columns.

The model is known at the first marked step; its parts are wrapped then, and left alone again when the group goes off.
A model that vLLM has compiled has no parts that run one by one; the columns' header says so in `note`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokentrace.agent import module_hooks
from tokentrace.agent.core import Bulk, Emit, GroupUnavailable, nowhere
from tokentrace.agent.vllm_spine import spine
from tokentrace.agent.vllm_worker import Work, model_of, works
from tokentrace.agent.wrap import Hook, note_fault


class ModulesGroup(module_hooks.ModulesGroup):
    """Deep. Its hooks cost a few microseconds a part, in steps of other requests too while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self._on = False
        self._model: Any = None
        self._note = ""

    def enable(self, recorder: Emit, options: Mapping[str, Any] | None = None) -> None:
        if self._on:
            return
        spine.acquire()
        self._on = True
        self._model = None
        works.on_begin += (self._begins,)

    def disable(self) -> None:
        if not self._on:
            return
        self._on = False
        works.on_begin = tuple(told for told in works.on_begin if told != self._begins)
        super().disable()
        spine.release()

    def bulk(self) -> list[Bulk]:
        note, self._note = self._note, ""
        return [*super().bulk(), *([({"note": note}, {})] if note else [])]

    def hooks(self) -> list[Hook]:
        if is_compiled(self._model):
            self._note = "vLLM has compiled the model: it runs as a few pieces of code, not part by part"
            return []
        found = list(parts(self._model))
        if not found:
            raise GroupUnavailable(f"{type(self._model).__name__} has no parts that can be watched one by one", "")
        return self.hooks_of(self._model, found)

    def wanted(self) -> bool:
        """Only parts of marked steps are written down."""
        return works.current() is not None

    def _begins(self, work: Work) -> None:
        if self._model is not None or not self._on:
            return
        self._model = model_of(work.runner)
        if self._model is None:
            return
        try:
            super().enable(nowhere)  # it has columns, no records
        except Exception as error:  # noqa: BLE001 - this runs on the engine's thread
            note_fault("modules", error, True)


def is_compiled(model: Any) -> bool:
    """Whether vLLM runs it, or a part of it, as compiled code. Nothing in there may be wrapped."""
    return any(getattr(module, "do_not_compile", True) is False for module in model.modules())


def parts(model: Any) -> Iterator[tuple[str, str, Any]]:
    """(name, path in the model, module) of what is watched."""
    for name, path, module in module_hooks.parts(model):
        last = path.rpartition(".")[2]
        if name == "lm_head":  # the head's own forward never runs; `compute_logits` is seen in the group "model"
            continue
        # vLLM's models do not give their embedding like Hugging Face's do.
        yield "embed_tokens" if "Embedding" in type(module).__name__ and last == "embed_tokens" else name, path, module
