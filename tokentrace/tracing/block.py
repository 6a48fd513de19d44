"""`with tokentrace.trace("name") as t:` watches what happens inside it, and makes one trace of it.

Each request that a program sends, and each `generate` of a model in this process, is one pass of the trace, below one
root. The headline of the report is the call that took longest; the others are in `report.passes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tokentrace import model
from tokentrace.errors import ExportError, TokentraceError, UsageError
from tokentrace.exchange import prompt_of
from tokentrace.interrupts import mark
from tokentrace.layers import parse_selection
from tokentrace.model import IdSource
from tokentrace.report import build
from tokentrace.session import processes_of
from tokentrace.stitch import stitch
from tokentrace.tracing import passes
from tokentrace.tracing.in_process import InProcess
from tokentrace.tracing.passes import Watched
from tokentrace.tracing.result import Trace
from tokentrace.tracing.stages import BY_TIME, Stage, Stages
from tokentrace.wording import listed, plural

if TYPE_CHECKING:
    from tokentrace.tracing.call import Call

_current: ContextVar[Block | None] = ContextVar("tokentrace_block", default=None)


class Block(Trace):
    """See the module's docstring. It is a `Trace` once the block has ended.

    name     of the root span
    deep     watch a model in this process down to its operators, which makes it slower
    save     keep the run, as `tokentrace run` does; it is then in `tokentrace list`
    otlp     send the trace there ("" for where the environment says); None: nowhere
    layers   such as "8-6": only these

    What goes wrong in tracing never reaches the program inside the block; `notes` says what it was. Only saving and
    sending that were asked for raise at the end of a block that ended well.
    """

    def __init__(
        self,
        name: str = "trace",
        *,
        deep: bool = False,
        save: bool = False,
        otlp: str | None = None,
        layers: str = "",
        ids: IdSource | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.notes: list[str] = []
        self.folder: Path | None = None
        self.ids = ids or IdSource()
        #: As a number of 128 bits.
        self.trace_number = self.ids.trace_id()
        self._root = self.ids.span_id()
        self._deep, self._keep, self._otlp = deep, save, otlp
        self._layers = parse_selection(layers) if layers else None
        self._stages = Stages()
        self._calls: list[Call] = []
        self._done: list[Watched] = []
        self._mutex = threading.Lock()
        self._token: Token[Block | None] | None = None
        self._before: frozenset[int] = frozenset()
        self._start_ns = self._end_ns = 0
        self._inside: InProcess | None = None

    @property
    def trace_id(self) -> str:
        """Known from the beginning."""
        return f"{self.trace_number:032x}"

    def claims(self) -> int:
        """How much this block wants a request of the calling thread: 2 its own context, 1 a thread begun inside it."""
        if _current.get() is self:
            return 2
        return int(_current.get() is None and threading.get_ident() not in self._before)

    def current_stage(self) -> tuple[Stage | None, str]:
        """The stage that a call which begins here belongs to, and how that is known where it is not by its context."""
        stage = self._stages.current()
        if stage is None and _current.get() is not self and (stage := self._stages.only_open()) is not None:
            return stage, BY_TIME
        return stage, ""

    def begun(self, call: Call) -> None:
        with self._mutex:
            self._calls.append(call)

    def ended(self, call: Call) -> None:
        with self._mutex:
            if call in self._calls:
                self._calls.remove(call)
                x = call.x
                self._done.append(Watched(call.stage, x.start_ns, x.end_ns, x, left_with=call.left_with))

    def stage(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A part of the program: one span that holds the calls and the stages inside it. A call is named after the
        innermost one; a second call gets a number behind it."""
        return self._stages.run(name)

    def __enter__(self) -> Block:
        from tokentrace.tracing import http_calls

        if self._start_ns:
            raise UsageError("this trace was used already", fix="make a new one: with tokentrace.trace(...) as t:")
        self._before = frozenset(_thread_ids())
        self._inside = InProcess(self._deep, self._layers, self.current_stage)
        self._inside.start()
        http_calls.watch(self)
        self._token = _current.set(self)
        self._start_ns = time.time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from tokentrace.tracing import http_calls

        self._end_ns = time.time_ns()
        if self._token is not None:
            _current.reset(self._token)
        http_calls.unwatch(self)
        for call in list(self._calls):
            call.left_open(error)
        try:
            self._finish(error)
            self._deliver()
        except TokentraceError as problem:
            self.notes.append(str(problem))
            if error is None:
                raise
        except Exception as problem:
            # A program that fails must fail with its own error.
            self.notes.append(f"the trace could not be made: {type(problem).__name__}: {problem}")
            if error is None:
                raise

    def _finish(self, error: BaseException | None) -> None:
        """Put everything back, and make the trace and its report of what was seen."""
        assert self._inside is not None
        self._inside.stop()
        self.notes += self._inside.notes
        self._stages.end(self._end_ns)
        with self._mutex:
            sent = list(self._done)
        done = sorted([*sent, *passes.generations(self._inside, self._stages)], key=lambda one: one.start_ns)
        names = passes.names([one.stage for one in done])
        self._data = self._stitched(done, names, self._inside, error)
        if error is not None and _failed(error):
            cut = _cut(names, done, type(error).__name__)
            _tell(self._data, error, f"in {listed(cut)}" if cut else _after(len(done)))
        self._report = build(self._data, notes=self.notes)

    def _stitched(
        self, done: Sequence[Watched], names: Sequence[str], inside: InProcess, error: BaseException | None
    ) -> model.Trace:
        """The spans of all passes below one root. The longest is the one that the report speaks of."""
        named = list(zip(names, done, strict=True))
        place: dict[Stage | None, int] = {None: -1}
        place.update((stage, number) for number, stage in enumerate(self._stages.all))
        found = [
            passes.pass_of(name, one, inside, group=place[one.stage], deep=self._deep, layers=self._layers)
            for name, one in named
        ]
        headline, longest = max(named, key=lambda pair: pair[1].end_ns - pair[1].start_ns, default=("", None))
        attributes = {"tokentrace.mode": "trace"}
        if error is not None and _failed(error):
            attributes["error.type"] = type(error).__name__
        return stitch(
            found or [passes.empty_pass(self._start_ns, self._end_ns)],
            groups=self._stages.groups(),
            ids=self.ids,
            trace_id=self.trace_number,
            root_span_id=self._root,
            root_name=self.name,
            window=(self._start_ns, self._end_ns),
            processes=processes_of(None),
            attributes=attributes,
            meta={
                "mode": "trace",
                "created_ns": time.time_ns(),
                "headline": headline,
                "model": longest.exchange.model if longest else "",
                "prompt": prompt_of(longest.exchange.request) if longest else "",
            },
        )

    def _deliver(self) -> None:
        from tokentrace import runs

        report = self.report
        folded = self._out(False)
        report.spans = {"produced": len(folded), "recorded": len(self.data)}
        if self._keep:
            self.folder = runs.save(self.data, folded, report)
        if self._otlp is not None:
            delivery = self.send(self._otlp)
            report.spans.update(accepted=delivery.accepted, rejected=delivery.rejected)
            if self.folder is not None:
                runs.save_report(report, self.folder)
            if not delivery.ok:
                raise ExportError(delivery.message, fix=delivery.fix)


def _failed(error: BaseException) -> bool:
    """Did the program leave the block with an error? Ending well is none, nor is being left by a generator."""
    return not isinstance(error, GeneratorExit) and not (isinstance(error, SystemExit) and not error.code)


def _cut(names: Sequence[str], done: Sequence[Watched], kind: str) -> list[str]:
    """The calls that the program left with the error of this kind that ended it: none began later, else it went on."""
    last = max((one.start_ns for one in done), default=0)
    return [name for name, one in zip(names, done, strict=True) if one.left_with == kind and one.end_ns >= last]


def _after(calls: int) -> str:
    return f"after {plural(calls, 'call')}" if calls else "before the first call"


def _tell(data: model.Trace, error: BaseException, where: str) -> None:
    """How the program left the block, on the root: only the kind of its error, since its words may hold a key."""
    if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
        mark(data, f"{'interrupted' if isinstance(error, KeyboardInterrupt) else 'cancelled'} {where}")
    else:
        data.statuses[0] = (model.STATUS_ERROR, f"the program ended with {type(error).__name__} {where}")


def _thread_ids() -> Iterator[int]:
    mine = threading.get_ident()
    for thread in threading.enumerate():
        if thread.ident is not None and thread.ident != mine:
            yield thread.ident
