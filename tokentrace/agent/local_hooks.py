"""Groups "http" and "tokenizer" of the local engine: the request's way through the server's event loop.

The functions and their arguments are listed in `tokentrace.engines.local.hookpoints`.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import get_native_id
from typing import Any

from tokentrace.agent.core import Emit, GroupUnavailable
from tokentrace.agent.wrap import Patches

_HERE = "tokentrace.engines.local"
_MAX_TEXT = 2000
_MAX_IDS = 4096


class Group:
    """Switches a set of patches on and off."""

    what = ""

    def __init__(self) -> None:
        self.patches = Patches()
        self.emit: Emit | None = None

    def enable(self, emit: Emit, options: Mapping[str, Any] | None) -> None:
        self.emit = emit
        if not all(self.install()):
            self.patches.restore()
            raise GroupUnavailable(f"this process has no {self.what} that is known", "use a supported engine version")

    def disable(self) -> None:
        self.patches.restore()
        self.emit = None

    def install(self) -> list[bool]:
        raise NotImplementedError

    def write(self, name: str, start_ns: int, end_ns: int, data: dict[str, Any]) -> None:
        emit = self.emit
        if emit is not None:
            emit(name, start_ns, end_ns, get_native_id(), data)


class HttpGroup(Group):
    """request [rid, traceparent, method, path, status], parse [rid], write [rid, index, bytes]."""

    what = "HTTP front of the local engine"

    def install(self) -> list[bool]:
        self._status: dict[str, int] = {}
        return [
            self.patches.function(f"{_HERE}.api", "Api", "handle", self._handle),
            self.patches.around(f"{_HERE}.api", "Api", "parse", self._parse),
            self.patches.around_async(f"{_HERE}.api", "Api", "write", self._write),
        ]

    def _handle(self, original: Any) -> Any:
        from time import time_ns

        async def handle(api: Any, rid: str, kind: str, scope: Any, receive: Any, send: Any) -> None:
            status = 0

            async def watched(message: Any) -> None:
                nonlocal status
                if message.get("type") == "http.response.start":
                    status = message.get("status", 0)
                await send(message)

            start = time_ns()
            try:
                await original(api, rid, kind, scope, receive, watched)
            finally:
                self.patches.guard(self._request, start, time_ns(), rid, scope, status)

        return handle

    def _request(self, start: int, end: int, rid: str, scope: Any, status: int) -> None:
        headers = dict(scope.get("headers") or ())
        data = {
            "rid": rid,
            "traceparent": headers.get(b"traceparent", b"").decode("ascii", "replace"),
            "method": scope.get("method", ""),
            "path": scope.get("path", ""),
            "status": status,
        }
        self.write("request", start, end, data)

    def _parse(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        self.write("parse", start, end, {"rid": args[1]})

    def _write(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        self.write("write", start, end, {"rid": args[1], "index": args[2], "bytes": len(args[3])})


class TokenizerGroup(Group):
    """template [rid, chars_out, text_out], encode [rid, chars, count, ids], decode [rid, index, id, text].

    Texts and ids are kept: this group is switched on for a prompt that tokentrace sent itself.
    """

    what = "tokenizer of the local engine"

    def install(self) -> list[bool]:
        module = f"{_HERE}.tokenizer"
        return [
            self.patches.around(module, "Tokenizer", "render", self._render),
            self.patches.around(module, "Tokenizer", "encode", self._encode),
            self.patches.around(module, "Detokenizer", "step", self._step),
        ]

    def _render(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        chars = sum(len(str(m.get("content", ""))) for m in args[2])
        data = {"rid": args[1], "chars_in": chars, "chars_out": len(result), "text_out": result[:_MAX_TEXT]}
        self.write("template", start, end, data)

    def _encode(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        data = {"rid": args[1], "chars": len(args[2]), "count": len(result), "ids": list(result[:_MAX_IDS])}
        self.write("encode", start, end, data)

    def _step(self, start: int, end: int, args: tuple[Any, ...], result: Any) -> None:
        self.write("decode", start, end, {"rid": args[1], "index": args[2], "id": int(args[3]), "text": result})
