"""The groups "http" and "tokenizer" of the local engine: a request's way through the server's event loop.

    http        request [rid, traceparent, method, path, status], parse [rid, bytes], write [rid, index, bytes]
    tokenizer   template [rid, chars_in, chars_out], encode [rid, chars, count, ids], decode [rid, index, id, chars];
                with the option `text` also text_out of template and text of decode

`tokentrace.engines.local.hookpoints` names the functions. A call that failed has `error`, the exception's class.
"""

from __future__ import annotations

from typing import Any

from tokentrace.agent.core import here
from tokentrace.agent.texts import MAX_IDS, MAX_TEXT, texts_of
from tokentrace.agent.wrap import Call, Hook, HookGroup

_API = "tokentrace.engines.local.api:Api"
_TOKENIZER = "tokentrace.engines.local.tokenizer"
_HEADERS = (b"traceparent",)


class HttpGroup(HookGroup):
    """The server's side of layer 8. `request` spans the whole handler, from the headers to the reply's last byte."""

    needed = (f"{_API}.handle",)

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[str, None] = {}

    def hooks(self) -> list[Hook]:
        return [
            Hook(f"{_API}.handle", self._handled, before=self._arrived),
            Hook(f"{_API}.parse", self._parsed),
            Hook(f"{_API}.write", self._written),
        ]

    def open(self) -> list[str]:
        """Ids of requests whose handler has not ended."""
        return list(self._open)

    def _arrived(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        api, rid, kind, scope, receive, send = args
        watched = _StatusSend(send)
        self._open[rid] = None
        return Call((api, rid, kind, scope, receive, watched), kwargs, watched)

    def _handled(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        rid, scope = args[1], args[3]
        self._open.pop(rid, None)
        data: dict[str, Any] = {"rid": rid, "method": scope.get("method", ""), "path": scope.get("path", "")}
        for name, value in scope.get("headers", ()):
            if name in _HEADERS:  # no other header is looked at: they hold keys
                data[name.decode("ascii")] = value.decode("ascii", "replace")
        data["status"] = context.status if context is not None else 0
        self.emit("request", start, end, here.thread, _with_error(data, error))

    def _parsed(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        self.emit("parse", start, end, here.thread, _with_error({"rid": args[1], "bytes": len(args[3])}, error))

    def _written(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        data = {"rid": args[1], "index": args[2], "bytes": len(args[3])}
        self.emit("write", start, end, here.thread, _with_error(data, error))


class _StatusSend:
    """An ASGI `send` that remembers the response's status."""

    __slots__ = ("_send", "status")

    def __init__(self, send: Any) -> None:
        self._send = send
        self.status = 0

    def __call__(self, message: Any) -> Any:
        if not self.status and message.get("type") == "http.response.start":
            self.status = message.get("status", 0)
        return self._send(message)


class TokenizerGroup(HookGroup):
    """Layer 7. Texts are kept only with the option `text`, which is for prompts of our own."""

    needed = (f"{_TOKENIZER}:Tokenizer.encode",)

    def hooks(self) -> list[Hook]:
        return [
            Hook(f"{_TOKENIZER}:Tokenizer.render", self._rendered),
            Hook(f"{_TOKENIZER}:Tokenizer.encode", self._encoded),
            Hook(f"{_TOKENIZER}:Detokenizer.step", self._decoded),
        ]

    def _rendered(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        data: dict[str, Any] = {"rid": args[1], "chars_in": sum(len(text) for text in texts_of(args[2]))}
        if result is not None:
            data["chars_out"] = len(result)
            if self.options.get("text"):
                data["text_out"] = result[:MAX_TEXT]
        self.emit("template", start, end, here.thread, _with_error(data, error))

    def _encoded(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        data: dict[str, Any] = {"rid": args[1], "chars": len(args[2])}
        if result is not None:
            data["count"], data["ids"] = len(result), result[:MAX_IDS]
        self.emit("encode", start, end, here.thread, _with_error(data, error))

    def _decoded(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        data: dict[str, Any] = {"rid": args[1], "index": args[2], "id": args[3]}
        if result is not None:
            data["chars"] = len(result)
            if self.options.get("text"):
                data["text"] = result[:MAX_TEXT]
        self.emit("decode", start, end, here.thread, _with_error(data, error))


def _with_error(data: dict[str, Any], error: BaseException | None) -> dict[str, Any]:
    if error is not None:
        data["error"] = type(error).__name__
    return data
