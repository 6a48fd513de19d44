"""One request of somebody else, as the server saw it: its records out of everybody's, and a trace of its own.

There is no client side: the server's handler is the whole, and what the client saw (time to first token, chunks) is
reckoned from what the server sent. Texts are there only where the agent was asked for them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokentrace.attach.replies import waits_for_others, whole_at
from tokentrace.errors import EndpointError
from tokentrace.exchange import Chunk, Exchange
from tokentrace.layers import by_number
from tokentrace.model import IdSource, Process, Record, Trace
from tokentrace.probe import Columns, LayerState, ProbeContext, ProbeUnavailable, Raw
from tokentrace.probes._http_server import server_side
from tokentrace.probes._ops import NO_EVENTS, NO_RECORDING
from tokentrace.probes._recorded import NO_OURS
from tokentrace.probes._request import ended, step_of
from tokentrace.receive.join import Told, add_told
from tokentrace.registry import create
from tokentrace.stitch import PassRecords, stitch

LIGHT, DEEP = (7, 6, 5, 2), (4, 3)
NOT_DEEP = "not probed while requests of others are watched, so that nobody is slowed down"
SPENT = "the steps that the profiler records were spent on another request"
NO_POWER = "not measured for one request among others"
ONE_SIDE = "seen from the server's side; the client was not watched"
#: Records of steps are kept this long for requests that are still under way.
KEEP_S = 600.0
#: A reply may end before the engine's part in it does, which goes on to its next step: behind a stop string, or when
#: the client has left. So long that step may take.
FINISH_S = 5.0
#: What an engine writes of a request that it has taken in.
_TAKEN = frozenset(("receive", "wait"))
_STEPS = frozenset(("step", "schedule", "dispatch", "update", "prepare", "work", "forward", "logits", "sample"))


@dataclass(slots=True)
class Served:
    """One finished request. `raws` are its own records and those of the steps that served it.

    A request for several replies (n > 1, or several prompts) is followed by its first one, `rid`; `replies` counts
    them, `tokens` is what all of them made (None where the engine did not say of each), `others_end_ns` when the last
    of the others was whole (0: there are none, or it was not seen).
    """

    rid: str
    request: Raw
    raws: list[Raw]
    columns: list[Columns] = field(default_factory=list)
    replies: int = 1
    tokens: int | None = None
    cut: str = ""  # why it was seen in part only
    others_end_ns: int = 0

    def named(self, name: str) -> list[Raw]:
        return [raw for raw in self.raws if raw.name == name]

    def first(self, name: str) -> Raw | None:
        return next(iter(self.named(name)), None)

    def forget_token_ids(self) -> None:
        """Whoever has the model's tokenizer can turn them back into text. Counts stay."""
        for raw in self.raws:
            raw.data.pop("ids", None)
            if raw.name == "decode":
                raw.data.pop("id", None)


