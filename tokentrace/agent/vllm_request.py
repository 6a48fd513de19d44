"""What is known of one request in vLLM's API process, from its arrival to the last piece of its reply."""

from __future__ import annotations

from time import time_ns
from typing import Any

from tokentrace.agent.core import here
from tokentrace.agent.texts import MAX_TEXT
from tokentrace.agent.vllm_spine import spine
from tokentrace.agent.wrap import Hook


class Arrival:
    """One chosen request. `rid` is the engine's id of it, "" until it has one."""

    __slots__ = (
        "bound_ns", "chunks", "emits", "held", "method", "outputs", "path", "processing_ns", "rid", "rids",
        "start_ns", "status", "thread", "traceparent",
    )  # fmt: skip

    def __init__(self, traceparent: str = "", method: str = "", path: str = "") -> None:
        self.rid = ""
        self.rids: list[str] = []
        self.traceparent, self.method, self.path = traceparent, method, path
        self.status = self.chunks = 0
        self.outputs: dict[str, int] = {}  # by the engine's id
        self.start_ns, self.thread = time_ns(), here.thread
        self.processing_ns = self.bound_ns = 0
        self.held: list[tuple[str, str, int, int, int, dict[str, Any]]] = []
        self.emits = spine.emits  # as it was then: what has begun is written down to its end

    def emit(self, group: str, name: str, start: int, end: int, thread: int, data: dict[str, Any]) -> None:
        write = self.emits.get(group)
        if write is None:
            return
        if not self.rid:
            self.held.append((group, name, start, end, thread, data))
            return
        data["rid"] = self.rid
        write(name, start, end, thread, data)

    def bind(self, rid: str) -> None:
        self.rids.append(rid)
        if self.rid:
            return
        self.rid = rid
        held, self.held = self.held, []
        for row in held:
            self.emit(*row)


class Render:
    """A template or an encoding whose request is not known, until a request with the same tokens comes by."""

    __slots__ = ("data", "end", "ids", "name", "start", "text", "thread")

    def __init__(self, name: str, start: int, end: int, thread: int, data: dict[str, Any], text: Any, ids: Any) -> None:
        self.name, self.start, self.end, self.thread, self.data = name, start, end, thread, data
        self.text, self.ids = text, ids


class Decoding:
    """One reply's detokenizer; it is kept, so that the `id` by which it is known stays its own."""

    __slots__ = ("arrival", "detokenizer", "index", "rid", "write")

    def __init__(self, arrival: Arrival, rid: str, detokenizer: Any) -> None:
        self.arrival, self.rid, self.detokenizer = arrival, rid, detokenizer
        self.index = 0
        self.write = arrival.emits.get("tokenizer")

    def decoded(self, start: int, end: int, ids: list[int], before: int) -> None:
        """These tokens have been added to a text that had `before` characters."""
        if not ids or self.write is None:
            return
        text = self.detokenizer.output_text
        # A stop string that is complete takes characters away again.
        data: dict[str, Any] = {"rid": self.rid, "index": self.index, "id": int(ids[-1]),
                                "chars": max(0, len(text) - before)}  # fmt: skip
        if len(ids) > 1:
            data["ids"] = [int(one) for one in ids]
        if spine.text:
            data["text"] = text[before : before + MAX_TEXT]
        self.index += len(ids)
        self.write("decode", start, end, here.thread, data)


class Send:
    """An ASGI `send` that notes each piece of the reply."""

    __slots__ = ("_arrival", "_hook", "_send")

    def __init__(self, arrival: Arrival, send: Any, hook: Hook) -> None:
        self._arrival, self._send, self._hook = arrival, send, hook

    async def __call__(self, message: Any) -> None:
        start = time_ns()
        await self._send(message)
        try:
            arrival = self._arrival
            if message.get("type") == "http.response.start":
                arrival.status = message.get("status", 0)
            elif message.get("body"):
                data = {"index": arrival.chunks, "bytes": len(message["body"])}
                arrival.chunks += 1
                arrival.emit("http", "write", start, time_ns(), here.thread, data)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the server
            self._hook.fail(error)
