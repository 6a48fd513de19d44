"""Several serving processes as one agent: a server whose HTTP, scheduler and model run in processes of their own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokentrace.agent_client._one import AgentClient
from tokentrace.clock import ClockOffset
from tokentrace.errors import EngineError, ProbeUnavailable
from tokentrace.probe import Columns, Raw


class AgentGroup:
    """Implements `probe.Agent` for all processes at once; a context manager that closes every connection.

    A group that is asked for is switched on in every process that has something to watch for it. Each process keeps
    its own clock offset. A process that ends takes nothing with it but what it had not sent yet; `lost` says so.
    """

    def __init__(self, clients: Iterable[AgentClient]) -> None:
        self.members: list[AgentClient] = list(clients)
        if not self.members:
            raise EngineError("no agent is there to talk to", fix="start the server with tokentrace installed in it")
        self._enabled: dict[str, list[list[AgentClient]]] = {}
        self._options: dict[str, Mapping[str, Any] | None] = {}
        self._growing = threading.Lock()

    def __enter__(self) -> AgentGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every connection; the agents then put everything back. Safe to call twice; never raises."""
        for client in self.members:
            client.close()

    @property
    def process(self) -> str:
        """Key of the process that takes the requests."""
        return self.members[0].process

    @property
    def lost(self) -> str:
        """Why processes are gone, "" while all are there."""
        return "; ".join(f"process {client.process}: {client.lost}" for client in self.members if client.lost)

    @property
    def dropped(self) -> int:
        """Records that found no room in the agents' buffers during this pass."""
        return sum(client.dropped for client in self.members)

    @property
    def faults(self) -> list[dict[str, Any]]:
        """What went wrong in the agents' hooks, with the process it happened in."""
        return [{**fault, "pid": client.process} for client in self.members for fault in client.faults]

    @property
    def clock(self) -> ClockOffset:
        """The least certain of the clocks."""
        return max((client.clock for client in self.members), key=lambda clock: (clock.bound_ns, abs(clock.offset_ns)))

    def facts(self) -> Mapping[str, Any]:
        """What the server says of itself: all processes' facts put together, and each one's under `processes`."""
        told = [dict(client.facts()) for client in self.members]
        merged: dict[str, Any] = {}
        for one in reversed(told):  # the first process wins
            versions = {**merged.get("versions", {}), **(one.get("versions") or {})}
            merged = {**merged, **one, "versions": versions}
        hooks = _hooks(told)
        kept = ("pid", "name", "rank", "runs_model", "role", "dropped")
        merged["processes"] = [{name: one[name] for name in kept if name in one} for one in told]
        merged["pids"] = [one.get("pid") for one in told]
        merged["missing_hooks"] = sorted(f"{purpose} ({why})" for purpose, why in hooks.items() if why)
        merged.pop("agent", None)
        return merged

    def enable(self, group: str, options: Mapping[str, Any] | None = None) -> None:
        """Switch a group on wherever it has something to watch. Raises ProbeUnavailable when that is nowhere."""
        refused = self.want(group, options)
        if not self._enabled[group][-1]:
            self.disable(group)
            # The one with advice knows most.
            raise next((error for error in refused if error.fix), refused[0])

    def want(self, group: str, options: Mapping[str, Any] | None = None) -> list[ProbeUnavailable]:
        """Like `enable`, for a group that may find something to watch only in a process that joins later. Gives the
        refusals."""
        on: list[AgentClient] = []
        refused: list[ProbeUnavailable] = []
        with self._growing:
            # The process that takes requests comes last: what it lets through finds the others ready.
            for client in reversed(self.members):
                try:
                    client.enable(group, options)
                    on.append(client)
                except ProbeUnavailable as error:
                    refused.append(error)
            self._enabled.setdefault(group, []).append(on)
            self._options.setdefault(group, options)
        return refused

    def disable(self, group: str) -> None:
        """Let go of a group; never raises."""
        with self._growing:
            users = self._enabled.get(group)
            for client in reversed(users.pop()) if users else ():
                client.disable(group)
            if not users:
                self._options.pop(group, None)

    def add(self, client: AgentClient) -> None:
        """Another process joins: what is switched on here is switched on there."""
        client.begin_pass()
        with self._growing:
            self.members.append(client)
        self.ask_again()

    def ask_again(self) -> None:
        """Switch on what is wanted where it was refused: a process that is starting has its parts one by one."""
        with self._growing:
            for group, users in self._enabled.items():
                for on in users:
                    for client in self.members:
                        if client not in on and not client.lost:
                            with contextlib.suppress(ProbeUnavailable):
                                client.enable(group, self._options.get(group))
                                on.insert(0, client)

    def begin_pass(self) -> None:
        """Forget everything recorded so far. Raises EngineError when a serving process is gone."""
        for client in self.members:
            client.begin_pass()

    def end_pass(self, request_id: str = "", settle_s: float = 0.5) -> None:
        """Fetch what is left, from the process that takes the requests first. Never raises."""
        for client in self.members:
            client.end_pass(request_id, settle_s)

    def look(self) -> None:
        """Have `dropped` and `faults` be what they are now, in a pass without end. Never raises."""
        for client in self.members:
            client.look()

    def records(self, group: str) -> Sequence[Raw]:
        """What the group wrote in this pass, in all processes, in the order in which it ended."""
        found = [raw for client in self.members for raw in client.records(group)]
        return sorted(found, key=lambda raw: raw.end_ns)

    def columns(self, group: str) -> Sequence[Columns]:
        """The group's columns of this pass, of all processes."""
        return [columns for client in self.members for columns in client.columns(group)]

    @classmethod
    def connect(cls, socket_paths: Iterable[Any], timeout_s: float = 5.0) -> AgentGroup:
        """Connect to the agents behind these sockets, the process that takes requests first.

        Raises EngineError when one of them cannot be had; the others are let go of then.
        """
        clients: list[AgentClient] = []
        try:
            for path in socket_paths:
                clients.append(AgentClient.connect(path, timeout_s))
            return cls(clients)
        except BaseException:
            for client in clients:
                with contextlib.suppress(Exception):
                    client.close()
            raise


def _hooks(told: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """purpose -> "" where some process has it, else why none has."""
    found: dict[str, str] = {}
    for one in told:
        for group in (one.get("agent") or {}).values():
            for purpose, state in (group.get("hooks") or {}).items():
                if state == "on" or found.get(purpose) == "":
                    found[purpose] = ""
                elif state.startswith("missing"):
                    found[purpose] = state
    return found
