"""A listener for the small servers of the tests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

L = TypeVar("L", bound="Loopback")


class Loopback:
    """Listens on the loopback and hands each connection to `handle`, on a thread of its own, which then closes it."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.closing = threading.Event()  # for a handler that waits
        self.connections = 0
        self._listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.host, self.port = host, self._listener.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._threads: list[threading.Thread] = []

    def handle(self, connection: socket.socket) -> None:
        """May raise OSError: the client went away."""
        raise NotImplementedError

    def __enter__(self: L) -> L:
        self._start(self._serve)
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._start(self._one, connection)

    def _one(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            self.handle(connection)
