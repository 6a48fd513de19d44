"""Requests of others, as they come: each one a trace and a run of its own."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokentrace import runs, session, workflow
from tokentrace.agent_client import AgentGroup
from tokentrace.attach.joined import Joiner, Left
from tokentrace.attach.served import Served, Sorter, trace_of
from tokentrace.attach.session import STEPS, Attached, engine_facts, notes, without_agent
from tokentrace.errors import AttachError, ProbeUnavailable
from tokentrace.interrupts import mark
from tokentrace.probe import Raw
from tokentrace.probes._request import ended
from tokentrace.session import Outcome

if TYPE_CHECKING:
    from tokentrace.receive import Receiver
    from tokentrace.receive.join import Told

GROUPS = ("http", "tokenizer", "engine", "model", "jit")
DEEP_GROUPS = ("modules", "ops")
POLL_S = 0.1
LOOK_S = 1.0
#: A selection that fits no request.
_NOBODY = {"trace_ids": ["none"]}


@dataclass(frozen=True, slots=True)
class Row:
    """What the table shows of one request. Times are ns, None is not known; `batch` is the largest one it was in.

    `wait_ns` is all the time in the engine's process before its first step. Of several `replies` to one request the
    figures are the first one's. `ended` is the engine's reason: stop, length, abort, …; "cut" when the server went away
    meanwhile; "" not known, as of a request that never came to the engine.
    """

    request: str
    status: int
    prompt_tokens: int | None
    reply_tokens: int | None
    wall_ns: int
    ttft_ns: int | None
    wait_ns: int | None
    prefill_ns: int | None
    decode_ns_per_token: float | None
    batch: int | None
    layer: str  # that took most, "" not known
    share: float | None
    run: str = ""  # how `tokentrace show` finds it
    replies: int = 1
    ended: str = ""
    path: str = ""


class Watcher:
    """Chooses requests and gives them back finished. A context manager: leaving it lets go of everything."""

    def __init__(
        self,
        agents: AgentGroup,
        *,
        select: Mapping[str, Any] | None = None,
        with_text: bool = False,
        deep: bool = False,
        steps: int = STEPS,
    ) -> None:
        self.agents = agents
        self.deep = deep
        self._select = dict(select or {"all": True})
        self._with_text, self._steps = with_text, steps
        self._sorter = Sorter()
        self._on: list[str] = []
        self._dropped: deque[tuple[int, int]] = deque(maxlen=1000)  # (when, how many records until then)
        self._looked_ns = 0
        #: Groups that could not be switched on, and why.
        self.unseen: dict[str, str] = {}

    def __enter__(self) -> Watcher:
        """Raises AttachError when the server has nothing to watch requests with."""
        self.agents.begin_pass()
        chooses = True
        try:
            self._switch_on("select", _NOBODY)
        except ProbeUnavailable as error:
            # The local engine cannot choose; it records every request.
            chooses = False
            if not self._select.get("all"):
                raise AttachError(f"requests cannot be chosen here: {error}", fix=error.fix) from error
        options: dict[str, dict[str, Any]] = {"tokenizer": {"text": self._with_text}, "ops": {"steps": self._steps}}
        for group in (*GROUPS, *(DEEP_GROUPS if self.deep else ())):
            try:
                self._switch_on(group, options.get(group))
            except ProbeUnavailable as error:
                self.unseen[group] = str(error)
                if group == "http":
                    self.__exit__()
                    raise AttachError(f"requests cannot be watched: {error}", fix=error.fix) from error
        if chooses:
            # Only now, so that each request is seen from its beginning by all of them.
            self.agents.disable("select")
            self.agents.enable("select", self._select)
        return self

    def __exit__(self, *_: object) -> None:
        for group in reversed(self._on):
            self.agents.disable(group)
        self._on.clear()

    def left(self, by_ns: int) -> Left:
        """Chosen requests that had not ended by then, and that had and have not been given back."""
        ended = self._sorter.ended(by_ns)
        return Left(self._sorter.under_way + self._sorter.ended(time.time_ns()) - ended, ended)

    def settled(self, before_ns: int) -> bool:
        """Whether each request that ended before has been given back, and its records have had the time to arrive."""
        return time.time_ns() - before_ns >= self._sorter.settle_ns and self._sorter.settled(before_ns)

    def look(self) -> None:
        """Note how many records have found no room until now."""
        self.agents.look()
        self._looked_ns = time.time_ns()
        if self.agents.dropped != (self._dropped[-1][1] if self._dropped else 0):
            self._dropped.append((self._looked_ns, self.agents.dropped))

    def dropped_since(self, start_ns: int) -> int:
        """How many records have found no room since then, to LOOK_S."""
        before = next((count for at_ns, count in reversed(self._dropped) if at_ns <= start_ns), 0)
        return self.agents.dropped - before

    def take(self) -> None:
        """What has arrived."""
        for client in self.agents.members:
            self._sorter.add(client.take())

    def _switch_on(self, group: str, options: Mapping[str, Any] | None) -> None:
        self.agents.enable(group, options)
        self._on.append(group)

    def poll(self, *, gone: str = "", no_more: bool = False) -> list[Served]:
        """The requests that have finished since the last call, oldest first; those too that are under way, as far as
        they were seen, when the server has `gone` (why). `no_more`: no record is waited for."""
        self.take()
        now = time.time_ns()
        if not (gone or no_more) and now - self._looked_ns >= int(LOOK_S * 1e9):
            self.look()
        found = self._sorter.cut(now, gone) if gone else self._sorter.finished(now, no_more=no_more)
        if not self._with_text:
            for served in found:
                served.forget_token_ids()
        if found and self.deep and not no_more:
            self._deepen(found)
        return found

    def _deepen(self, found: Sequence[Served]) -> None:
        """Fetch the deep columns, give them to the requests that they lie in, and record anew."""
        for group in DEEP_GROUPS:
            if group in self._on:
                self.agents.disable(group)
        columns = []
        for client in self.agents.members:
            client.fetch()
            columns += [one for group in DEEP_GROUPS for one in client.take_columns(group)]
        for served in found:
            served.columns = columns
        for group, options in (("modules", None), ("ops", {"steps": self._steps})):
            if group in self._on:
                with contextlib.suppress(ProbeUnavailable):
                    self.agents.enable(group, options)


def watch(
    attached: Attached,
    settings: workflow.Settings,
    *,
    for_s: float | None = None,
    requests: int | None = None,
    select: Mapping[str, Any] | None = None,
    with_text: bool = False,
    deep: bool = False,
    steps: int = STEPS,
    receiver: Receiver | None = None,
    stop: Callable[[], bool] = lambda: False,
    idle: Callable[[int], None] = lambda under_way: None,
    left: Left | None = None,
) -> Iterator[tuple[Row, workflow.Run]]:
    """Requests of others until `for_s` seconds have passed, `requests` have finished or `stop()` is true; each that
    ended until then is saved, sent on as the settings say, and given. `idle` is told ten times a second, before each
    one is saved and at the end how many are under way; `left` holds how many have not been given.

    With a `receiver` each one waits, for the receiver's patience, until the server's own spans of it have come, which
    then are in its trace. What waits at a `stop` is given without them. KeyboardInterrupt is one if `stop()` does not
    say so already; then it ends this at once.

    Raises AttachError when there is no agent in the server: from outside, no request of others can be seen.
    """
    if not attached.agents:
        raise AttachError(
            "requests of others can only be seen from inside the server",
            fix="give tokentrace the right to look into it (tokentrace attach URL --dry-run says how)",
        )
    agents = AgentGroup(attached.agents)
    joiner = Joiner(receiver)
    watcher = Watcher(agents, select=select, with_text=with_text, deep=deep, steps=steps)
    left = left if left is not None else Left()
    end_ns = time.time_ns() + int(for_s * 1e9) if for_s is not None else None
    found: deque[tuple[Served, Told | None]] = deque()
    taken = later = 0

    def count() -> None:
        now = watcher.left(end_ns or time.time_ns())
        left.under_way, left.ended = now.under_way + later, now.ended + len(joiner) + len(found)
        if taken == requests:  # no more were asked for
            left.ended -= now.ended

    def take(finished: Sequence[Served]) -> None:
        nonlocal taken, later
        in_time = [one for one in finished if one.cut or end_ns is None or one.request.end_ns <= end_ns]
        later += len(finished) - len(in_time)
        for served in in_time if requests is None else in_time[: requests - taken]:
            taken += 1
            joiner.add(served)

    def is_stopped() -> bool:
        nonlocal end_ns
        stopped = stop()
        if stopped:
            end_ns = min(end_ns or time.time_ns(), time.time_ns())
        return stopped

    def ready(*, at_once: bool = False) -> Iterator[tuple[Row, workflow.Run]]:
        found.extend(joiner.ready(at_once=at_once))
        while found:
            count()
            idle(left.under_way)
            done = _conclude(found[0][0], attached, watcher, settings, found[0][1])
            found.popleft()
            count()
            yield done
            is_stopped()

    try:
        with watcher:
            while True:
                stopped = is_stopped()
                gone = f"no more of it was seen: {agents.lost}" if agents.lost else ""
                take(watcher.poll(gone=gone))
                yield from ready(at_once=stopped)
                count()
                idle(left.under_way)
                over = end_ns is not None and time.time_ns() >= end_ns and watcher.settled(end_ns)
                if over or gone or taken == requests:
                    break
                time.sleep(POLL_S)
        while len(joiner):
            yield from ready(at_once=is_stopped() or bool(agents.lost))
            count()
            idle(left.under_way)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        if not stop():
            end_ns = end_ns or time.time_ns()
            take(watcher.poll(no_more=True))
            yield from ready(at_once=True)
        raise
    finally:
        watcher.take()
        count()


def _conclude(
    served: Served,
    attached: Attached,
    watcher: Watcher,
    settings: workflow.Settings,
    told: Told | None = None,
) -> tuple[Row, workflow.Run]:
    agents = watcher.agents
    facts = engine_facts(attached, agents)
    facts["notes"] = notes(agents, watcher.dropped_since(served.request.start_ns))
    trace = trace_of(served, facts, session.processes_of(agents), deep=watcher.deep, told=told,
                     options={"without_agent": without_agent(attached)})  # fmt: skip
    if served.cut:
        mark(trace, served.cut)
    run = workflow.conclude(Outcome(trace, {}), settings)
    return row_of(served, run), run


def row_of(served: Served, run: workflow.Run) -> Row:
    """The line of the table for one request."""
    report = run.report
    steps = served.named("step")
    prefill = [raw.end_ns - raw.start_ns for raw in steps if _phase_of(raw, served.rid) == "prefill"]
    decode = [raw.end_ns - raw.start_ns for raw in steps if _phase_of(raw, served.rid) == "decode"]
    # An engine that does not say how many tokens a step gave gives one.
    made = sum(
        int(raw.data["tokens_out"].get(served.rid, 0)) if "tokens_out" in raw.data else 1
        for raw in steps
        if _phase_of(raw, served.rid) == "decode"
    )
    shares = [(row.share, row.title) for row in report.layers if row.share is not None]
    most = max(shares, default=None)
    return Row(
        request=served.rid,
        status=int(served.request.data.get("status") or 0),
        prompt_tokens=report.tokens.get("input"),
        reply_tokens=report.tokens.get("output"),
        wall_ns=report.wall_ns,
        ttft_ns=report.ttft_ns,
        wait_ns=_waited(served),
        prefill_ns=sum(prefill) if prefill else None,
        decode_ns_per_token=sum(decode) / made if made else None,
        batch=max((int(raw.data.get("batch") or 0) for raw in steps), default=None),
        layer=most[1] if most is not None else "",
        share=most[0] if most is not None else None,
        run=runs.shown(run.folder) if run.folder is not None else "",
        replies=served.replies,
        ended="cut" if served.cut else ended(served.raws),
        path=str(served.request.data.get("path") or ""),
    )


def _waited(served: Served) -> int | None:
    """From when the engine's process had taken the request in to its first step, ns. A busy engine looks for new
    requests only between two steps, which is before its scheduler begins to count."""
    wait, taken = served.first("wait"), served.first("receive")
    if wait is None:
        return None
    since = taken.end_ns if taken is not None and taken.process == wait.process else wait.start_ns
    return wait.end_ns - min(since, wait.start_ns)


def _phase_of(step: Raw, rid: str) -> str:
    """What a step was for one request: it decodes when it got one token of input and was in a step before."""
    phase = str(step.data.get("phase") or "")
    if phase != "mixed":
        return phase
    return "prefill" if rid in (step.data.get("cached_tokens") or {}) else "decode"
