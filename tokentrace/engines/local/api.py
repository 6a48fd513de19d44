"""The HTTP side of the local engine: OpenAI-compatible, streaming and not.

Generation requests are served by plain ASGI code, so that every chunk is one `send` and a client that goes away is
noticed at once; the small endpoints use Starlette's routing. The functions named in hookpoints.py are looked up on
the class at each call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from tokentrace.engines.local.engine import Engine, EngineDied, Generation
from tokentrace.engines.local.metrics import Collector
from tokentrace.engines.local.protocol import (
    CHAT,
    COMPLETION,
    ApiError,
    GenerationRequest,
    Replies,
    new_request_id,
    read_generation,
    read_messages,
    read_object,
    usage,
)
from tokentrace.engines.local.sampling import Sampling
from tokentrace.engines.local.tokenizer import Detokenizer, StopScanner, TemplateError, Tokenizer

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY_BYTES = 8 << 20
#: Above this many characters a text is encoded on a thread of its own, so that running streams do not wait for it.
_LONG_TEXT = 100_000


class Api:
    """Serves one engine."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, version: str) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.version = version
        self.started = int(time.time())
        #: Called once when the engine is found dead, so that the process can end.
        self.on_death: Callable[[], None] = lambda: None

    def parse(self, rid: str, kind: str, body: bytes) -> GenerationRequest:
        """The request in the body. Raises ApiError."""
        return read_generation(kind, body)

    async def write(self, rid: str, index: int, data: bytes, send: Send) -> None:
        """Send chunk `index` of the reply."""
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def handle(self, rid: str, kind: str, scope: Scope, receive: Receive, send: Send) -> None:
        """One chat or completion request from its headers to the last byte of the reply."""
        reply = _Reply(self, rid, kind, _header(scope, b"x-request-id") or rid, send)
        watcher: asyncio.Task[None] | None = None
        try:
            request = self.parse(rid, kind, await _body(receive))
            self._check_model(request.model)
            ids = await self._prompt_ids(rid, request)
            generation = self.engine.submit(rid, ids, self._sampling(request, len(ids)))
            watcher = asyncio.create_task(_watch(receive, generation))
            await reply.run(request, generation, Detokenizer(self.tokenizer, ids))
        except ApiError as error:
            await reply.fail(error)
        except _ClientGone:
            self.engine.metrics.finished["abort"] += 1
        except EngineDied as error:
            self.engine.metrics.finished["error"] += 1
            dead = await self._is_dead()
            await reply.fail(ApiError(503 if dead else 500, f"The engine failed: {error}"))
            if dead:
                self.on_death()
        finally:
            self.engine.cancel(rid)
            if watcher is not None:
                watcher.cancel()

    async def _is_dead(self) -> bool:
        """A loop that dies fails its requests first and says so a moment later."""
        for _ in range(20):
            if self.engine.death():
                return True
            await asyncio.sleep(0.01)
        return False

    def _check_model(self, wanted: str | None) -> None:
        name = self.engine.folder.name
        if wanted not in (None, "", name):
            message = f"The model `{wanted}` does not exist; this server has `{name}`."
            raise ApiError(404, message, param="model", code="model_not_found")

    async def _prompt_ids(self, rid: str, request: GenerationRequest) -> list[int]:
        if request.messages is not None:
            try:
                text = self.tokenizer.render(rid, request.messages)
            except TemplateError as error:
                raise ApiError(400, _sentence(error), param="messages") from None
            return await self._encode(rid, text, special=False)
        if isinstance(request.prompt, str):
            return await self._encode(rid, request.prompt, special=True)
        ids = request.prompt or []
        for one in ids:
            if not 0 <= one < self.engine.vocab_size:
                raise ApiError(400, f"Token id {one} is outside 0 to {self.engine.vocab_size - 1}.", param="prompt")
        return ids

    async def _encode(self, rid: str, text: str, special: bool) -> list[int]:
        if len(text) > _LONG_TEXT:
            return await asyncio.to_thread(lambda: self.tokenizer.encode(rid, text, special))
        return self.tokenizer.encode(rid, text, special)

    def _sampling(self, request: GenerationRequest, prompt: int) -> Sampling:
        limit, field = self.engine.max_model_len, "messages" if request.messages is not None else "prompt"
        if prompt == 0:
            raise ApiError(400, "The prompt is empty.", param=field)
        wanted = request.max_tokens
        if prompt >= limit or (wanted or 1) + prompt > limit:
            asked = f"{prompt} tokens of prompt" + (
                f" and {wanted} of completion" if wanted else " and at least 1 more"
            )
            raise ApiError(
                400,
                f"This model's maximum context length is {limit} tokens, but the request needs {asked}: "
                f"{prompt + (wanted or 1)} tokens.",
                param=field,
                code="context_length_exceeded",
            )
        default = self.engine.defaults
        return Sampling(
            max_tokens=wanted or limit - prompt,
            temperature=default.temperature if request.temperature is None else request.temperature,
            top_p=default.top_p if request.top_p is None else request.top_p,
            top_k=default.top_k if request.top_k is None else request.top_k,
            seed=request.seed,
            ignore_eos=request.ignore_eos,
        )

    def routes(self) -> Any:
        """The ASGI application."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route

        return Starlette(
            routes=[
                Route("/v1/chat/completions", _Endpoint(self, CHAT), methods=["POST"]),
                Route("/v1/completions", _Endpoint(self, COMPLETION), methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                Route("/health", self._health),
                Route("/version", self._version),
                Route("/metrics", self._metrics),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/detokenize", self._detokenize, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _not_found, ApiError: _refused},
        )

    def _card(self) -> dict[str, Any]:
        return {
            "id": self.engine.folder.name,
            "object": "model",
            "created": self.started,
            "owned_by": "tokentrace",
            "root": str(self.engine.folder.path),
            "parent": None,
            "max_model_len": self.engine.max_model_len,
        }

    async def _models(self, request: Any) -> Any:
        return _json({"object": "list", "data": [self._card()]})

    async def _model(self, request: Any) -> Any:
        self._check_model(request.path_params["name"])
        return _json(self._card())

    async def _health(self, request: Any) -> Any:
        if death := self.engine.death():
            raise ApiError(503, f"The engine failed: {death}")
        return _json({"status": "ok"})

    async def _version(self, request: Any) -> Any:
        return _json({"version": self.version, "engine": "tokentrace"})

    async def _metrics(self, request: Any) -> Any:
        from starlette.responses import Response

        return Response(Collector(self.engine).text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _tokenize(self, request: Any) -> Any:
        """vLLM's form: {"prompt": …} or {"messages": […]} in, {"count", "max_model_len", "tokens"} out."""
        value = read_object(await request.body())
        self._check_model(value.get("model"))
        if "messages" in value:
            try:
                text, special = self.tokenizer.render("", read_messages(value)), False
            except TemplateError as error:
                raise ApiError(400, _sentence(error), param="messages") from None
        else:
            prompt = value.get("prompt")
            if not isinstance(prompt, str):
                raise ApiError(400, "prompt must be a text.", param="prompt")
            text, special = prompt, True
        ids = await self._encode("", text, bool(value.get("add_special_tokens", special)))
        return _json({"count": len(ids), "max_model_len": self.engine.max_model_len, "tokens": ids})

    async def _detokenize(self, request: Any) -> Any:
        value = read_object(await request.body())
        self._check_model(value.get("model"))
        ids, top = value.get("tokens"), self.engine.vocab_size
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < top for one in ids):
            raise ApiError(400, f"tokens must be a list of token ids from 0 to {top - 1}.", param="tokens")
        return _json({"prompt": self.tokenizer.decode(ids, skip_special=False)})


