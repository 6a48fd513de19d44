"""`with tokentrace.trace("name") as t:` watches what happens inside it, and makes one trace of it.

Each request that a program sends, and each `generate` of a model in this process, is one pass of the trace, below one
root. The headline of the report is the call that took longest; the others are in `report.passes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tokentrace import model
from tokentrace.errors import ExportError, ProbeUnavailable, TokentraceError, UsageError
from tokentrace.exchange import Exchange, prompt_of
from tokentrace.interrupts import mark
from tokentrace.layers import by_number, load, parse_selection
from tokentrace.model import IdSource, Record
from tokentrace.probe import LayerState, Probe, ProbeContext
from tokentrace.registry import create
from tokentrace.report import build
from tokentrace.session import processes_of
from tokentrace.stitch import PassRecords, stitch
from tokentrace.tracing.in_process import InProcess
from tokentrace.tracing.result import Trace
from tokentrace.wording import listed, plural

if TYPE_CHECKING:
    from tokentrace.tracing.call import Call

_current: ContextVar[Block | None] = ContextVar("tokentrace_block", default=None)

OUTSIDE = "it lies inside the server, and only the program's own side was watched"
OUTSIDE_FIX = "tokentrace run PROMPT --url URL asks the server for more"


@dataclass(slots=True)
class _Pass:
    """One request or one generation, and the name it goes by."""

    stage: str
    start_ns: int
    end_ns: int
    exchange: Exchange
    request_id: str = ""  # of a generation in this process; "" for a request that was sent


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
        self._stage: ContextVar[str] = ContextVar(f"tokentrace_stage_{id(self)}", default="")
        self._calls: list[Call] = []
        self._done: list[_Pass] = []
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

    def current_stage(self) -> str:
        return self._stage.get()

    def begun(self, call: Call) -> None:
        with self._mutex:
            self._calls.append(call)

    def ended(self, call: Call) -> None:
        with self._mutex:
            if call in self._calls:
                self._calls.remove(call)
                self._done.append(_Pass(call.stage, call.x.start_ns, call.x.end_ns, call.x))

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Calls inside are named after this stage of the program; a second one gets a number behind it."""
        token = self._stage.set(name)
        try:
            yield
        finally:
            self._stage.reset(token)

    def __enter__(self) -> Block:
        from tokentrace.tracing import http_calls

        if self._start_ns:
            raise UsageError("this trace was used already", fix="make a new one: with tokentrace.trace(...) as t:")
        self._before = frozenset(_thread_ids())
        self._inside = InProcess(self._deep, self._layers)
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
            call.left_open()
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
        assert self._inside is not None
        inside = self._inside
        inside.stop()
        self.notes += inside.notes
        with self._mutex:
            done = list(self._done)
        done += [_generation(inside, rid, start, end) for rid, start, end in inside.requests()]
        done = sorted(done, key=lambda one: one.start_ns)
        names = _names([one.stage for one in done])
        passes = [self._pass(name, one, inside) for name, one in zip(names, done, strict=True)]
        longest = max(zip(names, done, strict=True), key=lambda p: p[1].end_ns - p[1].start_ns, default=None)
        if not passes:
            passes = [self._empty()]
        attributes = {"tokentrace.mode": "trace"}
        if error is not None and _failed(error):
            attributes["error.type"] = type(error).__name__
        self._data = stitch(
            passes,
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
                "headline": longest[0] if longest else "",
                "model": longest[1].exchange.model if longest else "",
                "prompt": prompt_of(longest[1].exchange.request) if longest else "",
            },
        )
        if error is not None and _failed(error):
            cut = [name for name, one in zip(names, done, strict=True) if one.exchange.interrupted]
            _tell(self._data, error, f"in {listed(cut)}" if cut else _after(len(done)))
        self._report = build(self._data, notes=self.notes)

    def _pass(self, name: str, one: _Pass, inside: InProcess) -> PassRecords:
        records: list[Record] = []
        states: dict[int, LayerState] = {}
        sent = not one.request_id
        # A server that is not on this machine has its power elsewhere, as with `run --url`.
        context = ProbeContext("url" if sent else "trace", name, self._deep, exchange=one.exchange)
        if sent:
            self._collect(8, create(by_number(8)), context, records, states)
            probes: Sequence[Probe] = [p for p in inside.probes if p.layer == 1]
        else:
            context.agent, context.request_id = inside.agent, one.request_id
            states[8] = LayerState(8, "unseen", "the model was called in this process, no request was sent")
            probes = inside.probes
        for probe in probes:
            self._collect(probe.layer, probe, context, records, states)
        for layer in load():
            if layer.number in states or (self._layers is not None and layer.number not in self._layers):
                continue
            if sent:
                states[layer.number] = LayerState(layer.number, "unseen", OUTSIDE, OUTSIDE_FIX)
            elif layer.number in inside.unseen:
                states[layer.number] = inside.unseen[layer.number]
        ordered = [states[number] for number in sorted(states, reverse=True)]
        span_id = one.exchange.span_id
        return PassRecords(name, one.start_ns, one.end_ns, records, ordered, span_id, one.request_id, {}, one.exchange)

    def _collect(
        self, number: int, probe: Probe, context: ProbeContext, records: list[Record], states: dict[int, LayerState]
    ) -> None:
        try:
            records += probe.collect(context)
            states[number] = copy.deepcopy(probe.state)  # the probe is asked again for the next call
        except ProbeUnavailable as error:
            states[number] = LayerState(number, "unseen", str(error), error.fix)
        except Exception as error:  # noqa: BLE001 - a layer that fails never fails the trace
            states[number] = LayerState(number, "unseen", f"its probe failed: {type(error).__name__}: {error}")

    def _empty(self) -> PassRecords:
        why = "no request was sent and no model ran inside the block"
        states = [LayerState(layer.number, "unseen", why) for layer in load()]
        return PassRecords("once", self._start_ns, self._end_ns, [], states)

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