class Sorter:
    """Takes records as they come, gives each finished request what belongs to it.

    A request is finished when its handler has ended and `settle_s` has passed: the records of three processes do not
    arrive in order. An engine that has taken it must have ended it, too, or had FINISH_S for it. Without HTTP (another
    kind of front end), the scheduler's `finish` ends it.
    """

    def __init__(self, settle_s: float = 0.3) -> None:
        self.settle_ns = int(settle_s * 1e9)
        self._own: dict[str, list[Raw]] = {}
        self._steps: dict[tuple[str, int], list[Raw]] = {}
        self._of: dict[str, list[tuple[str, int]]] = {}
        self._ended: dict[str, Raw] = {}
        self._loose: list[Raw] = []
        self._done: dict[str, int] = {}

    @property
    def under_way(self) -> int:
        """Requests that have begun and not ended. Which replies are one request's is known when it has ended."""
        others = {other for raw in self._ended.values() for other in _siblings(raw)}
        return sum(rid not in self._ended and rid not in others for rid in self._own)

    def ended(self, by_ns: int) -> int:
        """Requests that had ended by then and have not been given out."""
        return sum(raw.end_ns <= by_ns for raw in self._ended.values())

    def add(self, raws: Sequence[Raw]) -> None:
        for raw in raws:
            if raw.name in _STEPS and "index" in raw.data:
                key = step_of(raw)
                self._steps.setdefault(key, []).append(raw)
                if raw.name == "step":
                    for rid in raw.data.get("reqs") or ():
                        self._of.setdefault(str(rid), []).append(key)
                continue
            rid = str(raw.data.get("rid") or "")
            if not rid:
                self._loose.append(raw)
            elif rid not in self._done:  # else it came too late
                self._own.setdefault(rid, []).append(raw)
                if raw.name == "request" and raw.group == "http":
                    self._ended[rid] = raw

    def settled(self, before_ns: int) -> bool:
        """Whether each request that ended before has been given out."""
        return not self.ended(before_ns)

    def finished(self, now_ns: int, *, no_more: bool = False) -> list[Served]:
        """The requests that ended `settle_s` ago, in the order in which they ended. `no_more`: no record will come."""
        ready = [rid for rid, raw in self._ended.items() if no_more or self._is_ready(raw, now_ns - raw.end_ns)]
        found = []
        for rid in sorted(ready, key=lambda one: self._ended[one].end_ns):
            request, raws = self._ended.pop(rid), self._own.pop(rid)
            siblings = _siblings(request)
            theirs = [self._own.pop(other, []) for other in siblings]
            made = [_tokens(one) for one in (raws, *theirs)]
            for key in self._of.pop(rid, []):
                raws += [_told_siblings(raw, siblings) for raw in self._steps.get(key, [])]
            raws += [raw for raw in self._loose if request.start_ns <= raw.end_ns and raw.start_ns <= request.end_ns]
            for other in siblings:
                self._of.pop(other, None)
                self._done[other] = request.end_ns
            self._done[rid] = request.end_ns
            told = [one for one in made if one is not None]
            whole = sum(told) if len(told) == len(made) else None
            found.append(
                Served(rid, request, raws, replies=1 + len(siblings), tokens=whole, others_end_ns=whole_at(theirs))
            )
        self._prune(now_ns)
        return found

    def _is_ready(self, request: Raw, since_ns: int) -> bool:
        if since_ns < self.settle_ns or since_ns >= int(FINISH_S * 1e9):
            return since_ns >= self.settle_ns
        return not any(self._is_at_engine(rid) for rid in (str(request.data.get("rid")), *_siblings(request)))

    def _is_at_engine(self, rid: str) -> bool:
        own = self._own.get(rid, ())
        return _tokens(own) is None and (rid in self._of or any(raw.name in _TAKEN for raw in own))

    def cut(self, now_ns: int, why: str) -> list[Served]:
        """All requests, those that are under way as far as their records have come: no more will, as `why` says."""
        # The other replies to a request that has ended are no requests of their own.
        others = {str(one) for raw in self._ended.values() for one in raw.data.get("rids") or ()}
        cut = [rid for rid in self._own if rid not in self._ended and rid not in others]
        for rid in cut:
            raws = self._own[rid]
            first = min(raws, key=lambda raw: raw.start_ns)
            steps = [raw for key in self._of.get(rid, []) for raw in self._steps.get(key, ())]
            ends = [raw.end_ns for raw in (*raws, *steps)]
            self._ended[rid] = Raw("http", "request", first.start_ns, max(ends), first.thread, first.process,
                                   {"rid": rid, "error": why})  # fmt: skip
            raws.append(self._ended[rid])
        found = self.finished(now_ns, no_more=True)
        for served in found:
            served.cut = why if served.rid in cut else ""
        return found

    def _prune(self, now_ns: int) -> None:
        """Forget steps that no request under way can still ask for."""
        starts = [min(raw.start_ns for raw in raws) for raws in self._own.values() if raws]
        oldest = max(min(starts, default=now_ns - self.settle_ns), now_ns - int(KEEP_S * 1e9))
        for key in [k for k, raws in self._steps.items() if max(raw.end_ns for raw in raws) < oldest]:
            del self._steps[key]
        self._loose = [raw for raw in self._loose if raw.end_ns >= oldest]
        ended = {rid: max(raw.end_ns for raw in raws) for rid, raws in self._own.items() if _tokens(raws) is not None}
        for rid in [one for one, end in ended.items() if one not in self._ended and end < now_ns - int(KEEP_S * 1e9)]:
            del self._own[rid]  # nobody will ask: one of very many replies to a request, or it came without HTTP
        for rid in [one for one, end in self._done.items() if end < now_ns - int(60e9)]:
            del self._done[rid]