class _ClientGone(Exception):
    pass


class _Endpoint:
    """An ASGI application that names the request and hands it on."""

    def __init__(self, api: Api, kind: str) -> None:
        self._api, self._kind = api, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rid = new_request_id(self._kind, _header(scope, b"x-request-id"))
        await self._api.handle(rid, self._kind, scope, receive, send)


class _Reply:
    """The reply to one generation request. Headers go out with the first token, so that a failure before it still
    has a status of its own."""

    def __init__(self, api: Api, rid: str, kind: str, shown_id: str, send: Send) -> None:
        self._api, self._rid, self._send = api, rid, send
        self._shown_id = shown_id
        self._json = Replies(kind, rid, api.engine.folder.name, int(time.time()))
        self._index = 0
        self._streaming = False
        self._arrival = self._last = time.perf_counter()

    async def run(self, request: GenerationRequest, generation: Generation, detokenizer: Detokenizer) -> None:
        metrics = self._api.engine.metrics
        metrics.prompt_tokens += generation.prompt_tokens
        scanner, parts, finish = StopScanner(request.stop), [], ""
        async for ids in generation.tokens():
            self._count(len(ids))
            start = generation.generated - len(ids)
            steps = [detokenizer.step(self._rid, start + n, one) for n, one in enumerate(ids)]
            text = scanner.feed("".join(steps))
            if request.stream and not self._streaming:
                await self._begin()
            if text:
                parts.append(text)
                if request.stream:
                    await self._event(self._json.chunk(text=text))
            if scanner.hit is not None:
                finish = "stop"
                self._api.engine.cancel(self._rid)
                break
        finish = finish or generation.finish_reason
        if finish == "abort":
            raise _ClientGone
        text = (scanner.feed(detokenizer.flush()) + scanner.flush()) if scanner.hit is None else ""
        parts.append(text)
        metrics.finished[finish] += 1
        metrics.e2e_latency.observe(time.perf_counter() - self._arrival)
        counted = usage(generation.prompt_tokens, generation.generated)
        if not request.stream:
            await self._whole(200, self._json.whole("".join(parts), finish, counted))
            return
        if text:
            await self._event(self._json.chunk(text=text))
        await self._event(self._json.chunk(finish=finish))
        if request.include_usage:
            await self._event(self._json.usage_chunk(counted))
        await self._done()

    async def fail(self, error: ApiError) -> None:
        """A refusal or failure: a status of its own, or an error event when the stream has begun."""
        if self._streaming:
            await self._event(error.body())
            await self._done()
        else:
            await self._whole(error.status, error.body())

    def _count(self, tokens: int) -> None:
        metrics, now = self._api.engine.metrics, time.perf_counter()
        metrics.generation_tokens += tokens
        if self._last == self._arrival:
            metrics.time_to_first_token.observe(now - self._arrival)
        else:
            metrics.inter_token_latency.observe((now - self._last) / max(1, tokens))
        self._last = now

    async def _begin(self) -> None:
        self._streaming = True
        await self._head(200, [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")])
        if self._json.kind == CHAT:
            await self._event(self._json.chunk(role=True))

    async def _event(self, value: dict[str, Any]) -> None:
        await self._write(b"data: " + orjson.dumps(value) + b"\n\n")

    async def _done(self) -> None:
        await self._write(b"data: [DONE]\n\n")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _whole(self, status: int, value: dict[str, Any]) -> None:
        data = orjson.dumps(value)
        length = str(len(data)).encode()
        await self._head(status, [(b"content-type", b"application/json"), (b"content-length", length)])
        await self._write(data)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, data: bytes) -> None:
        index, self._index = self._index, self._index + 1
        await self._api.write(self._rid, index, data, self._send)

    async def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        headers = [*headers, (b"x-request-id", self._shown_id.encode("latin-1", "replace"))]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise ApiError(413, f"The request body is longer than {MAX_BODY_BYTES} bytes.")
        if not message.get("more_body"):
            return b"".join(parts)


async def _watch(receive: Receive, generation: Generation) -> None:
    """End the generation's stream of tokens when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.events.put_nowait(([], "abort", ""))


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope.get("headers", ()):
        if key == name:
            return bytes(value).decode("latin-1")
    return None


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _json(value: Any, status: int = 200) -> Any:
    from starlette.responses import Response

    return Response(orjson.dumps(value), status_code=status, media_type="application/json")


async def _refused(request: Any, error: Any) -> Any:
    return _json(error.body(), error.status)


async def _not_found(request: Any, error: Any) -> Any:
    """404 and 405 of the routing, in the same shape as every other refusal."""
    text = f"{request.method} {request.url.path}: {error.detail}."
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    return _json(ApiError(error.status_code, text, code=code).body(), error.status_code)
