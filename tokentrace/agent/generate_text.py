"""The group "tokenizer" for a program that uses transformers itself; see `generate_hooks` for its records."""

from __future__ import annotations

import threading
from typing import Any

from tokentrace.agent.core import here
from tokentrace.agent.generate_run import GenerateGroup, generation
from tokentrace.agent.texts import MAX_IDS, MAX_TEXT, texts_of
from tokentrace.agent.wrap import Hook

_BASE = "transformers.tokenization_utils_base:PreTrainedTokenizerBase"


class TokenizerGroup(GenerateGroup):
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
        said = list(texts_of(talk))
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
        self.emit("template", start, end, here.thread, data)

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
        self.emit("encode", start, end, here.thread, data)

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
        self.emit("decode", start, end, here.thread, data)


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
