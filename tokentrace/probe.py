"""The contract of a probe: what looks at one layer.

A probe knows its own layer and nothing else: no exporter, no other probe. It is armed before a request,
disarmed after it in every case, and then asked for what it saw. A probe that cannot see its layer raises
`ProbeUnavailable` from `arm` or `collect`; the layer is then marked unseen with that reason and the run goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tokentrace.errors import ProbeUnavailable
from tokentrace.exchange import Exchange
from tokentrace.model import Record

__all__ = [
    "Agent",
    "Columns",
    "Finding",
    "LayerState",
    "Probe",
    "ProbeContext",
    "ProbeUnavailable",
    "Raw",
    "Server",
]


class Raw(NamedTuple):
    """One thing the agent wrote down inside a serving process. Times are already on our clock."""

    group: str
    name: str
    start_ns: int
    end_ns: int
    thread: int
    process: str
    data: dict[str, Any]


@dataclass(slots=True)
class Columns:
    """Many things of one kind as columns, such as a profiler's events: `header` says what the arrays mean."""

    group: str
    process: str
    header: dict[str, Any]
    arrays: dict[str, Any]  # name -> numpy array, all of one length


class Agent(Protocol):
    """The tokentrace side of the agent that runs inside the serving process or processes."""

    def enable(self, group: str, options: Mapping[str, Any] | None = None) -> None:
        """Switch a group of hooks on. Raises ProbeUnavailable with the reason and a fix."""

    def disable(self, group: str) -> None:
        """Switch a group off and put the original functions back. Never raises."""

    def records(self, group: str) -> Sequence[Raw]:
        """What the group wrote since the pass began. May be called again; nothing is consumed."""

    def columns(self, group: str) -> Sequence[Columns]:
        """Bulk events of the group since the pass began."""

    def facts(self) -> Mapping[str, Any]:
        """What the serving process says of itself: engine, versions, model, device, dtype, cache folders."""


class Server(Protocol):
    """The endpoint seen from outside, with the key already in the headers. `path` is relative to the host."""

    def get_text(self, path: str, *, timeout_s: float = 2.0) -> str:
        """Body of a GET. Raises EndpointError when it is not there."""

    def post_json(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 5.0) -> Any:
        """Parsed JSON answer of a POST. Raises EndpointError when it is not there or not JSON."""


#: For an agent of our own that did not start or went away.
AGENT_FIX = "see that a socket can be made in the folder for temporary files (TMPDIR), then run it again"


@dataclass(slots=True)
class ProbeContext:
    """What a probe may use during one pass."""

    mode: str  # url, local, attach
    pass_name: str  # cold, warm, deep, once
    deep: bool  # probes that disturb the request may run
    model: str = ""
    agent: Agent | None = None
    server: Server | None = None
    exchange: Exchange | None = None  # set after the request
    request_id: str = ""  # the server's id for our request, once known
    options: dict[str, Any] = field(default_factory=dict)
    no_agent: str = ""  # why an agent that should be there is not

    def need_agent(self, fix: str) -> Agent:
        """The agent, or ProbeUnavailable: this layer lies inside the server's process."""
        if self.no_agent:
            raise ProbeUnavailable(self.no_agent, fix=AGENT_FIX)
        if self.agent is None and (outside := self.options.get("outside")):  # (why nobody could get in, what helps)
            raise ProbeUnavailable(f"it lies inside the server's process: {outside[0]}", fix=outside[1])
        if self.agent is None:
            raise ProbeUnavailable("it lies inside the server's process, seen here only from outside", fix=fix)
        return self.agent


#: Why a layer was not looked at, when the user chose others.
LEFT_OUT = "left out by --layers"


@dataclass(slots=True)
class LayerState:
    """How a layer stood in one pass: seen, idle (looked, nothing happened there) or unseen, and why."""

    layer: int
    status: str = "seen"
    reason: str = ""
    fix: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Finding:
    """One sentence about a layer, with what it rests on and what to type or change."""

    layer: int
    sentence: str
    evidence: str = ""
    fix: str = ""
    status: str = "ok"  # ok, warn, fail, unknown


@runtime_checkable
class Probe(Protocol):
    """See the module's docstring. `layer` is the number; `state` is read after `collect`."""

    layer: int
    state: LayerState

    def check(self, context: ProbeContext) -> Iterable[Finding]:
        """Can this layer be seen here? Read only, never raises, no request is sent."""

    def arm(self, context: ProbeContext) -> None:
        """Get ready. Raises ProbeUnavailable."""

    def disarm(self) -> None:
        """Put everything back. Always called, also after a failed arm; never raises."""

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        """What was seen, on our clock. May raise ProbeUnavailable when nothing usable came."""
