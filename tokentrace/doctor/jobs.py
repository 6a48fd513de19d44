"""Work on threads of their own that nobody has to wait for: what hangs is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Job:
    """A function on a daemon thread, and what became of it."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, name=f"tokentrace-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - told as unknown by whoever asked
            self.error = error

    def wait(self, seconds: float) -> bool:
        """Has it ended?"""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()


def within(seconds: float, name: str, work: Callable[[], T], otherwise: T) -> T:
    """What `work` gives, or `otherwise` when it has not ended after that time or has failed."""
    found: list[T] = []
    Job(name, lambda: found.append(work())).wait(seconds)
    return found[0] if found else otherwise