def _siblings(request: Raw) -> list[str]:
    """The other replies to the same request."""
    return [str(one) for one in request.data.get("rids") or () if str(one) != request.data.get("rid")]


def _tokens(raws: Sequence[Raw]) -> int | None:
    """How many tokens a reply had when it finished; None when that is not told."""
    return next((int(raw.data["tokens"]) for raw in raws if raw.name == "finish" and "tokens" in raw.data), None)


def _told_siblings(raw: Raw, siblings: Sequence[str]) -> Raw:
    """A step that says how many of its batch are other replies to the same request."""
    count = sum(one in siblings for one in raw.data.get("reqs") or ()) if siblings and raw.name == "step" else 0
    return raw._replace(data={**raw.data, "siblings": count}) if count else raw


class _Recorded:
    """What was recorded of one request, as an agent that only remembers."""

    def __init__(self, served: Served, facts: Mapping[str, Any]) -> None:
        self._served, self._facts = served, facts

    def enable(self, group: str, options: Mapping[str, Any] | None = None) -> None:
        raise ProbeUnavailable("what was recorded cannot be recorded again", fix="watch another request")

    def disable(self, group: str) -> None:
        return

    def records(self, group: str) -> Sequence[Raw]:
        return [raw for raw in self._served.raws if raw.group == group]

    def columns(self, group: str) -> Sequence[Columns]:
        return [columns for columns in self._served.columns if columns.group == group]

    def facts(self) -> Mapping[str, Any]:
        return self._facts


def trace_of(
    served: Served,
    facts: Mapping[str, Any],
    processes: Mapping[str, Process],
    *,
    deep: bool = False,
    told: Told | None = None,
    options: Mapping[str, Any] | None = None,
) -> Trace:
    """The trace of one request, with what the server `told` of it by spans of its own; `options` are the probes'. One
    that came with a traceparent keeps its trace id and hangs below its span; else it gets the id that the server gave
    to its own span, if any."""
    ids = IdSource()
    exchange = exchange_of(served, facts)
    trace_id, above = _above(exchange.traceparent)
    context = ProbeContext("attach", "once", deep, exchange.model, _Recorded(served, facts), None, exchange, served.rid,
                           dict(options or {}))  # fmt: skip
    records = server_side(served.raws, exchange, served.rid)
    records += waits_for_others(served.rid, served.request, served.raws, served.others_end_ns)
    span_id = ids.span_id()
    for record in records:
        if record.key == f"request-http:{served.rid}":
            record.span_id, record.join = span_id, ""
    states = [LayerState(8, "seen", ONE_SIDE)]
    for number in (*LIGHT, *(DEEP if deep else ())):
        states.append(_collect(number, context, records))
    if not deep:
        states += [LayerState(number, "unseen", NOT_DEEP, 'ask a prompt of your own: tokentrace attach URL "Hi"')
                   for number in DEEP]  # fmt: skip
    states.append(LayerState(1, "unseen", NO_POWER))
    one = PassRecords("once", exchange.start_ns, exchange.end_ns, records, states, span_id, served.rid, {}, exchange)
    if told is not None:
        key = f"request-http:{served.rid}"
        processes = {**processes, **add_told(one, told, processes, key, "request_id")}
        trace_id = trace_id or next((span.trace_id for span in told.spans), 0)
    meta: dict[str, Any] = {
        "prompt": "",
        "mode": "attach",
        "engine": dict(facts),
        "endpoint": exchange.url,
        "model": exchange.model,
        "created_ns": time.time_ns(),
    }
    if above:
        meta["parent_span_id"] = above
    return stitch([one], ids=ids, trace_id=trace_id, root_name="tokentrace attach", processes=processes,
                  attributes={"tokentrace.mode": "attach"}, meta=meta)  # fmt: skip


