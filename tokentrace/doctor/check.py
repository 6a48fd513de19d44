"""The contract of a check: what the doctor looks at, and what one look may say.

A check is a small function `(Situation) -> Iterable[Result]`, written down as a `Check` with a stable id. It reads and
never writes, raises nothing that matters (what it raises becomes `unknown`), and ends within its `seconds` (what does
not becomes `unknown`, and nobody waits for it). Modules of checks hold them in a tuple `CHECKS`; `registry` finds them.

An id is TT, the layer's digit (0 is the plumbing around the trace) and two more digits. A result of the status `fail`
says that something is broken for a request or for the trace, `warn` that something will hurt or surprise, `unknown`
that it could not be told and why, `skip` that it does not apply here and why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from tokentrace.client.settings import Endpoint
    from tokentrace.doctor.local_model import Found
    from tokentrace.doctor.look import Look
    from tokentrace.exchange import Exchange

Status = Literal["ok", "warn", "fail", "unknown", "skip"]
#: machine: this machine and the local engine. endpoint: an address. process: a server's process on this machine.
Mode = Literal["machine", "endpoint", "process"]
EVERYWHERE: frozenset[Mode] = frozenset(("machine", "endpoint", "process"))
#: Where there is a server that somebody else started.
SERVERS: frozenset[Mode] = frozenset(("endpoint", "process"))

#: Said of a check that would have sent something.
LEFT_OUT = "left out by --offline"

#: What may still be waited for beyond the timeout, for the diagnosis. An answer is promised within three seconds, and
#: on a busy machine the command itself needs one of them to start, to print and to end.
GRACE_S = 1.7

#: What a request meets when the engine did not start, died or cannot work: a lower layer that fails may `explain` it.
ENGINE_DOWN = (
    "TT602", "TT603", "TT604", "TT605", "TT606", "TT608", "TT803", "TT825", "TT826", "TT828", "TT846", "TT860",
    "TT861",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """What one look saw. `detail` is one sentence, `fix` what to type, `evidence` lines of what it rests on.

    `explains` names the ids of failures that this one causes: the verdict then is this one, not those.
    """

    id: str
    status: Status
    detail: str
    fix: str = ""
    evidence: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()

    @property
    def layer(self) -> int:
        """8 to 1; 0 is the plumbing."""
        return layer_of(self.id)


def layer_of(check_id: str) -> int:
    return int(check_id[2])


def ok(check_id: str, detail: str, *evidence: str) -> Result:
    return Result(check_id, "ok", detail, "", evidence)


def warn(check_id: str, detail: str, fix: str, *evidence: str) -> Result:
    return Result(check_id, "warn", detail, fix, evidence)


def fail(check_id: str, detail: str, fix: str, *evidence: str, explains: tuple[str, ...] = ()) -> Result:
    return Result(check_id, "fail", detail, fix, evidence, explains)


def unknown(check_id: str, detail: str, fix: str = "", *evidence: str) -> Result:
    return Result(check_id, "unknown", detail, fix, evidence)


def skip(check_id: str, detail: str) -> Result:
    return Result(check_id, "skip", detail)


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of a sampler. `phase`: idle (before the live call), load (while it ran), after."""

    time_ns: int
    phase: Literal["idle", "load", "after"]
    values: Mapping[str, Any]


class Reader(Protocol):
    """An open sampler. `read` is called from one thread; what it raises ends this sampler, not the doctor."""

    def read(self) -> Mapping[str, Any]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sampler:
    """Looks at something during the live call: at least once before it and once after it.

    `open` gives None where there is nothing to read. `period_s` None: only before and after. Modules of checks hold
    theirs in a tuple `SAMPLERS`.
    """

    name: str
    open: Callable[[Situation], Reader | None]
    period_s: float | None = 0.1


@dataclass(slots=True)
class Live:
    """The real calls: one token first, then, if that was answered, a short one that shows the streaming.

    Times are unix nanoseconds. `why_not` says why there was none; `errors` why a sampler ended.
    """

    first: Exchange | None = None
    second: Exchange | None = None
    why_not: str = ""
    engine_error: Exception | None = None  # why the local engine did not start, or ended
    start_ns: int = 0
    end_ns: int = 0
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        """Was a whole reply received?"""
        return self.first is not None and self.first.complete

    def of(self, sampler: str, phase: str = "") -> list[Sample]:
        """Samples of one sampler, of one phase when it is given."""
        return [s for s in self.samples.get(sampler, ()) if not phase or s.phase == phase]


@dataclass(slots=True)
class Situation:
    """All that a check may look at. `deadline` is on the monotonic clock: the timeout is over then.

    A look that begins after it, to tell the cause of what failed, ends by `last`.
    """

    mode: Mode
    environ: Mapping[str, str]
    deadline: float
    timeout_s: float = 30.0
    endpoint: Endpoint | None = None
    setting_error: Exception | None = None  # a ConfigError: why there is no endpoint although one was wanted
    pid: int | None = None  # a process of the server, on this machine
    taken: str = ""  # why `pid` is another process than the one that was named
    #: The server's own environment, None when it cannot be read. Values may be keys: print names only, paths excepted.
    server_environ: Mapping[str, str] | None = None
    #: Does what the checks of this machine see concern the server? True without an endpoint, or when it is here.
    here: bool = True
    offline: bool = False
    #: A Hugging Face folder on this machine, of the model that is or would be served; "" unknown.
    model_path: str = ""
    #: The local engine's model, or why there is none; None where there is an endpoint.
    local_model: Found | None = None
    #: How long replies are meant to be: --max-tokens.
    max_tokens: int = 64
    layers: frozenset[int] = frozenset(range(9))
    #: What the server's other addresses told (models, version, metrics); None: not asked.
    look: Look | None = None
    #: Set before checks with `live` run, None otherwise.
    live: Live | None = None
    #: Facts of the local engine (device, dtype, versions) when it ran for the live call.
    engine_facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    @property
    def last(self) -> float:
        return self.deadline + GRACE_S


Run = Callable[[Situation], Iterable[Result]]


@dataclass(frozen=True, slots=True)
class Check:
    """One check, or (without `run`) one kind of failure that another check may report.

    `meaning`, `looks` (what evidence it uses) and `fix` are for `--explain` and the docs: plain sentences.
    `live`: it needs the live call and is skipped without one. `network`: it, or what it reads, speaks to a server, so
    that --offline leaves it out. `seconds`: it may take this long; more than two is no part of the static checks and
    runs beside the live call. `modes`: where it applies. `hurried` says at once what can be said when `run` has not
    ended in time; it may give nothing.
    """

    id: str
    title: str
    meaning: str
    looks: str
    fix: str
    run: Run | None = None
    live: bool = False
    network: bool = False
    seconds: float = 2.0
    modes: frozenset[Mode] = EVERYWHERE
    hurried: Run | None = None

    @property
    def layer(self) -> int:
        return layer_of(self.id)
