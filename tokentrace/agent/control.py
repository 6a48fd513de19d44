"""The private socket through which one tokentrace process switches the groups on and gets what they recorded.

A unix socket (mode 0600 in a folder of mode 0700); the peer's uid is checked; one client at a time, a second one is
told who is there. Everything happens on one daemon thread, which sleeps as long as nobody is connected. While a group
is on, records leave every `PUSH_S`, so that a process that is killed takes little with it. When the client goes away,
in whatever manner, all groups are switched off and what they hold is forgotten.

A frame is two big-endian 32-bit lengths, then the header (JSON) and a blob of those lengths. The client sends
`{"id": n, "cmd": …}` and gets `{"id": n, "ok": true, …}` or `{"id": n, "ok": false, "reason": …, "fix": …}`; between
them arrive columns of one length, `{"push": "records", "groups": […], "names": […], "data": […]}` with start_ns, end_ns
and thread as 64-bit numbers in the blob, one column after the other, and
`{"push": "columns", "group": …, "header": …, "arrays": [[name, type code, bytes], …]}` with the arrays in the blob.

    hello, facts            what this process is
    functions               which object each of the engine's functions is
    clock                   its time
    enable group options    disable group
    mark                    forget what is here: a new pass begins
    drain                   send what is left, columns too; says what is still open
    stop                    switch everything off
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from tokentrace.agent import core, wrap
from tokentrace.agent.core import Group, Recorder, Records
from tokentrace.agent.listening import listen, peer, readable
from tokentrace.agent.stock import GAP_S

PROTOCOL = 2
PUSH_S = 0.05
#: A client that does not read for this long is taken for gone.
SEND_S = 2.0
#: A client that was refused has this long to take note.
REFUSE_S = 0.2
#: Records in one piece of JSON, and token ids in them: making it is one call, which holds the interpreter.
CHUNK = 200
IDS = 2000
#: A guest (see `leave`) that nobody has connected to for this long goes away by itself.
ALONE_S = 30.0
_HEAD = struct.Struct("!II")
_MAX_REQUEST = 1 << 20


class _Gone(Exception):
    """The client has gone away, or does not follow."""


class Server:
    """The agent of one process. `start` opens the socket and returns."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.recorder = Recorder(0)  # nobody reads
        self.groups: dict[str, Group] = {}
        self.on: set[str] = set()
        self.pid = os.getpid()
        self._client: socket.socket | None = None
        self._client_pid = 0
        self._buffer = bytearray()
        self.listener = listen(path)
        #: Takes the agent out of the process when nobody is connected any more; None, it stays and waits.
        self.guest: Callable[[Server], None] | None = None
        self._alone_until = time.monotonic() + ALONE_S
        self._commands: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "hello": self._facts,
            "facts": self._facts,
            "functions": lambda request: {"functions": core.engine_functions()},
            "clock": lambda request: {"time_ns": time.time_ns()},
            "enable": self._enable,
            "disable": self._disable,
            "mark": self._mark,
            "drain": self._drain,
            "stop": self._stop,
        }

    def start(self) -> None:
        threading.Thread(target=self._run, name="tokentrace-agent", daemon=True).start()

    def abandon(self) -> None:
        """In a forked child: the sockets are the parent's. Put the functions back and forget everything."""
        for held in (self._client, self.listener):
            if held is not None:
                held.close()
        self._client = None
        for name in sorted(self.on):
            with contextlib.suppress(Exception):
                self.groups[name].disable()
        self._forget()

    def _run(self) -> None:
        listener = self.listener
        while True:
            client = self._client
            waiting = [listener] if client is None else [listener, client]
            timeout = PUSH_S if client is not None and self.on else None
            if self.guest is not None and client is None:
                timeout = self._alone_until - time.monotonic()
                if timeout <= 0:
                    self.guest(self)
                    return
            try:
                ready = readable(waiting, timeout)
                if listener in ready:
                    self._accept()
                if client is not None and client in ready and client is self._client:  # it may just have been replaced
                    self._read(client)
                if self._client is not None and self.on:
                    self._tend()
                    self._push()
            except _Gone:
                self._drop()
            except Exception as error:  # noqa: BLE001 - the thread must live on, and nobody else hears of it
                wrap.note_fault("agent", error, True)
                self._drop()
                if listener.fileno() < 0:
                    return
                time.sleep(0.1)

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.settimeout(SEND_S)
        pid, uid = peer(connection)
        reason = ""
        if uid not in (-1, os.geteuid()):
            reason = f"this agent belongs to user {os.geteuid()}, you are {uid}"
        elif self._client is not None and not self._gone_quietly():
            reason = f"another tokentrace (process {self._client_pid}) is connected to this process"
        if reason:
            fix = "end that one first" if uid in (-1, os.geteuid()) else "run tokentrace as that user"
            with contextlib.suppress(OSError, _Gone):
                _send(connection, {"refused": reason, "fix": fix})
                # Closing with a request unread would reset the connection and take our answer with it.
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(REFUSE_S)
                while connection.recv(4096):
                    pass
            connection.close()
            return
        self._client, self._client_pid = connection, pid
        self._buffer.clear()
        self.recorder = Recorder()

    def _gone_quietly(self) -> bool:
        """Whether the client at hand has closed its end, which may arrive together with its successor."""
        assert self._client is not None
        try:
            if readable([self._client], 0) and not self._client.recv(1, socket.MSG_PEEK):
                self._drop()
        except OSError:
            self._drop()
        return self._client is None

    def _read(self, client: socket.socket) -> None:
        try:
            data = client.recv(1 << 16)
        except OSError as error:
            raise _Gone from error
        if not data:
            raise _Gone
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            size, blob = _HEAD.unpack_from(self._buffer)
            if size + blob > _MAX_REQUEST:
                raise _Gone
            end = _HEAD.size + size + blob
            if len(self._buffer) < end:
                return
            request = json.loads(bytes(self._buffer[_HEAD.size : _HEAD.size + size]))
            del self._buffer[:end]
            self._answer(client, request)

    def _answer(self, client: socket.socket, request: dict[str, Any]) -> None:
        answer: dict[str, Any]
        try:
            command = self._commands.get(str(request.get("cmd")))
            if command is None:
                raise core.GroupUnavailable(f"the agent knows no command {request.get('cmd')!r}")
            answer = {"ok": True, **command(request)}
        except _Gone:
            raise
        except Exception as error:  # noqa: BLE001 - told to the client, which may go on with other groups
            told = str(error) or type(error).__name__
            plain = hasattr(error, "fix")
            answer = {
                "ok": False,
                "reason": told if plain else f"{type(error).__name__}: {told}",
                "fix": str(getattr(error, "fix", "")),
            }
        _send(client, {"id": request.get("id"), **answer})

    # --- commands

    def _facts(self, request: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {
            "protocol": PROTOCOL,
            "pid": self.pid,
            "python": sys.version.split()[0],
            "groups": core.group_names(),
            "on": sorted(self.on),
            "dropped": self.recorder.dropped,
            "faults": list(wrap.faults),
            "time_ns": time.time_ns(),
        }
        told["agent"] = {name: facts() for name, one in self.groups.items() if (facts := getattr(one, "facts", None))}
        told.update(core.engine_facts())
        return {"facts": told}

    def _enable(self, request: dict[str, Any]) -> dict[str, Any]:
        name = str(request.get("group"))
        if name not in self.groups:
            self.groups[name] = core.make_group(name)
        self.groups[name].enable(self.recorder.emitter(name), request.get("options") or {})
        self.on.add(name)
        return {}

    def _disable(self, request: dict[str, Any]) -> dict[str, Any]:
        name = str(request.get("group"))
        if name in self.on:
            self.on.discard(name)
            self.groups[name].disable()
        return {}

    def _mark(self, request: dict[str, Any]) -> dict[str, Any]:
        self.recorder.clear()
        for one in self.groups.values():
            for _ in _bulk(one):
                pass
        return {"time_ns": time.time_ns()}

    def _drain(self, request: dict[str, Any]) -> dict[str, Any]:
        """Records always; with "columns" also those of groups that are off by now or have no recording running."""
        assert self._client is not None
        self._push()
        if request.get("columns"):
            for name, one in self.groups.items():
                for header, arrays in _bulk(one):
                    listed = [[column, code, len(data)] for column, (code, data) in arrays.items()]
                    blob = b"".join(data for _, data in arrays.values())
                    _send(self._client, {"push": "columns", "group": name, "header": header, "arrays": listed}, blob)
        waiting = [f"{name}:{what}" for name, one in self.groups.items() for what in _open(one)]
        return {"dropped": self.recorder.dropped, "open": waiting, "on": sorted(self.on), "faults": list(wrap.faults)}

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        self._all_off()
        return {}

    # --- records

    def _tend(self) -> None:
        core.tick()
        for name in self.on:
            tend = getattr(self.groups[name], "tend", None)
            if tend is not None:
                tend()

    def _push(self) -> None:
        assert self._client is not None
        pause = 0.0
        while (records := self.recorder.take(CHUNK)).data:
            for header, blob in messages(records):
                if pause:
                    time.sleep(pause)  # lets the host's threads have the interpreter
                pause = GAP_S
                _send(self._client, header, blob)
            if len(records.data) < CHUNK:
                return

    def _drop(self) -> None:
        """The client has gone: everything off, everything forgotten."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
            self._alone_until = 0.0
        self._buffer.clear()
        self._all_off()
        self._forget()

    def _all_off(self) -> None:
        for name in sorted(self.on):
            try:
                self.groups[name].disable()
            except Exception as error:  # noqa: BLE001 - the others must be put back all the same
                wrap.note_fault(name, error, True)
        self.on.clear()

    def _forget(self) -> None:
        self.groups.clear()
        self.on.clear()
        self.recorder.close()
        self.recorder = Recorder(0)
        wrap.faults.clear()


def _bulk(group: Group) -> list[core.Bulk]:
    bulk = getattr(group, "bulk", None)
    return list(bulk()) if bulk is not None else []


def _open(group: Group) -> list[str]:
    waiting = getattr(group, "open", None)
    return list(waiting()) if waiting is not None else []


def messages(records: Records) -> Iterator[tuple[dict[str, Any], bytes]]:
    """(header, blob) of each piece of these records."""
    numbers = [array("q", column) for column in (records.start_ns, records.end_ns, records.threads)]
    for first, end in pieces(records.data):
        header = {
            "push": "records",
            "groups": records.groups[first:end],
            "names": records.names[first:end],
            "data": records.data[first:end],
        }
        yield header, b"".join(column[first:end].tobytes() for column in numbers)


def pieces(data: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """(first, end) of pieces with about IDS token ids each: a prompt's record may have thousands of them, and a step's
    has one for each request."""
    first = ids = 0
    for at in [at for at, one in enumerate(data) if "ids" in one]:
        found = data[at]["ids"]
        if isinstance(found, dict):  # by request; a step has four of that kind
            ids += 4 * len(found)
        elif isinstance(found, (list, tuple)):
            ids += len(found)
        if ids >= IDS:
            yield first, at + 1
            first, ids = at + 1, 0
    if first < len(data):
        yield first, len(data)


def packed(header: dict[str, Any]) -> bytes:
    """As JSON. What the groups write has no circles."""
    return _encode(header).encode("utf-8", "replace")


def _send(connection: socket.socket, header: dict[str, Any], blob: bytes = b"") -> None:
    text = packed(header)
    try:
        connection.sendall(_HEAD.pack(len(text), len(blob)) + text)
        if blob:
            connection.sendall(blob)
    except OSError as error:
        raise _Gone from error


def _plain(value: Any) -> Any:
    """What JSON has no type for: numbers of other libraries as numbers, sets as lists, the rest as text."""
    if isinstance(value, (set, frozenset, bytes, bytearray)):
        return sorted(value, key=str) if isinstance(value, (set, frozenset)) else value.decode("utf-8", "replace")
    index = getattr(value, "__index__", None)
    if index is not None:
        with contextlib.suppress(Exception):
            return index()
    return str(value)


_encode = json.JSONEncoder(check_circular=False, default=_plain, separators=(",", ":")).encode
