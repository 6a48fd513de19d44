"""The tokentrace side of the agent: asks for groups, and keeps what the serving process hands over.

One thread receives, so that the agent never waits for us; what arrives is decoded when it is asked for, after the
request, not while the reply streams. Times are moved to our clock. When the serving process dies, what had arrived by
then stays.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokentrace.clock import ClockOffset, measure
from tokentrace.errors import EngineError, ProbeUnavailable
from tokentrace.host import proc
from tokentrace.probe import Columns, Raw

PROTOCOL = 2
_HEAD = struct.Struct("!II")
#: struct ucred: pid, uid, gid.
_CREDENTIALS = struct.Struct("3i")
#: Switching a group on may wait for a step of the engine to end; reading a long profile takes seconds.
_ANSWER_S = 60.0
_REQUESTS = ("http:", "engine:request ")
_LOST_FIX = "look at the end of the server's log, and start it again"
#: The agent gives up a reader that takes nothing for 2 s (SEND_S in tokentrace/agent/control.py).
LET_GO = (
    "the agent let go of the connection, as it does for instance when tokentrace does not read for 2 s; "
    "the server runs on",
    "attach again",
)
#: A process that somebody has stopped for so long is not waited for: it answers when it is let go on, if ever.
_STANDS_S = 1.0
_LOOK_S = 0.1
_LOOK_ANSWER_S = 1.0
#: A program that ends may close its sockets first.
_END_S = 2.0


class AgentClient:
    """Implements `probe.Agent` for one serving process; a context manager that closes the connection.

    A pass is what lies between `begin_pass` and `end_pass`. Several probes may ask for one group: it stays on until
    the last of them lets go.
    """

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._connection = connection
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._asking = threading.Lock()
        self._asked = 0
        self._arrived: list[tuple[bytes, bytes]] = []  # frames of records and columns, not decoded yet
        self._records: dict[str, list[Raw]] = {}
        self._columns: dict[str, list[Columns]] = {}
        self._users: dict[str, int] = {}
        self._refused: dict[str, Any] | None = None
        self._closed = False
        self._stands = False  # it was stopped when it was asked last
        self._pid = self.pid_here
        #: Why the agent is gone, "" while it is there, and what to do then.
        self.lost = ""
        self.lost_fix = _LOST_FIX
        #: Records that found no room in the agent's buffer during this pass.
        self.dropped = 0
        #: What went wrong in the agent's hooks: {"hook", "error", "off"}.
        self.faults: list[dict[str, Any]] = []
        self.clock = ClockOffset()
        self._reader = threading.Thread(target=self._receive, name="tokentrace-agent-client", daemon=True)
        self._reader.start()
        self._facts: dict[str, Any] = self._ask("hello", timeout_s=timeout_s)["facts"]
        if self._facts.get("protocol") != PROTOCOL:
            raise EngineError(
                f"the agent in process {self._facts.get('pid')} speaks protocol {self._facts.get('protocol')}, "
                f"this tokentrace {PROTOCOL}",
                fix="install the same version of tokentrace on both sides and start the server again",
            )
        self._measure_clock()

    @classmethod
    def connect(cls, socket_path: str | Path, timeout_s: float = 5.0) -> AgentClient:
        """Connect to an agent, waiting up to `timeout_s` for its socket to appear.

        Raises EngineError: nobody listens there, the socket is another user's, or another tokentrace is connected.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(str(socket_path))
                break
            except (FileNotFoundError, ConnectionRefusedError) as error:
                connection.close()
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                raise EngineError(
                    f"no agent listens on {socket_path}", fix="start the server with tokentrace's agent in it"
                ) from error
            except OSError as error:
                connection.close()
                raise EngineError(
                    f"the agent's socket {socket_path} cannot be used: {error.strerror or error}",
                    fix="run tokentrace as the user who runs the server",
                ) from error
        try:
            return cls(connection, max(1.0, deadline - time.monotonic()))
        except ProbeUnavailable as error:
            connection.close()
            raise EngineError(str(error), fix=error.fix) from error
        except EngineError:
            connection.close()
            raise

    def __enter__(self) -> AgentClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the agent then puts everything back. Safe to call twice; never raises."""
        self._closed = True
        self._gone("the connection to the agent was closed")
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    @property
    def process(self) -> str:
        """Key of the serving process: its pid as text."""
        return str(self._facts.get("pid", ""))

    @property
    def pid_here(self) -> int:
        """Its pid as our own /proc names it, 0 when that cannot be told; in a container it calls itself otherwise.

        By SO_PEERCRED (unix(7)) the kernel tells who listens on the socket, which is the serving process itself.
        """
        try:
            told = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return int(_CREDENTIALS.unpack(told)[0])
        except (OSError, AttributeError, struct.error):
            return 0

    @property
    def members(self) -> list[AgentClient]:
        """The processes this speaks for: one."""
        return [self]

    def facts(self) -> Mapping[str, Any]:
        """What the serving process says of itself now; the last known when it is gone."""
        if not self.lost:
            with contextlib.suppress(ProbeUnavailable):
                self._facts = self._ask("facts")["facts"]
                self._note(self._facts)
        return self._facts

    def functions(self) -> Mapping[str, int]:
        """Which object each function of the engine is: the same before and after a trace. Raises ProbeUnavailable."""
        found: Mapping[str, int] = self._ask("functions")["functions"]
        return found

    def enable(self, group: str, options: Mapping[str, Any] | None = None) -> None:
        """Switch a group on. The first caller's options hold. Raises ProbeUnavailable with the agent's reason."""
        if not self._users.get(group):
            self._ask("enable", group=group, options=dict(options or {}))
        self._users[group] = self._users.get(group, 0) + 1

    def disable(self, group: str) -> None:
        """Let go of a group; the last one switches it off. Never raises."""
        users = self._users.get(group, 0)
        if users <= 0:
            return
        self._users[group] = users - 1
        if users == 1:
            with contextlib.suppress(ProbeUnavailable):
                self._ask("disable", group=group)

    def begin_pass(self) -> None:
        """Forget everything recorded so far, here and there. Raises EngineError when the serving process is gone."""
        try:
            self._measure_clock()
            self._ask("mark")
        except ProbeUnavailable as error:
            raise EngineError(str(error), fix=error.fix) from error
        finally:
            # The answer to "mark" comes behind all that was sent before it.
            self._arrived.clear()
            self._records, self._columns = {}, {}
            self.dropped, self.faults = 0, []

    def end_pass(self, request_id: str = "", settle_s: float = 0.5) -> None:
        """Fetch what is left. Never raises: when the serving process is gone, `lost` says so.

        The reply's last byte reaches the client before the server has ended the request and the step it came from:
        up to `settle_s` is waited for those, by `request_id` for that request only.
        """
        deadline = time.monotonic() + settle_s
        try:
            waiting = self._waiting(request_id)
            while waiting and time.monotonic() < deadline:
                time.sleep(0.002)
                waiting &= self._waiting(request_id)
            answer = self._ask("drain", columns=True)
        except ProbeUnavailable as error:
            if self._stands:
                self._gone(str(error), error.fix)  # what it has not sent is not in this pass
            return
        self._note(answer)

    def look(self) -> None:
        """Have `dropped` and `faults` be what they are now, in a pass without end. Never raises: an agent that is busy
        for a second is asked another time."""
        with contextlib.suppress(ProbeUnavailable):
            self._note(self._ask("drain", timeout_s=_LOOK_ANSWER_S, may_fail=True))

    def _note(self, told: Mapping[str, Any]) -> None:
        self.dropped = int(told.get("dropped") or 0)
        self.faults = list(told.get("faults") or ())

    def records(self, group: str) -> Sequence[Raw]:
        """What the group wrote in this pass and has arrived, in the order in which it ended."""
        self._decode()
        return self._records.get(group, [])

    def columns(self, group: str) -> Sequence[Columns]:
        """The group's columns of this pass; they arrive with `end_pass`."""
        self._decode()
        return self._columns.get(group, [])

    def take(self) -> list[Raw]:
        """What has arrived since the pass began or since this was asked last; forgotten here. For long watching."""
        self._decode()
        found = [raw for rows in self._records.values() for raw in rows]
        self._records = {}
        return found

    def take_columns(self, group: str) -> list[Columns]:
        """The columns of a group that have arrived, forgotten here; `fetch` makes them come."""
        self._decode()
        return self._columns.pop(group, [])

    def fetch(self) -> None:
        """Have columns sent that are ready. Never raises."""
        with contextlib.suppress(ProbeUnavailable):
            self._ask("drain", columns=True)

    def _waiting(self, request_id: str) -> set[str]:
        """What has begun in the agent's process and has not ended; of requests only ours, if we know which it is."""
        waiting = {str(one) for one in self._ask("drain")["open"]}
        return {one for one in waiting if not request_id or not one.startswith(_REQUESTS) or request_id in one}

    def _measure_clock(self) -> None:
        self.clock = measure(lambda: int(self._ask("clock")["time_ns"]))

    def _ask(
        self, command: str, *, timeout_s: float = _ANSWER_S, may_fail: bool = False, **more: Any
    ) -> dict[str, Any]:
        """Send one command and wait for its answer. Raises ProbeUnavailable: refused, or the agent is gone; one that
        gives no answer in time counts as gone unless this `may_fail`."""
        with self._asking:
            if self.lost:
                raise self._why_lost()
            if self._stands and proc.is_stopped(self._pid):
                raise self._why_stopped()  # what it does not read would fill the connection
            self._asked += 1
            text = json.dumps({"id": self._asked, "cmd": command, **more}).encode()
            try:
                self._connection.sendall(_HEAD.pack(len(text), 0) + text)
            except OSError:
                # A refusal may have arrived before the connection was closed; the reader knows, and why it was.
                self._reader.join(_END_S + 1.0)
                if not self.lost:
                    self._gone(*self._why_closed())
            answer = self._answer(timeout_s, may_fail)
        if not answer.get("ok"):
            raise ProbeUnavailable(str(answer.get("reason")), fix=str(answer.get("fix") or ""))
        return answer

    def _answer(self, timeout_s: float, may_fail: bool) -> dict[str, Any]:
        """The answer to what was asked last. Raises ProbeUnavailable: there is none in time, or the process is stopped,
        which costs it this answer and not the connection."""
        begin = time.monotonic()
        goes_until = begin - _STANDS_S if self._stands else begin
        while True:
            try:
                answer = self._answers.get(timeout=0 if self._stands else _LOOK_S)
            except queue.Empty:
                now = time.monotonic()
                if not (self._pid and proc.is_stopped(self._pid)):
                    goes_until, self._stands = now, False
                if now - goes_until >= _STANDS_S:
                    self._stands = True
                    raise self._why_stopped() from None
                if now - begin < timeout_s:
                    continue
                late = f"the agent did not answer within {timeout_s:.0f} s"
                if may_fail:
                    raise ProbeUnavailable(late) from None
                self._gone(late)
                answer = None
            if answer is None:
                raise self._why_lost()
            if answer.get("id") == self._asked:
                self._stands = False
                return answer

    def _why_stopped(self) -> ProbeUnavailable:
        fix = f"let it go on: kill -CONT {self._pid}"
        return ProbeUnavailable("the process with the agent in it is stopped", fix=fix)

    def _why_lost(self) -> ProbeUnavailable:
        if self._refused is not None:
            return ProbeUnavailable(str(self._refused["refused"]), fix=str(self._refused.get("fix") or ""))
        return ProbeUnavailable(self.lost, fix=self.lost_fix)

    def _why_closed(self) -> tuple[str, str]:
        """Why the agent's end of the connection is closed, and what to do: its process has ended, or lives and let go.
        One that cannot be looked at is taken to have ended."""
        deadline = time.monotonic() + _END_S
        # What was refused, or closed by us, needs no reason.
        while self._pid and not (self._closed or self._refused or proc.is_ending(self._pid)):
            if time.monotonic() > deadline:
                return LET_GO
            time.sleep(0.01)
        return "the process with the agent in it has ended", _LOST_FIX

    def _receive(self) -> None:
        """The reader's thread: answers go to whoever asked, the rest is kept as it came."""
        file = self._connection.makefile("rb")
        try:
            while True:
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    break
                size, blob_size = _HEAD.unpack(head)
                header, blob = file.read(size), file.read(blob_size)
                if len(header) < size or len(blob) < blob_size:
                    break
                if header.startswith(b'{"push"'):
                    self._arrived.append((header, blob))
                    continue
                answer = json.loads(header)
                if "refused" in answer:
                    self._refused = answer
                else:
                    self._answers.put(answer)
        except (OSError, ValueError):
            pass
        self._gone(*self._why_closed())

    def _gone(self, why: str, fix: str = _LOST_FIX) -> None:
        if not self.lost:
            self.lost, self.lost_fix = why, fix
        self._answers.put(None)

    def _decode(self) -> None:
        import numpy as np

        while self._arrived:
            text, blob = self._arrived.pop(0)
            header = json.loads(text)
            move, process = self.clock.offset_ns, self.process
            if header["push"] == "records":
                starts, ends, threads = np.frombuffer(blob, dtype=np.int64).reshape(3, -1).tolist()
                rows = zip(header["groups"], header["names"], starts, ends, threads, header["data"], strict=True)
                for group, name, start, end, thread, data in rows:
                    raw = Raw(group, name, start + move, end + move, thread, process, data)
                    self._records.setdefault(group, []).append(raw)
                continue
            arrays: dict[str, Any] = {}
            at = 0
            for name, code, size in header["arrays"]:
                values = np.frombuffer(blob[at : at + size], dtype=np.dtype(code))
                arrays[name] = values + move if move and name in ("start_ns", "end_ns") else values
                at += size
            group = header["group"]
            self._columns.setdefault(group, []).append(Columns(group, process, header["header"], arrays))
