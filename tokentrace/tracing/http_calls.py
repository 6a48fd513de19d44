"""Requests that a program sends through httpx, the openai package's among them, as exchanges.

Watched are the transports `HTTPTransport` and `AsyncHTTPTransport` of httpx and of its successor httpx2, where each
request appears that really goes out: a retry is a request of its own. The request gets a `traceparent`, so that a
server that traces joins in; it is changed in nothing else, and the program gets the very bytes it would get otherwise.
What the reply says is read along as the program reads it. No header is kept, as headers hold keys.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokentrace.tracing.call import Call

if TYPE_CHECKING:
    import httpx

    from tokentrace.tracing.block import Block

PACKAGES = ("httpx", "httpx2")

_watchers: list[Block] = []
_originals: list[tuple[type, str, Any]] = []
_mutex = threading.Lock()


def watch(block: Block) -> None:
    """From now on the block is offered every request; `unwatch` ends that. httpx is wrapped while
    anybody watches."""
    with _mutex:
        _watchers.append(block)
        if len(_watchers) > 1:
            return
        for package in PACKAGES:
            try:
                # Also where the program has not imported it yet: it may do so inside the block.
                module: Any = import_module(package)
            except ImportError:
                continue
            for owner, name, make in (
                (module.HTTPTransport, "handle_request", _sync),
                (module.AsyncHTTPTransport, "handle_async_request", _async),
            ):
                original = vars(owner)[name]
                _originals.append((owner, name, original))
                setattr(owner, name, make(original, module))


def unwatch(block: Block) -> None:
    with _mutex:
        if block in _watchers:
            _watchers.remove(block)
        if not _watchers:
            while _originals:
                owner, name, original = _originals.pop()
                setattr(owner, name, original)


def _begin(request: httpx.Request, is_async: bool) -> Call | None:
    """The call of this request; None when no trace wants it, or when ours fails: the program's request goes on."""
    try:
        # The innermost trace of this context comes first; one that is merely open takes what nobody else does.
        wanting = [(claim, block) for block in reversed(_watchers) if (claim := block.claims())]
        if not wanting:
            return None
        claim, block = max(wanting, key=lambda pair: pair[0])
        return Call(block, request, is_async)
    except Exception:  # noqa: BLE001 - nothing of ours may reach the program
        return None


def _sync(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    def handle_request(self: Any, request: httpx.Request) -> httpx.Response:
        call = _begin(request, False)
        response: httpx.Response
        if call is None:
            response = original(self, request)
            return response
        try:
            response = original(self, request)
        except BaseException as error:
            call.failed(error)
            raise
        call.answered(response)
        response.stream = _sync_stream(module, response.stream, call)
        return response

    return handle_request


def _async(original: Callable[..., Awaitable[Any]], module: Any) -> Callable[..., Any]:
    async def handle_async_request(self: Any, request: httpx.Request) -> httpx.Response:
        call = _begin(request, True)
        response: httpx.Response
        if call is None:
            response = await original(self, request)
            return response
        try:
            response = await original(self, request)
        except BaseException as error:
            call.failed(error)
            raise
        call.answered(response)
        response.stream = _async_stream(module, response.stream, call)
        return response

    return handle_async_request


def _sync_stream(module: Any, inner: Any, call: Call) -> Any:
    class Watched(module.SyncByteStream):  # type: ignore[misc]
        """The reply's bytes, unchanged."""

        def __iter__(self) -> Iterator[bytes]:
            try:
                for data in inner:
                    call.arrived(data)
                    yield data
            except GeneratorExit:
                raise
            except BaseException as error:
                call.failed(error)
                raise
            call.closed(True)

        def close(self) -> None:
            try:
                inner.close()
            finally:
                call.closed(False)

    return Watched()


def _async_stream(module: Any, inner: Any, call: Call) -> Any:
    class Watched(module.AsyncByteStream):  # type: ignore[misc]
        """The reply's bytes, unchanged."""

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for data in inner:
                    call.arrived(data)
                    yield data
            except GeneratorExit:
                raise
            except BaseException as error:
                call.failed(error)
                raise
            call.closed(True)

        async def aclose(self) -> None:
            try:
                await inner.aclose()
            finally:
                call.closed(False)

    return Watched()
