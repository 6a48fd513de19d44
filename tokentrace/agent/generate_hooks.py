"""The groups for transformers' `generate`, called by a program itself: there is no server and no queue.

    tokenizer   template, encode, decode [rid, …] of any transformers tokenizer; decode of several ids has count and ids
    engine      submit [rid, tokens], step [index, phase, reqs, batch, tokens, ids], finish [rid, reason, tokens]
    model       forward, sample [index, …]
    modules     as in `module_hooks`
    ops         as in `profile`, recording the first forward passes

One call of `generate` is one request, whatever the size of its batch; `rid` is "generate-<n>". What a thread tokenizes
belongs to its next call, what it decodes to the one under way or the last one. A step goes from the start of one
forward pass to the start of the next: between two passes `generate` chooses the token and prepares the next input,
which is written as "sample" (behind the last one it tidies up as well). `submit` is what it does before the first one.

Times are the host's. On a GPU they say when work was handed over; with a static cache there, `generate` compiles the
model on its own, and a forward pass inside compiled code is not seen as one. Neither has run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tokentrace.agent import module_hooks, profile
from tokentrace.agent.core import Emit, GroupUnavailable, here
from tokentrace.agent.generate_run import GenerateGroup, Run, generation
from tokentrace.agent.generate_text import TokenizerGroup
from tokentrace.agent.wrap import install_all


class EngineGroup(GenerateGroup):
    """Layer 6: what there is of it without a queue. See the module's docstring."""

    def ended(self, run: Run, start: int, end: int) -> None:
        thread, rid, batch = here.thread, run.rid, run.batch
        first = run.forwards[0][0] if run.forwards else end
        self.emit("submit", start, first, thread, {"rid": rid, "tokens": batch * run.prompt})
        new = _new_tokens(run)
        for at, (began, _, _, data) in enumerate(run.forwards):
            last = at == len(run.forwards) - 1
            until = end if last else run.forwards[at + 1][0]
            shape = data.get("in_shape") or (batch, 1)
            tokens = int(shape[0]) * int(shape[1]) if len(shape) > 1 else batch
            told: dict[str, Any] = {
                "index": data["index"],
                "phase": "decode" if at else "prefill",
                "reqs": {rid: tokens},
                "batch": batch,
                "tokens": tokens,
            }
            if batch == 1 and at < len(new):
                told["ids"] = {rid: new[at]}
            self.emit("step", began, until, thread, told)
        reason = "error" if run.error else _reason(run, new)
        finish: dict[str, Any] = {"rid": rid, "reason": reason, "tokens": _count(run, new), "prompt": run.prompt}
        finish["model"] = str(getattr(getattr(run.model, "config", None), "_name_or_path", "") or "")
        finish["model_class"] = type(run.model).__name__
        self.emit("finish", end, end, thread, finish)


class ModelGroup(GenerateGroup):
    """Layer 5: forward passes, and what `generate` does between them."""

    def ended(self, run: Run, start: int, end: int) -> None:
        new = _new_tokens(run)
        for at, (began, ended, thread, data) in enumerate(run.forwards):
            self.emit("forward", began, ended, thread, data)
            until = end if at == len(run.forwards) - 1 else run.forwards[at + 1][0]
            if "out_shape" not in data:
                continue
            told: dict[str, Any] = {
                "index": data["index"],
                "shape": (data["out_shape"][0], data["out_shape"][-1]),
                "dtype": data["out_dtype"],
                "ids": {run.rid: new[at]} if run.batch == 1 and at < len(new) else {},
            }
            self.emit("sample", ended, until, thread, told)


class ModulesGroup(module_hooks.ModulesGroup):
    """Layer 5 in parts: those of each model that generates while this is on."""

    def __init__(self) -> None:
        super().__init__()
        self._met: list[Any] = []
        self._enabled = False

    def enable(self, recorder: Emit, options: Mapping[str, Any] | None = None) -> None:
        if self._enabled:
            return
        generation.acquire()
        self._enabled = True
        self.emit = recorder
        generation.on_model += (self._meet,)

    def disable(self) -> None:
        if not self._enabled:
            return
        self._enabled = False
        generation.on_model = tuple(told for told in generation.on_model if told != self._meet)
        self._met.clear()
        super().disable()
        generation.release()

    def _meet(self, model: Any) -> None:
        if any(known is model for known in self._met):
            return
        self._met.append(model)
        self.options = {"model": model}
        try:
            hooks = self.hooks()
        except GroupUnavailable as error:
            self.missing.append(str(error))
            return
        self.missing += install_all(hooks)
        self._hooks += hooks


class OpsGroup(profile.OpsGroup):
    """Layers 4 and 3: records from now on, and pauses after `steps` forward passes."""

    def _install(self, paths: Iterable[str]) -> None:
        generation.acquire()
        generation.on_forward += (self._count,)

    def _uninstall(self) -> None:
        if self._count in generation.on_forward:
            generation.on_forward = tuple(told for told in generation.on_forward if told != self._count)
            generation.release()

    def _count(self) -> None:
        self._gate.steps += 1
        if self._gate.after_step is not None:
            self._gate.after_step()


def _sequences(run: Run) -> Any:
    result = getattr(run.result, "sequences", run.result)
    return result if len(getattr(result, "shape", ())) == 2 else None


def _new_tokens(run: Run) -> list[int]:
    """The tokens of a single sequence; `generate` has brought them to the host to know when to stop."""
    sequences = _sequences(run)
    if sequences is None or run.batch != 1 or not run.prompt or sequences.shape[0] != 1:
        return []
    return [int(one) for one in sequences[0, run.prompt :].tolist()]


def _count(run: Run, new: list[int]) -> int:
    sequences = _sequences(run)
    if new or sequences is None:
        return len(new)
    return int(sequences.shape[0]) * max(0, int(sequences.shape[1]) - run.prompt)


def _reason(run: Run, new: list[int]) -> str:
    ends = getattr(getattr(run.model, "generation_config", None), "eos_token_id", None)
    ends = ends if isinstance(ends, (list, tuple)) else [ends]
    return "stop" if new and new[-1] in ends else "length" if new else ""


GROUPS: dict[str, Callable[[], Any]] = {
    "tokenizer": TokenizerGroup,
    "engine": EngineGroup,
    "model": ModelGroup,
    "modules": ModulesGroup,
    "ops": OpsGroup,
}