def _collect(number: int, context: ProbeContext, records: list[Record]) -> LayerState:
    probe = create(by_number(number))
    try:
        records.extend(probe.collect(context))
        return probe.state
    except ProbeUnavailable as error:
        if number in DEEP and str(error) in (NO_RECORDING, NO_EVENTS, NO_OURS):
            return LayerState(number, "unseen", SPENT, "watch longer, or raise --steps", probe.state.facts)
        return LayerState(number, "unseen", str(error), error.fix, probe.state.facts)
    except Exception as error:  # noqa: BLE001 - a layer that fails never fails the others
        return LayerState(number, "unseen", f"its probe failed: {type(error).__name__}: {error}")


def exchange_of(served: Served, facts: Mapping[str, Any]) -> Exchange:
    """The exchange as it must have been, from the server's records alone."""
    request, finish, submit = served.request, served.first("finish"), served.first("submit")
    data = request.data
    writes = sorted(served.named("write"), key=lambda raw: raw.start_ns)
    # A reply in one piece has no token times.
    streamed = len(writes) > 2
    exchange = Exchange(
        str(data.get("path") or ""),
        str(facts.get("model") or ""),
        0,
        str(data.get("traceparent") or ""),
        {"stream": streamed},
        start_ns=request.start_ns,
        end_ns=request.end_ns,
        status_code=int(data.get("status") or 0),
        response_bytes=sum(int(raw.data.get("bytes") or 0) for raw in writes),
        response_id=served.rid,
        finish_reason=ended(served.raws),
        streamed=streamed,
        complete="error" not in data and (finish is not None or bool(ended(served.raws))),
        error_type=str(data.get("error") or ""),
        notes=[ONE_SIDE],
    )
    if exchange.status_code >= 400:
        how = "refused it" if exchange.status_code < 500 else "failed"
        exchange.error = EndpointError(
            f"the server {how}: HTTP {exchange.status_code}",
            fix="look at what its client sent; the server's log may say more",
            layer=8,
        )
    if served.replies > 1:
        tokens = "" if served.tokens is None else f", of {served.tokens} tokens in all"
        exchange.notes.append(f"the request asked for {served.replies} replies{tokens}: this is the way of the first")
    usage = {}
    if submit is not None and "tokens" in submit.data:
        usage["prompt_tokens"] = submit.data["tokens"]
    if finish is not None and "tokens" in finish.data:
        usage["completion_tokens"] = finish.data["tokens"]
    exchange.usage = usage or None
    exchange.chunks = _chunks(served.named("decode"), writes) if streamed else []
    exchange.text = "".join(str(raw.data.get("text", "")) for raw in served.named("decode"))
    return exchange


def _chunks(decoded: Sequence[Raw], writes: Sequence[Raw]) -> list[Chunk]:
    """A chunk for each new token: it left with the first write after it was decoded."""
    chunks, at = [], 0
    for raw in sorted(decoded, key=lambda one: one.start_ns):
        while at < len(writes) and writes[at].start_ns < raw.end_ns:
            at += 1
        if at == len(writes):
            break
        write = writes[at]
        chunks.append(Chunk(write.end_ns, "content", str(raw.data.get("text", "")), 0, int(write.data.get("bytes", 0))))
    return chunks


def _above(traceparent: str) -> tuple[int, int]:
    """(trace id, span id) of the span a request came from; zeros when it came from none."""
    parts = traceparent.split("-")
    try:
        return (int(parts[1], 16), int(parts[2], 16)) if len(parts) >= 4 else (0, 0)
    except ValueError:
        return 0, 0
