"""The tokentrace side of the agent: connects to its socket, switches groups, fetches what they wrote."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokentrace.agent import wire
from tokentrace.clock import ClockOffset, measure
from tokentrace.errors import ProbeUnavailable
from tokentrace.probe import Columns, Raw

#: A drain of a long deep pass reads and sends tens of megabytes.
_TIMEOUT_S = 120.0


class AgentClient:
    """Implements `probe.Agent` for one serving process. `begin_pass` forgets the last pass, `end_pass` fetches."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._mutex = threading.Lock()
        self._records: dict[str, list[Raw]] = {}
        self._columns: dict[str, list[Columns]] = {}
        self._facts: dict[str, Any] = {}
        self._users: dict[str, int] = {}
        self.clock = ClockOffset()
        self.dropped = 0
        self.lost = ""

    @classmethod
    def connect(cls, path: Path | str, timeout_s: float = 5.0) -> AgentClient:
        """Raises ProbeUnavailable when no agent answers there."""
        deadline = time.monotonic() + timeout_s
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(path))
                break
            except OSError as error:
                connection.close()
                if time.monotonic() > deadline:
                    raise ProbeUnavailable(
                        f"the agent inside the server does not answer on its socket: {error.strerror}",
                        fix="look at the server's log for lines about tokentrace",
                    ) from error
                time.sleep(0.02)
        connection.settimeout(_TIMEOUT_S)
        client = cls(connection)
        client._facts = dict(client._ask({"cmd": "facts"})["facts"])
        client.clock = measure(lambda: int(client._ask({"cmd": "clock"})["time_ns"]))
        return client

    def close(self) -> None:
        """End the connection: the agent puts everything back. Never raises."""
        with contextlib.suppress(OSError):
            self._connection.close()

    @property
    def process(self) -> str:
        return str(self._facts.get("pid", ""))

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def enable(self, group: str, options: Mapping[str, Any] | None = None) -> None:
        """Several probes may use one group: it is switched off when the last one lets go."""
        if not self._users.get(group):
            self._ask({"cmd": "enable", "group": group, "options": dict(options or {})})
        self._users[group] = self._users.get(group, 0) + 1

    def disable(self, group: str) -> None:
        if not self._users.get(group):
            return
        self._users[group] -= 1
        if not self._users[group]:
            with contextlib.suppress(ProbeUnavailable):
                self._ask({"cmd": "disable", "group": group})

    def begin_pass(self) -> None:
        """Forget what the last pass wrote, here and in the agent."""
        with contextlib.suppress(ProbeUnavailable):
            self._drain()
        self._records, self._columns = {}, {}

    def end_pass(self) -> None:
        """Fetch what was written. What had arrived stays usable when the process is gone; `lost` then says so."""
        try:
            self._drain()
        except ProbeUnavailable as error:
            self.lost = str(error)

    def records(self, group: str) -> Sequence[Raw]:
        return self._records.get(group, [])

    def columns(self, group: str) -> Sequence[Columns]:
        return self._columns.get(group, [])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._mutex:
            header, _ = self._exchange(request)
        return header

    def _exchange(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        try:
            wire.send(self._connection, request)
            header, blob = wire.receive(self._connection)
        except (OSError, wire.Closed) as error:
            raise ProbeUnavailable(
                "the agent's process is gone or does not answer", fix="look at the server's log"
            ) from error
        if header.get("error"):
            raise ProbeUnavailable(str(header["error"]), fix=str(header.get("fix") or ""))
        return header, blob

    def _drain(self) -> None:
        import numpy as np

        with self._mutex:
            header, _ = self._exchange({"cmd": "drain"})
            blocks = []
            for _ in range(int(header.get("blocks", 0))):
                try:
                    blocks.append(wire.receive(self._connection))
                except (OSError, wire.Closed) as error:
                    raise ProbeUnavailable("the agent's process went away while it sent its records") from error
        self.dropped = int(header.get("dropped", 0))
        move, process = self.clock.offset_ns, self.process
        for group, name, start, end, thread, data in header["records"]:
            raw = Raw(group, name, start + move, end + move, thread, process, data)
            self._records.setdefault(group, []).append(raw)
        for about, blob in blocks:
            arrays: dict[str, Any] = {}
            at = 0
            for name, code, size in about["columns"]:
                arrays[name] = np.frombuffer(blob[at : at + size], dtype=np.dtype(code))
                at += size
            if move:
                for name in ("start_ns", "end_ns"):
                    if name in arrays:
                        arrays[name] = arrays[name] + move
            self._columns.setdefault(about["group"], []).append(
                Columns(about["group"], process, about["header"], arrays)
            )
