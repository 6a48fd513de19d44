"""A listener for the small servers of the tests."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TypeVar

L = TypeVar("L", bound="Loopback")


class Loopback:
    """Listens on the loopback and hands each connection to `handle`, on a thread of its own, which then closes it."""

    def __init__(self) -> None:
        self.closing = threading.Event()  # for a handler that waits
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def handle(self, connection: socket.socket) -> None:
        """May raise OSError: the client went away."""
        raise NotImplementedError

    def __enter__(self: L) -> L:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            self.handle(connection)
