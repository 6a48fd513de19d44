"""What `attach` knows of a server before it touches anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: outside: only what any client sees. agent: tokentrace was installed in the server and waits. injected: put in now.
Depth = Literal["outside", "agent", "injected"]
#: api: HTTP and text. engine: queue and scheduler. worker: the model. single: all of it in one process.
Role = Literal["api", "engine", "worker", "single"]
#: What each role is called.
PARTS: dict[Role, str] = {"api": "API server", "engine": "engine core", "worker": "worker", "single": "server"}


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """One process of the server. `started` (unix seconds) tells a reused pid; `rank` is "" or like "tp0"."""

    pid: int
    role: Role
    title: str
    started: float
    python: str = ""  # "3.11", "" unknown
    executable: str = ""
    rank: str = ""

    @property
    def part(self) -> str:
        """What it is called in the server, such as "engine core" or "worker tp0"."""
        return f"{PARTS[self.role]} {self.rank}".rstrip()


@dataclass(frozen=True, slots=True)
class Found:
    """The server behind a URL or pid, as it was when it was looked at."""

    base_url: str  # as given or made from the port, with /v1
    engine: str  # vllm, tokentrace (the local engine), "" unknown
    version: str  # of the engine, "" unknown
    processes: tuple[ServerProcess, ...] = ()  # empty: another host, or not to be seen
    #: Sockets of agents that wait already: pid -> path.
    sockets: dict[int, str] = field(default_factory=dict)
    #: Why no process can be looked into, "" when it can.
    reason: str = ""
    fix: str = ""
    #: Why it takes no requests yet, "" when it does or that is not known.
    not_ready: str = ""
