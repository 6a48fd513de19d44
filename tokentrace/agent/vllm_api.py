"""vLLM, the process where requests come in: HTTP, chat template, tokenizing, handing over, detokenizing, replying.

Of an asyncio server the context variable `_current` says which request runs. It is lost in the renderer's threads and
in the one background task that handles all outputs. For the threads, the executor of the renderer is watched (as an
attribute of that one object): what it runs takes the context along. That also times the template and the tokenizer,
whose functions the renderer has kept hold of since it was made, so that patching their class has no effect there. For
the outputs there is a map by request id.

Records of a request that has no engine id yet are held and written when it gets one; all of them carry that id.
"""

from __future__ import annotations

import contextvars
import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import wraps
from itertools import count
from time import time_ns
from typing import Any

from tokentrace.agent.core import here
from tokentrace.agent.texts import MAX_IDS, MAX_TEXT, texts_of
from tokentrace.agent.vllm_request import Arrival, Decoding, Render, Send
from tokentrace.agent.vllm_spine import MARK, Make, spine
from tokentrace.agent.wrap import Hook

_current: contextvars.ContextVar[Arrival | None] = contextvars.ContextVar("tokentrace_arrival", default=None)
_numbers = count()


class Api:
    """Hooks and state of this process. See the module's docstring."""

    def __init__(self) -> None:
        self.by_rid: dict[str, Arrival] = {}
        self.open: dict[int, Arrival] = {}
        self.detokenizers: dict[int, Decoding] = {}
        self._loose: deque[Render] = deque(maxlen=64)
        self._executors: dict[int, tuple[Any, Hook]] = {}

    def makers(self) -> dict[str, Make]:
        def hook(after: Any = None, before: Any = None, make: Any = None) -> Make:
            return lambda target: Hook(target, after, before=before, make=make)

        return {
            "http": hook(make=self._watch_app),
            "chat": hook(before=self._begun),
            "completion": hook(before=self._begun),
            "render chat": hook(self._rendered_whole, before=self._renders),
            "render text": hook(self._rendered_whole, before=self._renders),
            "template": hook(self._rendered),
            "tokenize": hook(self._tokenized),
            "process": hook(before=self._processes),
            "register": hook(self._registered, before=self._registers),
            "outputs": hook(self._outputs),
            "detokenize": hook(make=self._watch_detokenizer),
            "submit": hook(self._submitted),
            "submit data-parallel": hook(self._submitted),
            "submit offline": hook(self._submitted),
            "submit in process": hook(self._submitted),
        }

    def forget(self) -> None:
        executors, self._executors = self._executors, {}
        for _, hook in executors.values():
            hook.restore()
        self.by_rid.clear()
        self.detokenizers.clear()
        self._loose.clear()

    # --- HTTP

    def _watch_app(self, hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        async def call(app: Any, scope: Any, receive: Any, send: Any) -> Any:
            if not hook.active:
                return await function(app, scope, receive, send)
            arrival = None
            try:
                arrival = self._arrived(scope)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the server
                hook.fail(error)
            if arrival is None:
                return await function(app, scope, receive, send)
            token = _current.set(arrival)
            problem: BaseException | None = None
            try:
                return await function(app, scope, receive, Send(arrival, send, hook))
            except BaseException as error:
                problem = error
                raise
            finally:
                try:
                    _current.reset(token)
                    self._left(arrival, problem)
                except Exception as error:  # noqa: BLE001 - nothing of ours may reach the server
                    hook.fail(error)

        return call

    def _arrived(self, scope: Mapping[str, Any]) -> Arrival | None:
        if scope.get("type") != "http" or scope.get("method") != "POST" or _current.get() is not None:
            return None
        traceparent = ""
        for name, value in scope.get("headers", ()):
            if name == b"traceparent":  # no other header is looked at: they hold keys
                traceparent = value.decode("ascii", "replace")
        if not spine.selection.wants(traceparent):
            return None
        arrival = Arrival(traceparent, scope.get("method", ""), scope.get("path", ""))
        self.open[id(arrival)] = arrival
        return arrival

    def _left(self, arrival: Arrival, problem: BaseException | None) -> None:
        self.open.pop(id(arrival), None)
        for rid in arrival.rids:
            self.by_rid.pop(rid, None)
        self._let_go(arrival)
        if not arrival.rid:
            # It never came to the engine. Of others' requests that is of interest when it failed.
            others = not arrival.traceparent or spine.selection.all
            if others and not (spine.selection.all and (arrival.status >= 400 or problem is not None)):
                return
            arrival.bind(f"http-{os.getpid()}-{next(_numbers)}")
        data: dict[str, Any] = {"method": arrival.method, "path": arrival.path, "status": arrival.status}
        if arrival.traceparent:
            data["traceparent"] = arrival.traceparent
        if len(arrival.rids) > 1:
            data["rids"] = arrival.rids[:64]
        if problem is not None:
            data["error"] = type(problem).__name__
        arrival.emit("http", "request", arrival.start_ns, time_ns(), arrival.thread, data)

    def _begun(self, args: Any, kwargs: Any) -> None:
        """The handler proper begins: what came before was reading the body and checking it."""
        arrival = _current.get()
        if arrival is not None:
            arrival.emit("http", "parse", arrival.start_ns, time_ns(), here.thread, {})

    # --- template and tokenizer

    def _renders(self, args: Any, kwargs: Any) -> None:
        """Watch the executor of this renderer, once."""
        executor = getattr(args[0], "_executor", None)
        if executor is None or id(executor) in self._executors or not callable(getattr(executor, "submit", None)):
            return
        hook = Hook("renderer executor:submit", owner=executor, make=self._watch_submit)
        self._executors[id(executor)] = (executor, hook)
        hook.install()

    def _rendered_whole(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        arrival = _current.get()
        if arrival is not None:
            arrival.emit("tokenizer", "render", start, end, here.thread, {})

    def _watch_submit(self, hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def submit(task: Any, /, *args: Any, **kwargs: Any) -> Any:
            if hook.active and not args and not kwargs and _current.get() is not None:
                return function(contextvars.copy_context().run, self._run, task)
            return function(task, *args, **kwargs)

        return submit

    def _run(self, task: Any) -> Any:
        """In the renderer's thread, with the request's context: run what was handed over, and time it if it is the
        template or the tokenizer as they were before anybody wrapped them."""
        inner = getattr(task, "func", None)  # a functools.partial
        name = getattr(inner, "__name__", "")
        after = {"safe_apply_chat_template": self._rendered, "_tokenize_prompt": self._tokenized}.get(name)
        if after is None or hasattr(getattr(inner, "__func__", inner), "__wrapped__"):
            return task()
        start = time_ns()
        result = task()
        try:
            args = tuple(task.args)
            after(start, time_ns(), (None, *args) if hasattr(inner, "__self__") else args, task.keywords, result, None,
                  None)  # fmt: skip
        except Exception:  # noqa: BLE001, S110 - only a record is lost
            pass
        return result

    def _rendered(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        messages = kwargs.get("conversation") or next((a for a in args if isinstance(a, list)), ())
        data: dict[str, Any] = {"chars_in": sum(len(text) for text in texts_of(messages))}
        if isinstance(result, str):
            data["chars_out"] = len(result)
            if spine.text:
                data["text_out"] = result[:MAX_TEXT]
        elif isinstance(result, list):
            data["count"] = len(result)
        self._render("template", start, end, data, error, result, result)

    def _tokenized(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        prompt = kwargs.get("prompt") or (args[1] if len(args) > 1 else None)
        text = prompt.get("prompt") if isinstance(prompt, dict) else None
        data: dict[str, Any] = {"chars": len(text) if isinstance(text, str) else 0}
        if spine.text and isinstance(text, str):
            data["text_in"] = text[:MAX_TEXT]
        ids = result.get("prompt_token_ids") if isinstance(result, dict) else None
        if ids is not None:
            data["count"], data["ids"] = len(ids), list(ids[:MAX_IDS])
        self._render("encode", start, end, data, error, text, ids)

    def _render(
        self, name: str, start: int, end: int, data: dict[str, Any], error: BaseException | None, text: Any, ids: Any
    ) -> None:
        if error is not None:
            data["error"] = type(error).__name__
        arrival, thread = _current.get(), here.thread
        if arrival is not None:
            arrival.emit("tokenizer", name, start, end, thread, data)
        elif spine.selection.all:
            self._loose.append(Render(name, start, end, thread, data, text, ids))

    # --- into the engine

    def _processes(self, args: Any, kwargs: Any) -> None:
        arrival = _current.get()
        if arrival is not None:
            arrival.processing_ns = time_ns()

    def _registers(self, args: Any, kwargs: Any) -> Arrival | None:
        """The request has its final id and goes out next: mark it."""
        request = kwargs.get("request") or args[1]
        rid = request.request_id
        arrival = _current.get()
        if arrival is None:
            if not spine.selection.all or rid in self.by_rid:
                return None
            arrival = Arrival()  # it came without HTTP (LLM.generate), or before the hooks did
        arrival.bound_ns = time_ns()
        headers = dict(getattr(request, "trace_headers", None) or {})
        if arrival.traceparent:
            headers.setdefault("traceparent", arrival.traceparent)
        headers[MARK] = "1"
        request.trace_headers = headers
        self.by_rid[rid] = arrival
        arrival.bind(rid)
        self._claim(arrival, getattr(request, "prompt_token_ids", None))
        return arrival

    def _claim(self, arrival: Arrival, ids: Any) -> None:
        """Renderings without a request that gave these tokens."""
        for loose in list(self._loose):
            if loose.name == "encode" and ids is not None and loose.ids is not None and list(loose.ids) == list(ids):
                self._loose.remove(loose)
                for other in list(self._loose):
                    if other.name == "template" and other.text == loose.text:
                        self._loose.remove(other)
                        arrival.emit("tokenizer", other.name, other.start, other.end, other.thread, other.data)
                        break
                arrival.emit("tokenizer", loose.name, loose.start, loose.end, loose.thread, loose.data)
                return

    def _registered(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        if context is None or error is not None:
            return
        request = kwargs.get("request") or args[1]
        state = args[0].request_states.get(request.request_id)
        detokenizer = getattr(state, "detokenizer", None)
        if detokenizer is not None:
            self.detokenizers[id(detokenizer)] = Decoding(context, request.request_id, detokenizer)

    def _submitted(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        request = kwargs.get("request") or args[1]
        arrival = self.by_rid.get(request.request_id)
        if arrival is None or error is not None:
            return
        ids = getattr(request, "prompt_token_ids", None)
        data: dict[str, Any] = {"rid": request.request_id, "sending_ns": start}
        if ids is not None:
            data["tokens"] = len(ids)
        first = arrival.processing_ns or arrival.bound_ns or start
        spine.writer("engine")("submit", min(first, start), end, here.thread, data)

    # --- and out of it

    def _outputs(
        self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: BaseException | None, context: Any
    ) -> None:
        if not self.by_rid:
            return
        outputs = kwargs.get("engine_core_outputs") or args[1]
        stopped = getattr(result, "reqs_to_abort", None) or ()
        thread, write = here.thread, spine.writer("engine")
        for output in outputs:
            rid = output.request_id
            arrival = self.by_rid.get(rid)
            if arrival is None:
                continue
            index = arrival.outputs.get(rid, 0)
            data = {"rid": rid, "index": index, "tokens": len(output.new_token_ids or ())}
            arrival.outputs[rid] = index + 1
            reason = getattr(output, "finish_reason", None)
            if reason is None and rid in stopped:
                # The detokenizer found a stop string. The reply is whole; the engine, which sees no text, is told to
                # abort what it still makes for it.
                reason = data["ended"] = "stop"
            write("output", start, end, thread, data)
            if reason is not None:
                self._ended(rid, arrival)

    def _ended(self, rid: str, arrival: Arrival) -> None:
        if not arrival.method:  # without HTTP nothing else tells its end
            self.by_rid.pop(rid, None)
            self._let_go(arrival)

    def _let_go(self, arrival: Arrival) -> None:
        for key, one in list(self.detokenizers.items()):
            if one.arrival is arrival:
                self.detokenizers.pop(key, None)

    def _watch_detokenizer(self, hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
        known = self.detokenizers

        @wraps(function)
        def update(detokenizer: Any, new_token_ids: Any, *args: Any, **kwargs: Any) -> Any:
            decoding = known.get(id(detokenizer)) if known and hook.active else None
            if decoding is None:
                return function(detokenizer, new_token_ids, *args, **kwargs)
            try:
                before, ids = len(detokenizer.output_text), list(new_token_ids)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the server
                hook.fail(error)
                return function(detokenizer, new_token_ids, *args, **kwargs)
            start = time_ns()
            result = function(detokenizer, new_token_ids, *args, **kwargs)
            end = time_ns()
            try:
                decoding.decoded(start, end, ids, before)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the server
                hook.fail(error)
            return result

        return update


api = Api()
