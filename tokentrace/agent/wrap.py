"""Replaces functions at run time and puts the identical objects back.

What a hook does before and after the original may fail; that never reaches the host. After `MAX_ERRORS` failures the
hook does nothing any more and the reason is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

MAX_ERRORS = 3


class Patches:
    """The functions a group has replaced."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []
        self.errors: list[str] = []

    def function(self, module: str, owner: str, name: str, make: Callable[[Any], Any]) -> bool:
        """Replace `module:owner.name` by `make(original)`. False when that module is not loaded or lacks it."""
        holder: Any = sys.modules.get(module)
        holder = getattr(holder, owner, None) if holder is not None and owner else holder
        original = vars(holder).get(name) if holder is not None else None
        if not callable(original):
            return False
        wrapper = make(original)
        setattr(holder, name, wrapper)
        self._undo.append((holder, name, original, wrapper))
        return True

    def around(
        self,
        module: str,
        owner: str,
        name: str,
        after: Callable[[int, int, tuple[Any, ...], Any], None],
        before: Callable[[tuple[Any, ...]], None] | None = None,
    ) -> bool:
        """Call `after(start_ns, end_ns, arguments, result)` behind every call (`before(arguments)` ahead of it)."""
        return self.function(module, owner, name, lambda original: self._plain(original, after, before))

    def around_async(
        self, module: str, owner: str, name: str, after: Callable[[int, int, tuple[Any, ...], Any], None]
    ) -> bool:
        return self.function(module, owner, name, lambda original: self._awaited(original, after))

    def guard(self, hook: Callable[..., None], *args: Any) -> None:
        """Run a hook; its failure is counted, not raised."""
        if len(self.errors) >= MAX_ERRORS:
            return
        try:
            hook(*args)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the host
            self.errors.append(f"{type(error).__name__}: {error}"[:200])

    def restore(self) -> None:
        """Put every original back. Where somebody wrapped after us their wrapper stays, and ours does nothing."""
        for holder, name, original, wrapper in reversed(self._undo):
            if vars(holder).get(name) is wrapper:
                setattr(holder, name, original)
        self._undo.clear()

    def _plain(self, original: Any, after: Any, before: Any) -> Any:
        from time import time_ns

        guard = self.guard

        def call(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                guard(before, args)
            start = time_ns()
            result = original(*args, **kwargs)
            guard(after, start, time_ns(), args, result)
            return result

        call.__wrapped__ = original  # type: ignore[attr-defined]
        return call

    def _awaited(self, original: Any, after: Any) -> Any:
        from time import time_ns

        guard = self.guard

        async def call(*args: Any, **kwargs: Any) -> Any:
            start = time_ns()
            try:
                return await original(*args, **kwargs)
            finally:
                guard(after, start, time_ns(), args, None)

        call.__wrapped__ = original  # type: ignore[attr-defined]
        return call
