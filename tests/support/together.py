"""Work that mostly waits, begun at the same time, for tests that each look at one outcome of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


@contextmanager
def together(work: Mapping[K, Callable[[], T]]) -> Iterator[dict[K, Future[T]]]:
    """All of `work` runs on threads of its own: together it takes as long as the longest of it.

    For limits that are sat out. What patches this process while it runs would reach all of it.
    """
    with ThreadPoolExecutor(len(work)) as pool:
        yield {name: pool.submit(one) for name, one in work.items()}
