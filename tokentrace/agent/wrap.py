"""Replaces a function by one that also notes when it ran, and puts the identical function back.

The rules: the host's results and exceptions pass unchanged; an error of ours never reaches the host, and after three
the hook takes itself out. A wrapper is put where its owner keeps its attributes (a class, a module, or one object),
and what was there is kept as it was, so that putting back restores the very same object, or its absence where it was
inherited. If somebody wraps the function after us, our wrapper stays below theirs and only passes calls on.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from time import time_ns
from typing import Any

from tokentrace.agent.core import Emit, GroupUnavailable, nowhere

STRIKES = 3
_ABSENT = object()
_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]

#: Given (args, kwargs) ahead of the call; what it gives back is the `context` its After gets, or a `Call`.
Before = Callable[[_Args, _Kwargs], Any]
#: Given (start_ns, end_ns, args, kwargs, result, error, context) behind it; error is None when the call returned.
After = Callable[[int, int, _Args, _Kwargs, Any, "BaseException | None", Any], None]
#: Given (time_ns, index, value) for each item that a generator yields.
Item = Callable[[int, int, Any], None]

#: What has gone wrong in hooks of this process, oldest first; told in the agent's facts.
faults: list[dict[str, Any]] = []
_MOST_FAULTS = 50


def note_fault(where: str, error: BaseException, off: bool) -> None:
    """Keep what went wrong, so that the client can tell it."""
    if len(faults) < _MOST_FAULTS:
        faults.append({"hook": where, "error": f"{type(error).__name__}: {error}"[:300], "off": off})


class Call:
    """From a Before: the arguments the function shall get instead, and the context for its After."""

    __slots__ = ("args", "context", "kwargs")

    def __init__(self, args: _Args, kwargs: _Kwargs, context: Any = None) -> None:
        self.args, self.kwargs, self.context = args, kwargs, context


class Hook:
    """One wrapped function. `target` is "module:name" or "module:Class.name"; with `owner` (any object) a name in it.

    `kind` is "sync", "async", "generator" or "async generator"; "" finds out. `make(hook, function)` builds the
    wrapper in place of the usual one; it must look at `hook.active`.
    """

    def __init__(
        self,
        target: str,
        after: After | None = None,
        *,
        before: Before | None = None,
        item: Item | None = None,
        owner: Any = None,
        kind: str = "",
        make: Callable[[Hook, Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> None:
        self.target = target
        self.after, self.before, self.item, self.kind = after, before, item, kind
        #: Whether the wrapper does anything but pass the call on. Read at every call.
        self.active = False
        self.errors = 0
        self._make = make or make_wrapper
        self._owner = owner
        self._name = ""
        self._raw: Any = _ABSENT  # what stood among the owner's own attributes
        self._stored: Any = None  # the wrapper as stored: bare, or in a staticmethod or classmethod

    @property
    def installed(self) -> bool:
        return self._stored is not None and vars_of(self._owner).get(self._name) is self._stored

    def install(self) -> None:
        """Put the wrapper in place. Raises LookupError when there is no such function, TypeError when its owner
        cannot be changed."""
        if self._stored is not None:
            if not self.installed:  # ours lies below a stranger's: only a new Hook may go on top of that
                raise LookupError(f"{self.target} was wrapped by others meanwhile")
            self.active = True
            return
        owner, name = self._find()
        raw = vars_of(owner).get(name, _ABSENT)
        function = raw if raw is not _ABSENT else getattr(owner, name, None)
        store: Callable[[Any], Any] = _same
        if isinstance(raw, (staticmethod, classmethod)):
            function, store = raw.__func__, type(raw)
        if not callable(function):
            raise LookupError(f"{self.target} is no function here")
        stored = store(self._make(self, function))
        self.active = True
        put(owner, name, stored)
        self._owner, self._name, self._raw, self._stored = owner, name, raw, stored

    def restore(self) -> bool:
        """Put the original back; False when somebody has wrapped ours meanwhile: it then stays and does nothing."""
        self.active = False
        if self._stored is None:
            return True
        if not self.installed:
            return False
        if self._raw is _ABSENT:
            remove(self._owner, self._name)
        else:
            put(self._owner, self._name, self._raw)
        self._raw, self._stored = _ABSENT, None
        return True

    def fail(self, error: Exception) -> None:
        """An error of ours, inside the wrapper. The third one takes the hook out."""
        self.errors += 1
        off = self.errors >= STRIKES
        if off:
            self.restore()
        note_fault(self.target, error, off)

    def _find(self) -> tuple[Any, str]:
        module, _, path = self.target.rpartition(":")
        *steps, name = path.split(".")
        if self._owner is not None:
            return self._owner, name
        owner: Any = sys.modules.get(module)
        if owner is None:
            raise LookupError(f"{module} is not loaded in this process")
        for step in steps:
            owner = getattr(owner, step, None)
        if owner is None or not hasattr(owner, name):
            raise LookupError(f"{self.target} is not there in this version")
        return owner, name


def vars_of(owner: Any) -> Any:
    """The owner's own attributes, without inherited ones; empty for an object that keeps none."""
    return getattr(owner, "__dict__", {})


