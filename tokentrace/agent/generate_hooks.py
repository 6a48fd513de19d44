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

import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from threading import get_ident, get_native_id
from typing import Any

from tokentrace.agent import module_hooks, profile
from tokentrace.agent.core import Emit, GroupUnavailable
from tokentrace.agent.model_hooks import call_attribute, dtype_name
from tokentrace.agent.wrap import Hook, HookGroup, install_all

_GENERATE = "transformers.generation.utils:GenerationMixin.generate"
_BASE = "transformers.tokenization_utils_base:PreTrainedTokenizerBase"
MAX_TEXT = 2000  # characters
MAX_IDS = 4096
_Forward = tuple[int, int, int, dict[str, Any]]  # start_ns, end_ns, thread, data


class Run:
    """One call of `generate`."""

    __slots__ = ("batch", "error", "first_index", "forwards", "model", "prompt", "result", "rid")

    def __init__(self, rid: str, model: Any) -> None:
        self.rid, self.model = rid, model
        self.forwards: list[_Forward] = []
        self.batch = 1
        self.prompt = 0  # tokens of each sequence, 0 unknown
        self.first_index = 0
        self.result: Any = None
        self.error = ""


class Generation:
    """Knows which call of `generate` each thread is in. Shared by the groups; its hooks are there while one needs
    them."""

    def __init__(self) -> None:
        self.on_model: tuple[Callable[[Any], None], ...] = ()
        self.on_forward: tuple[Callable[[], None], ...] = ()
        self.on_done: tuple[Callable[[Run, int, int], None], ...] = ()
        self._now: dict[int, Run] = {}  # by thread
        self._rid = threading.local()
        self._ids = count(1)
        self._indexes = count()
        self._users = 0
        self._hooks: list[Hook] = []
        self._models: list[tuple[Any, Hook]] = []

    def acquire(self) -> None:
        """Raises GroupUnavailable."""
        if self._users == 0:
            hooks = [Hook(_GENERATE, self._ended, before=self._begins)]
            install_all(hooks, needed=(_GENERATE,))
            self._hooks = hooks
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            models, self._models = self._models, []
            for hook in [*(hook for _, hook in models), *self._hooks]:
                hook.restore()

    def coming(self) -> str:
        """The id of what this thread prepares: of its call under way, else of its next one."""
        run = self._now.get(get_ident())
        if run is not None:
            return run.rid
        rid: str = getattr(self._rid, "next", "") or f"generate-{next(self._ids)}"
        self._rid.next = rid
        return rid

    def latest(self) -> str:
        """The id of this thread's call under way, else of its last one, "" when there was none."""
        run = self._now.get(get_ident())
        return run.rid if run is not None else getattr(self._rid, "last", "")

    def _begins(self, args: Any, kwargs: Any) -> Run | None:
        if get_ident() in self._now:  # assisted generation calls itself
            return None
        model = args[0]
        run = Run(self.coming(), model)
        self._now[get_ident()] = run
        self._rid.next, self._rid.last = "", run.rid
        given = kwargs.get("input_ids", kwargs.get("inputs", args[1] if len(args) > 1 else None))
        shape = getattr(given, "shape", None)
        if shape is not None and len(shape) == 2:
            run.batch, run.prompt = int(shape[0]), int(shape[1])
        self._watch(model)
        return run

    def _watch(self, model: Any) -> None:
        if not any(known is model for known, _ in self._models):
            hook = Hook(f"model:{call_attribute(model)}", self._forwarded, owner=model)
            self._models.append((model, hook))
            hook.install()
        for told in self.on_model:
            told(model)

    def _forwarded(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        run = self._now.get(get_ident())
        if run is None:
            return
        data: dict[str, Any] = {"index": next(self._indexes)}
        ids = args[0] if args else kwargs.get("input_ids")
        if ids is not None and hasattr(ids, "shape"):
            data["in_shape"], data["in_dtype"] = tuple(ids.shape), dtype_name(ids.dtype)
        logits = getattr(result, "logits", None)
        if logits is not None:
            data["out_shape"], data["out_dtype"] = tuple(logits.shape), dtype_name(logits.dtype)
            data["device"] = str(logits.device)
        if error is not None:
            data["error"] = type(error).__name__
        run.forwards.append((start, end, get_native_id(), data))
        for told in self.on_forward:
            told()

    def _ended(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        if context is None:
            return
        self._now.pop(get_ident(), None)
        context.result = result
        context.error = type(error).__name__ if error is not None else ""
        for told in self.on_done:
            told(context, start, end)


generation = Generation()


class _Group(HookGroup):
    """A group that is told of every call of `generate`."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False

    def hooks(self) -> list[Hook]:
        return []

    def enable(self, recorder: Emit, options: Mapping[str, Any] | None = None) -> None:
        if self.on:
            return
        generation.acquire()
        try:
            super().enable(recorder, options)
        except BaseException:
            generation.release()
            raise
        self.on = True
        generation.on_done += (self.ended,)

    def disable(self) -> None:
        if not self.on:
            return
        self.on = False
        generation.on_done = tuple(told for told in generation.on_done if told != self.ended)
        super().disable()
        generation.release()

    def ended(self, run: Run, start: int, end: int) -> None:
        return


class EngineGroup(_Group):
    """Layer 6: what there is of it without a queue. See the module's docstring."""

    def ended(self, run: Run, start: int, end: int) -> None:
        thread, rid, batch = get_native_id(), run.rid, run.batch
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


class ModelGroup(_Group):
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


class TokenizerGroup(_Group):
    """Layer 7. Texts are kept only with the option `text`, which is for prompts of our own."""

    needed = (f"{_BASE}.__call__",)

    def __init__(self) -> None:
        super().__init__()
        self._depth = threading.local()
        self._decoded: dict[str, int] = {}

    def hooks(self) -> list[Hook]:
        return [
            Hook(f"{_BASE}.apply_chat_template", self._rendered),
            Hook(f"{_BASE}.__call__", self._encoded, before=self._enters),
            Hook(f"{_BASE}.encode", self._encoded, before=self._enters),
            Hook(f"{_BASE}.decode", self._read),
        ]

    def _enters(self, args: Any, kwargs: Any) -> bool:
        """Whether this is the outermost of two functions that call each other."""
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        return depth == 0

    def _rendered(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        talk = kwargs.get("conversation", args[1] if len(args) > 1 else None)
        said = [str(one.get("content") or "") for one in talk or () if isinstance(one, dict)]
        data: dict[str, Any] = {"rid": generation.coming(), "chars_in": sum(map(len, said))}
        if self.options.get("text") and said:
            data["text_in"] = said[-1][:MAX_TEXT]
        text = result if isinstance(result, str) else getattr(self._depth, "text", None)
        if text is not None:
            data["chars_out"] = len(text)
            if self.options.get("text"):
                data["text_out"] = text[:MAX_TEXT]
        if error is not None:
            data["error"] = type(error).__name__
        self.emit("template", start, end, get_native_id(), data)

    def _encoded(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        self._depth.value = max(0, getattr(self._depth, "value", 1) - 1)
        if not context:
            return
        text = kwargs.get("text", args[1] if len(args) > 1 else None)
        texts = [text] if isinstance(text, str) else [one for one in text or () if isinstance(one, str)]
        self._depth.text = texts[0] if len(texts) == 1 else None
        data: dict[str, Any] = {"rid": generation.coming(), "chars": sum(map(len, texts))}
        if self.options.get("text") and texts:
            data["text_in"] = texts[-1][:MAX_TEXT]
        ids = _flat(result.get("input_ids") if hasattr(result, "get") else result)
        if ids is not None:
            data["count"], data["ids"] = len(ids), ids[:MAX_IDS]
        if error is not None:
            data["error"] = type(error).__name__
        self.emit("encode", start, end, get_native_id(), data)

    def _read(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        rid = generation.latest()
        if not rid:
            return
        ids = _flat(kwargs.get("token_ids", args[1] if len(args) > 1 else None)) or []
        index = self._decoded.get(rid, 0)
        self._decoded[rid] = index + 1
        data: dict[str, Any] = {"rid": rid, "index": index, "count": len(ids), "ids": ids[:MAX_IDS]}
        if len(ids) == 1:
            data["id"] = ids[0]
        text = result if isinstance(result, str) else "".join(result or ())
        data["chars"] = len(text)
        if self.options.get("text"):
            data["text"] = text[:MAX_TEXT]
        if error is not None:
            data["error"] = type(error).__name__
        self.emit("decode", start, end, get_native_id(), data)


def _flat(ids: Any) -> list[int] | None:
    """Token ids in whatever they came, in one list; None when these are none."""
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    if isinstance(ids, int):
        return [ids]
    if not isinstance(ids, (list, tuple)):
        return None
    if ids and isinstance(ids[0], (list, tuple)):
        ids = [one for row in ids for one in row]
    return [int(one) for one in ids] if all(isinstance(one, int) for one in ids) else None


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