def _after(calls: int) -> str:
    return f"after {plural(calls, 'call')}" if calls else "before the first call"


def _tell(data: model.Trace, error: BaseException, where: str) -> None:
    """How the program left the block, on the root: only the kind of its error, since its words may hold a key."""
    if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
        mark(data, f"{'interrupted' if isinstance(error, KeyboardInterrupt) else 'cancelled'} {where}")
    else:
        data.statuses[0] = (model.STATUS_ERROR, f"the program ended with {type(error).__name__} {where}")


def _generation(inside: InProcess, rid: str, start_ns: int, end_ns: int) -> _Pass:
    """What is known of a generation, in the form in which the report knows requests."""
    facts = inside.facts_of(rid)
    exchange = Exchange("", str(facts["model"]), 0, "", start_ns=start_ns, end_ns=end_ns, complete=True)
    if facts["prompt"]:
        exchange.request = {"prompt": facts["prompt"]}
    exchange.text, exchange.finish_reason = str(facts["reply"]), str(facts["finish_reason"])
    exchange.usage = {key: facts[key] for key in ("prompt_tokens", "completion_tokens") if facts[key]}
    return _Pass("", start_ns, end_ns, exchange, rid)


def _names(stages: Sequence[str]) -> list[str]:
    """A name for each pass: its stage, or "call"; numbered where one name would stand twice."""
    wanted = [stage or "call" for stage in stages]
    often = Counter(wanted)
    count: dict[str, itertools.count[int]] = {name: itertools.count(1) for name in often}
    taken: set[str] = set()
    found = []
    for name in wanted:
        given = name if often[name] == 1 and name != "call" else f"{name} {next(count[name])}"
        while given in taken:
            given = f"{name} {next(count[name])}"
        taken.add(given)
        found.append(given)
    return found


def _thread_ids() -> Iterator[int]:
    mine = threading.get_ident()
    for thread in threading.enumerate():
        if thread.ident is not None and thread.ident != mine:
            yield thread.ident
