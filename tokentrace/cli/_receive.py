"""The option --receive: listen for the server's own spans while a command runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokentrace.errors import UsageError

if TYPE_CHECKING:
    from tokentrace.receive import Receiver


@contextmanager
def receiving(port: str | None) -> Iterator[Receiver | None]:
    """The receiver at that port, None without one. Raises UsageError: no port, or somebody has it."""
    if port is None:
        yield None
        return
    if not (port.isascii() and port.isdecimal() and len(port) < 6):
        raise UsageError(
            f"--receive {port[:40]} is no port", fix='give a number, or put the prompt before --receive: "Hi" --receive'
        )
    from tokentrace import receive

    with receive.open(int(port)) as receiver:
        yield receiver
