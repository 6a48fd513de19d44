"""A wrapped function behaves as before, whatever our side does, and the identical function comes back."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tokentrace.agent import wrap
from tokentrace.agent.core import GroupUnavailable
from tokentrace.agent.wrap import Call, Hook, HookGroup, install_all


class Base:
    def inherited(self, n: int) -> int:
        return n + 100


class Host(Base):
    def method(self, n: int, *, double: bool = False) -> int:
        """Documented."""
        if n < 0:
            raise ValueError("negative")
        return n * (2 if double else 1)

    @staticmethod
    def static(n: int) -> int:
        return n + 1

    @classmethod
    def of_class(cls, n: int) -> str:
        return f"{cls.__name__}{n}"

    async def coroutine(self, n: int) -> int:
        await asyncio.sleep(0)
        return n + 2

    def generator(self, n: int) -> Iterator[Any]:
        got = None
        try:
            for i in range(n):
                got = yield (i, got)
        except KeyError:
            yield "caught"
        return "end"

    async def stream(self, n: int) -> AsyncIterator[Any]:
        try:
            got = None
            for i in range(n):
                got = yield (i, got)
        except KeyError:
            yield "caught"
        finally:
            self.closed = True


def function(n: int) -> int:
    return n - 1


HERE = __name__


class Seen:
    """An After that keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: Any, context: Any) -> None:
        assert 0 < start <= end
        self.calls.append((args, kwargs, result, type(error).__name__ if error else "", context))


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    wrap.faults.clear()
    yield
    wrap.faults.clear()


@pytest.mark.parametrize("path", ["method", "static", "of_class", "coroutine", "generator", "stream"])
def test_the_identical_object_is_put_back_on_a_class(path: str) -> None:
    before = vars(Host)[path]
    hook = Hook(f"{HERE}:Host.{path}", Seen())
    hook.install()
    assert vars(Host)[path] is not before
    assert hook.restore()
    assert vars(Host)[path] is before


def test_an_inherited_function_is_inherited_again() -> None:
    seen = Seen()
    hook = Hook(f"{HERE}:Host.inherited", seen)
    hook.install()
    assert Host().inherited(1) == 101 and len(seen.calls) == 1
    assert Base().inherited(1) == 101 and len(seen.calls) == 1, "the base class was touched"
    hook.restore()
    assert "inherited" not in vars(Host)


def test_one_object_is_watched_and_its_attribute_vanishes_again() -> None:
    seen, watched, other = Seen(), Host(), Host()
    hook = Hook("Host.method", seen, owner=watched)
    hook.install()
    assert (watched.method(3), other.method(3)) == (3, 3)
    assert len(seen.calls) == 1
    hook.restore()
    assert vars(watched) == {} and watched.method.__func__ is vars(Host)["method"]


def test_an_attribute_the_object_had_itself_comes_back() -> None:
    watched = Host()
    own = watched.method = lambda n: n + 7  # type: ignore[method-assign, assignment]
    hook = Hook("method", Seen(), owner=watched)
    hook.install()
    assert watched.method(1) == 8
    hook.restore()
    assert vars(watched)["method"] is own


def test_a_module_function_is_put_back() -> None:
    module, before = sys.modules[HERE], function
    hook = Hook(f"{HERE}:function", Seen())
    hook.install()
    assert module.function(1) == 0 and module.function is not before
    hook.restore()
    assert module.function is before


def test_arguments_results_exceptions_and_the_signature_pass_unchanged() -> None:
    seen = Seen()
    signature = inspect.signature(Host.method)
    hook = Hook(f"{HERE}:Host.method", seen)
    hook.install()
    try:
        host = Host()
        assert host.method(4, double=True) == 8
        with pytest.raises(ValueError, match="negative") as raised:
            host.method(-1)
        assert raised.value.__context__ is None
        assert inspect.signature(Host.method) == signature and Host.method.__doc__ == "Documented."
        assert Host.static(1) == 2
    finally:
        hook.restore()
    assert [call[1:4] for call in seen.calls] == [({"double": True}, 8, ""), ({}, None, "ValueError")]


@pytest.mark.parametrize("kind", ["static", "of_class"])
def test_static_and_class_methods_stay_what_they_are(kind: str) -> None:
    hook = Hook(f"{HERE}:Host.{kind}", Seen())
    hook.install()
    try:
        assert Host.static(1) == 2 and Host().static(1) == 2
        assert Host.of_class(1) == "Host1" and Host().of_class(1) == "Host1"
    finally:
        hook.restore()


@pytest.mark.parametrize("part", ["before", "after"])
def test_an_error_of_ours_never_reaches_the_host_and_the_third_takes_the_hook_out(part: str) -> None:
    original = vars(Host)["method"]

    def broken(*args: Any) -> Any:
        raise RuntimeError("ours")

    hook = Hook(
        f"{HERE}:Host.method", broken if part == "after" else Seen(), before=broken if part == "before" else None
    )
    hook.install()
    host = Host()
    for n in range(3):
        assert vars(Host)["method"] is not original
        assert host.method(n) == n
    assert vars(Host)["method"] is original
    assert [fault["off"] for fault in wrap.faults] == [False, False, True]
    assert wrap.faults[-1] == {"hook": f"{HERE}:Host.method", "error": "RuntimeError: ours", "off": True}


def test_an_error_of_ours_does_not_hide_the_hosts_exception() -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("ours")

    hook = Hook(f"{HERE}:Host.method", broken)
    hook.install()
    try:
        with pytest.raises(ValueError, match="negative"):
            Host().method(-1)
    finally:
        hook.restore()