def put(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, type) or not hasattr(owner, "__dict__"):
        setattr(owner, name, value)
    else:
        owner.__dict__[name] = value  # past any __setattr__: torch's modules sort what they are given


def remove(owner: Any, name: str) -> None:
    if isinstance(owner, type) or not hasattr(owner, "__dict__"):
        delattr(owner, name)
    else:
        owner.__dict__.pop(name, None)


def _same(value: Any) -> Any:
    return value


def install_all(hooks: Iterable[Hook], *, needed: Iterable[str] = ()) -> list[str]:
    """Install what is there; gives the targets that are not. Raises GroupUnavailable, everything put back, when one
    of `needed` (targets) is missing."""
    done: list[Hook] = []
    missing: list[str] = []
    wanted = set(needed)
    for hook in hooks:
        try:
            hook.install()
            done.append(hook)
        except (LookupError, TypeError, AttributeError) as error:
            missing.append(hook.target)
            if hook.target in wanted:
                for one in done:
                    one.restore()
                raise GroupUnavailable(str(error.args[0]), "use a version that tokentrace knows") from None
    return missing


def make_wrapper(hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
    """The usual wrapper, of the function's kind."""
    wrapper: Callable[..., Any] = _WRAPPERS[hook.kind or kind_of(function)](hook, function)
    return wrapper


def kind_of(function: Callable[..., Any]) -> str:
    if inspect.isasyncgenfunction(function):
        return "async generator"
    if inspect.iscoroutinefunction(function):
        return "async"
    if inspect.isgeneratorfunction(function):
        return "generator"
    return "sync"


def _begin(hook: Hook, args: _Args, kwargs: _Kwargs) -> Call:
    if hook.before is None:
        return Call(args, kwargs)
    try:
        got = hook.before(args, kwargs)
        return got if isinstance(got, Call) else Call(args, kwargs, got)
    except Exception as error:  # noqa: BLE001 - nothing of ours may reach the host
        hook.fail(error)
        return Call(args, kwargs)


def _end(
    hook: Hook, start: int, args: _Args, kwargs: _Kwargs, result: Any, problem: BaseException | None, context: Any
) -> None:
    end = time_ns()
    if hook.after is not None:
        try:
            hook.after(start, end, args, kwargs, result, problem, context)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the host
            hook.fail(error)


def _sync(hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
    after = hook.after
    if hook.before is None and after is not None:

        @functools.wraps(function)
        def short(*args: Any, **kwargs: Any) -> Any:
            # The usual case, kept as short as it can be.
            if not hook.active:
                return function(*args, **kwargs)
            start = time_ns()
            try:
                result = function(*args, **kwargs)
            except BaseException as problem:
                _end(hook, start, args, kwargs, None, problem, None)
                raise
            end = time_ns()
            try:
                after(start, end, args, kwargs, result, None, None)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the host
                hook.fail(error)
            return result

        return short

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not hook.active:
            return function(*args, **kwargs)
        call = _begin(hook, args, kwargs)
        start = time_ns()
        try:
            result = function(*call.args, **call.kwargs)
        except BaseException as problem:
            _end(hook, start, args, kwargs, None, problem, call.context)
            raise
        _end(hook, start, args, kwargs, result, None, call.context)
        return result

    return wrapper


def _async(hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not hook.active:
            return await function(*args, **kwargs)
        call = _begin(hook, args, kwargs)
        start = time_ns()
        try:
            result = await function(*call.args, **call.kwargs)
        except BaseException as problem:
            _end(hook, start, args, kwargs, None, problem, call.context)
            raise
        _end(hook, start, args, kwargs, result, None, call.context)
        return result

    return wrapper


def _generator(hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not hook.active:
            return (yield from function(*args, **kwargs))
        call = _begin(hook, args, kwargs)
        start = time_ns()
        try:
            result = yield from _watched(hook, function(*call.args, **call.kwargs))
        except BaseException as problem:
            _end(hook, start, args, kwargs, None, problem, call.context)
            raise
        _end(hook, start, args, kwargs, result, None, call.context)
        return result

    return wrapper


def _watched(hook: Hook, items: Any) -> Any:
    """`yield from items`, with the hook told of each item."""
    index, step, sent = 0, items.send, None
    while True:
        try:
            value = step(sent)
        except StopIteration as stop:
            return stop.value
        _told(hook, index, value)
        index += 1
        try:
            sent, step = (yield value), items.send
        except GeneratorExit:
            items.close()
            raise
        except BaseException as error:  # noqa: BLE001 - handed to the host's own generator
            sent, step = error, items.throw


def _async_generator(hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        active = hook.active
        call = _begin(hook, args, kwargs) if active else Call(args, kwargs)
        start, index, problem = time_ns(), 0, None
        items = function(*call.args, **call.kwargs)
        step, sent = items.asend, None
        try:
            while True:
                try:
                    value = await step(sent)
                except StopAsyncIteration:
                    return
                if active:
                    _told(hook, index, value)
                index += 1
                try:
                    sent, step = (yield value), items.asend
                except GeneratorExit:
                    await items.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - handed to the host's own generator
                    sent, step = error, items.athrow
        except BaseException as error:
            problem = error
            raise
        finally:
            if active:
                _end(hook, start, args, kwargs, None, problem, call.context)

    return wrapper


def _told(hook: Hook, index: int, value: Any) -> None:
    if hook.item is not None:
        try:
            hook.item(time_ns(), index, value)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the host
            hook.fail(error)


_WRAPPERS = {"sync": _sync, "async": _async, "generator": _generator, "async generator": _async_generator}


class HookGroup:
    """A group made of hooks: a subclass says which (`hooks`) and which it cannot do without (`needed`, targets)."""

    needed: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.emit: Emit = nowhere
        self.options: Mapping[str, Any] = {}
        self.missing: list[str] = []
        self._hooks: list[Hook] = []

    def hooks(self) -> list[Hook]:
        raise NotImplementedError

    def enable(self, recorder: Emit, options: Mapping[str, Any] | None = None) -> None:
        """Install the hooks. Raises GroupUnavailable when a needed one is not there."""
        if self._hooks:
            return
        self.emit, self.options = recorder, options or {}
        hooks = self.hooks()
        self.missing = install_all(hooks, needed=self.needed)
        self._hooks = hooks

    def disable(self) -> None:
        """Put every function back. A call that is under way still writes its record when it ends."""
        hooks, self._hooks = self._hooks, []
        for hook in reversed(hooks):
            hook.restore()

    def facts(self) -> dict[str, Any]:
        return {"missing": self.missing}
