"""Columns made beforehand, in which the host's threads write and from which the agent's thread takes.

A row is a place in every column. Its writer takes a place from `free`, fills it in, and puts its number in `ready`:
`list.pop` and `list.append` are atomic, so the host's threads never wait for each other or for us, and a place is seen
by the reader only when all of it is there. Taken places are free again, the last ones first: they are still in the
processor's cache, and what was never needed is never touched again. A writer makes no container and no room: when the
places have run out, its `pop` raises IndexError and the row is counted instead of kept. More room (up to `limit`) is
made by the reader's thread.

The columns are lists: an `array` would hold the numbers in a third of the memory, but turning a number into eight bytes
and back costs more than the whole rest of writing a row (benchmarks/recorder.py). Its bytes are made when rows leave.
"""

from __future__ import annotations

import time
from typing import Any

#: As many places are made, or rows thrown away, at a time before the host's threads get their turn.
PIECE = 2000
#: So long the interpreter is let go between two pieces of work. Without a real pause it is often taken back before a
#: thread that waits for it has woken up.
GAP_S = 0.0005


class Stock:
    """`fields` columns, the first `places` of at most `limit` rows.

    A writer: `at = free.pop()`, `columns[n][at] = …` for every column, `ready.append(at)`. An IndexError in these says
    that there is no room, or that the reader has just gone.
    """

    def __init__(self, fields: int, places: int, limit: int = 0) -> None:
        self.limit = max(places, limit)
        self.columns: tuple[list[Any], ...] = tuple([] for _ in range(fields))
        self.free: list[int] = []
        self.ready: list[int] = []
        self.places = 0
        self._ahead = places
        self.grow()

    def grow(self) -> None:
        """Make room until as many places are free as in the beginning, or `limit` is reached. For one thread, which
        is not the host's."""
        while len(self.free) < self._ahead and self.places < self.limit:
            more = min(PIECE, self.limit - self.places)
            for column in self.columns:
                column.extend([None] * more)
            self.free[:0] = range(self.places, self.places + more)  # behind those that are in use
            self.places += more
            time.sleep(GAP_S)

    def take(self, most: int) -> list[list[Any]]:
        """The columns of the oldest rows, at most `most`, which are forgotten here. For one reader; writers go on."""
        places = self.ready[:most]
        taken = [list(map(column.__getitem__, places)) for column in self.columns]
        self.free += self._forget(places)
        return taken

    def clear(self) -> int:
        """Forget the rows that are there, not those that come meanwhile; gives how many."""
        count = left = len(self.ready)
        while left > 0:
            gone = self._forget(self.ready[: min(left, PIECE)])
            self.free += gone
            left -= len(gone)
            if left > 0:
                time.sleep(GAP_S)
        return count

    def close(self) -> None:
        """Forget everything; from now on no row finds room."""
        self.limit = 0
        self.free.clear()
        while self.columns[-1]:
            for column in self.columns:
                del column[-PIECE:]
            time.sleep(GAP_S)
        self.ready.clear()

    def _forget(self, places: list[int]) -> list[int]:
        """Let go what rows hold, which is in the last column; numbers stay until the place is used again."""
        del self.ready[: len(places)]
        held = self.columns[-1]
        for at in places:
            held[at] = None
        return places

    def __len__(self) -> int:
        return len(self.ready)