def test_what_is_not_there_is_said_and_nothing_else_stays_wrapped() -> None:
    before = vars(Host)["method"]
    hooks = [Hook(f"{HERE}:Host.method", Seen()), Hook(f"{HERE}:Host.gone", Seen()), Hook("no.such.module:f", Seen())]
    assert install_all(hooks) == [f"{HERE}:Host.gone", "no.such.module:f"]
    for hook in hooks:
        hook.restore()
    with pytest.raises(GroupUnavailable, match=r"Host\.gone is not there in this version"):
        install_all(hooks, needed=[f"{HERE}:Host.gone"])
    assert vars(Host)["method"] is before


def test_what_cannot_be_changed_is_reported_not_raised() -> None:
    assert install_all([Hook("builtins:int.bit_length", Seen())]) == ["builtins:int.bit_length"]


def test_coroutines_stay_coroutines_and_span_their_waiting() -> None:
    seen = Seen()
    hook = Hook(f"{HERE}:Host.coroutine", seen)
    hook.install()
    try:
        assert inspect.iscoroutinefunction(Host.coroutine)

        async def both() -> list[int]:
            host = Host()
            return await asyncio.gather(host.coroutine(1), host.coroutine(2))

        assert asyncio.run(both()) == [3, 4]
    finally:
        hook.restore()
    assert sorted(call[2] for call in seen.calls) == [3, 4]


def test_a_cancelled_coroutine_is_cancelled_and_recorded() -> None:
    seen = Seen()

    class Slow:
        async def wait(self) -> None:
            await asyncio.sleep(30)

    async def run() -> None:
        task = asyncio.create_task(slow.wait())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    slow = Slow()
    hook = Hook("wait", seen, owner=slow, kind="async")
    hook.install()
    asyncio.run(run())
    assert [call[3] for call in seen.calls] == ["CancelledError"]


def test_generators_are_passed_on_both_ways() -> None:
    seen, items = Seen(), []
    hook = Hook(f"{HERE}:Host.generator", seen, item=lambda at, index, value: items.append((index, value)))
    hook.install()
    try:
        host = Host()
        running = host.generator(3)
        assert next(running) == (0, None)
        assert running.send("x") == (1, "x")  # type: ignore[attr-defined]
        assert running.throw(KeyError("k")) == "caught"  # type: ignore[attr-defined]
        with pytest.raises(StopIteration) as stop:
            next(running)
        assert stop.value.value == "end"
        early = host.generator(3)
        next(early)
        early.close()  # type: ignore[attr-defined]
        assert list(host.generator(2)) == [(0, None), (1, None)]
    finally:
        hook.restore()
    assert items[:3] == [(0, (0, None)), (1, (1, "x")), (2, "caught")]
    assert [(call[2], call[3]) for call in seen.calls] == [("end", ""), (None, "GeneratorExit"), ("end", "")]


def test_async_generators_are_passed_on_both_ways() -> None:
    seen, items = Seen(), []
    hook = Hook(f"{HERE}:Host.stream", seen, item=lambda at, index, value: items.append(value))
    hook.install()

    async def run() -> None:
        host = Host()
        stream: Any = host.stream(3)
        assert await stream.__anext__() == (0, None)
        assert await stream.asend("x") == (1, "x")
        assert await stream.athrow(KeyError("k")) == "caught"
        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()
        early: Any = host.stream(3)
        await early.__anext__()
        host.closed = False
        await early.aclose()
        assert host.closed, "the host's own generator was not closed"
        assert [item async for item in host.stream(2)] == [(0, None), (1, None)]

    try:
        asyncio.run(run())
    finally:
        hook.restore()
    assert items[:3] == [(0, None), (1, "x"), "caught"]
    assert [call[3] for call in seen.calls] == ["", "GeneratorExit", ""]


def test_a_strangers_wrapper_above_ours_stays_and_ours_only_passes_on() -> None:
    original = vars(Host)["method"]
    seen, again = Seen(), Seen()
    hook = Hook(f"{HERE}:Host.method", seen)
    hook.install()
    below = Host.method

    def stranger(self: Host, n: int) -> int:
        return below(self, n) + 1000

    Host.method = stranger  # type: ignore[method-assign, assignment]
    try:
        assert not hook.restore()
        assert vars(Host)["method"] is stranger and Host().method(1) == 1001 and seen.calls == []
        with pytest.raises(LookupError, match="wrapped by others"):
            hook.install()
        second = Hook(f"{HERE}:Host.method", again)
        second.install()
        assert Host().method(1) == 1001 and len(again.calls) == 1 and seen.calls == []
        assert second.restore() and vars(Host)["method"] is stranger
    finally:
        Host.method = original  # type: ignore[method-assign]


def test_a_call_under_way_is_recorded_after_the_functions_were_put_back() -> None:
    entered, leave, emitted = threading.Event(), threading.Event(), []

    class Slow:
        def run(self) -> str:
            entered.set()
            leave.wait(60)
            return "done"

    class Group(HookGroup):
        def hooks(self) -> list[Hook]:
            return [Hook("run", self.ran, owner=slow)]

        def ran(self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: Any, context: Any) -> None:
            self.emit("run", start, end, 0, {"result": result})

    slow, group = Slow(), Group()
    group.enable(lambda *record: emitted.append(record))
    thread = threading.Thread(target=slow.run)
    thread.start()
    assert entered.wait(60)
    group.disable()
    assert vars(slow) == {}
    leave.set()
    thread.join()
    assert [record[4] for record in emitted] == [{"result": "done"}]


def test_before_may_replace_arguments() -> None:
    seen = Seen()
    hook = Hook(f"{HERE}:Host.method", seen, before=lambda args, kwargs: Call((args[0], 10), {}, "kept"))
    hook.install()
    try:
        assert Host().method(1) == 10
    finally:
        hook.restore()
    assert seen.calls[0][0][1] == 1 and seen.calls[0][4] == "kept"
