"""The control socket: one tokentrace process of the same user asks, switches groups, and drains.

Commands: facts, clock, enable {group, options}, disable {group}, drain. Every answer is one frame, but drain: a frame
with the records, then one for each block of columns. The end of the connection switches everything off.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tokentrace.agent.core import Groups, Recorder
from tokentrace.agent.wire import Closed, receive, send

_CREDENTIALS = struct.Struct("3i")


class Control:
    """The listening side. `start` returns once the socket is there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._recorder = Recorder()
        self._groups = Groups(self._recorder)
        self._busy = threading.Lock()

    def start(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            Path(self._path).unlink()
        listener = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)  # the socket is 0600 from its first moment
        try:
            listener.bind(self._path)
        finally:
            os.umask(before)
        listener.listen(4)
        threading.Thread(target=self._accept, args=(listener,), name="tokentrace-agent", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="tokentrace-agent", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(peer)[1] != os.getuid():
                return
            if not self._busy.acquire(blocking=False):
                with contextlib.suppress(OSError):
                    send(connection, {"error": "another tokentrace is attached to this process", "fix": "end it first"})
                return
            try:
                self._recorder.clear()
                while True:
                    request, _ = receive(connection)
                    self._answer(connection, request)
            except (Closed, OSError):
                pass
            finally:
                self._groups.disable_all()
                self._groups.bulk()
                self._recorder.clear()
                self._busy.release()

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        command = request.get("cmd")
        try:
            if command == "clock":
                send(connection, {"time_ns": time.time_ns()})
            elif command == "facts":
                send(connection, {"facts": _facts(), "errors": self._groups.errors()})
            elif command == "enable":
                self._groups.enable(str(request.get("group")), request.get("options"))
                send(connection, {"ok": True})
            elif command == "disable":
                self._groups.disable(str(request.get("group")))
                send(connection, {"ok": True})
            elif command == "drain":
                self._drain(connection)
            else:
                send(connection, {"error": f"unknown command {command!r}", "fix": "use the same tokentrace everywhere"})
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - answered, never raised into the host
            reason = str(error) or type(error).__name__
            send(connection, {"error": reason, "fix": str(getattr(error, "fix", ""))})

    def _drain(self, connection: socket.socket) -> None:
        bulk = self._groups.bulk()
        records = self._recorder.take()
        send(connection, {"records": records, "dropped": self._recorder.dropped, "blocks": len(bulk)})
        for group, header, columns in bulk:
            layout = [[name, code, len(data)] for name, (code, data) in columns.items()]
            blob = b"".join(data for _, data in columns.values())
            send(connection, {"group": group, "header": header, "columns": layout}, blob)


def _facts() -> dict[str, Any]:
    """What this process says of itself; the local engine says more than Python does."""
    facts: dict[str, Any] = {"pid": os.getpid(), "python": sys.version.split()[0]}
    module = sys.modules.get("tokentrace.engines.local.engine")
    engine = module.current() if module is not None else None
    if engine is not None:
        facts.update(engine.facts())
    return facts
