"""Layer 6: how long the request waited, and every step of the engine that served it.

From inside (the agent's group "engine"): submission, waiting, each step with its phase, batch, tokens and KV blocks.
From outside: the server's /metrics before and after the request. What it counts is everybody's: the figures are this
request's own only when it ended well, was the only one that ended in between, and what is counted of that one fits
what the reply said of itself; the span says whose they are.

`state.facts`: from inside steps, prefill_steps, decode_steps, mixed_steps, shared_steps, queue_wait_ns (in the
scheduler's queue, as vLLM counts it), input_queue_ns (before that), finish_reason;
from outside engines (each with running, waiting, kv_usage, these before, the means, the counts and whose they are),
the same of a single engine as metrics_*, metrics_note (whose they are), findings (sentences).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokentrace.errors import EndpointError
from tokentrace.exchange import Exchange
from tokentrace.model import DOWN, UP, Attributes, Record
from tokentrace.probe import Finding, LayerState, ProbeContext, ProbeUnavailable, Raw, Server
from tokentrace.probes import _metrics
from tokentrace.probes._agent import AgentProbe, without_agent
from tokentrace.probes._hops import hops
from tokentrace.probes._request import ended, our_id, step_key, step_of
from tokentrace.wording import plural

LAYER = 6
GROUP = "engine"
FIX = "look inside it on its own machine (tokentrace attach URL), or use one that offers /metrics (vLLM, SGLang)"
_NAMES = {
    "wait": "queue wait", "prepare": "prepare batch", "update": "update batch", "receive": "receive request",
    "output": "process outputs", "dispatch": "dispatch step",
}  # fmt: skip
_UP = frozenset(("update", "finish", "output"))
#: An engine may count a finished request a moment after its last chunk has arrived.
_COUNTED_S = 0.5


class QueueProbe(AgentProbe):
    """See the module's docstring."""

    layer = LAYER

    def __init__(self) -> None:
        super().__init__()
        self._before: list[_metrics.Engine] | None = None
        self._unread: ProbeUnavailable | None = None

    def check(self, context: ProbeContext) -> Iterable[Finding]:
        if context.agent is not None:
            return [Finding(LAYER, "the engine's steps can be seen through the agent")]
        if context.server is None:
            return [Finding(LAYER, "there is no server to ask", fix=FIX, status="unknown")]
        try:
            engines = _read(context.server)
        except ProbeUnavailable as error:
            return [Finding(LAYER, str(error), fix=error.fix, status="unknown")]
        found = [Finding(LAYER, text, "/metrics", "send less at once, or give the cache more memory", "warn")
                 for text in _metrics.warnings(engines)]  # fmt: skip
        return found or [Finding(LAYER, "; ".join(_told(engine) for engine in engines), "/metrics")]

    def arm(self, context: ProbeContext) -> None:
        self.state = LayerState(LAYER)
        self._before = self._unread = None
        if context.agent is not None:
            self._enable(context.agent, GROUP)
        elif context.server is not None:
            try:
                self._before = _read(context.server)
            except ProbeUnavailable as error:
                self._unread = error  # told by collect: the request itself is not touched by this

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        if context.agent is None:
            return self._outside(context)
        raws = context.agent.records(GROUP)
        missing = without_agent(context, "engine")
        steps = {(r.process, r.data["index"]): r for r in raws if r.name == "step"}
        served = (str(rid) for step in steps.values() for rid in step.data.get("reqs", ()))
        rid = our_id(context, served) or our_id(context, (str(r.data.get("rid", "")) for r in raws))
        if not rid and context.mode == "trace":  # a call in the program itself: there is no server's log
            raise missing or ProbeUnavailable("the engine recorded nothing for this call")
        if not rid:
            raise missing or ProbeUnavailable(
                "the engine recorded no request of ours" if not steps else "which of its requests is ours is not known",
                fix="look at the server's log: the request may have been refused before it came to the engine",
            )
        ours = {key: step for key, step in steps.items() if rid in step.data.get("reqs", ())}
        records = [_step(raw, rid) for raw in ours.values()]
        records += [_part(raw) for raw in raws if raw.name in _PARTS and step_of(raw) in ours]
        own = [raw for raw in raws if raw.data.get("rid") == rid]
        work = [raw for raw in context.agent.records("model") if raw.name == "work" and step_of(raw) in ours]
        between = hops([raw for raw in raws if step_of(raw) in ours], own, work, rid)
        records += between
        why = ended(own)
        records += [_own(raw, rid, why) for raw in own]
        if not records:
            raise ProbeUnavailable("the engine recorded nothing for this request", fix="look at the server's log")
        records.append(_request([*own, *ours.values()], rid))
        if missing is not None:
            self.state.reason, self.state.fix = f"its steps are not seen: {missing}", missing.fix
        self._facts(list(ours.values()), own)
        for one in between:
            if one.name == "input queue":
                self.state.facts["input_queue_ns"] = one.end_ns - one.start_ns
        return records

    def _facts(self, steps: Sequence[Raw], own: Sequence[Raw]) -> None:
        facts = self.state.facts
        facts["steps"] = len(steps)
        for phase in ("prefill", "decode", "mixed"):
            facts[f"{phase}_steps"] = sum(step.data.get("phase") == phase for step in steps)
        facts["shared_steps"] = sum(int(step.data.get("batch") or 1) > 1 for step in steps)
        waits = [raw.end_ns - raw.start_ns for raw in own if raw.name == "wait"]
        if waits:
            facts["queue_wait_ns"] = sum(waits)
        if any(raw.name == "finish" for raw in own):
            facts["finish_reason"] = ended(own)

    def _outside(self, context: ProbeContext) -> list[Record]:
        server, exchange = context.server, context.exchange
        if self._unread is not None:
            raise self._unread
        if server is None or exchange is None or self._before is None:
            raise ProbeUnavailable("there is no server to ask", fix=FIX)
        changes = _metrics.change(self._before, _read(server))
        deadline = time.monotonic() + _COUNTED_S
        while exchange.complete and not _counted(changes, exchange) and time.monotonic() < deadline:
            time.sleep(0.05)
            changes = _metrics.change(self._before, _read(server))
        self.state.facts["findings"] = _metrics.warnings([one.engine for one in changes])
        if any(one.restarted for one in changes):
            self.state.reason = "the engine was started anew in between: its counts say nothing of this request"
        records = [_metrics_record(one, changes, exchange) for one in changes]
        told = [{key.removeprefix("tokentrace.metrics."): value for key, value in one.attributes.items()}
                for one in records]  # fmt: skip
        self.state.facts["engines"] = told
        if len(told) == 1:
            self.state.facts.update({f"metrics_{key}": value for key, value in told[0].items()})
        return records


_PARTS = frozenset(("schedule", "prepare", "dispatch", "update"))


def _step(raw: Raw, rid: str) -> Record:
    data = raw.data
    reqs: dict[str, int] = data["reqs"]
    mine, total = reqs.get(rid, 0), data.get("tokens") or sum(reqs.values())
    attributes: Attributes = {
        "tokentrace.step.index": data["index"],
        "tokentrace.step.phase": data.get("phase", ""),
        "tokentrace.step.batch_size": data.get("batch", len(reqs)),
        "tokentrace.step.scheduled_tokens": total,
        "tokentrace.step.request_tokens": mine,
        "tokentrace.step.share": mine / total if total else 0.0,
    }
    for name, key in (("running", "running"), ("waiting", "waiting"), ("kv_blocks_used", "kv_used"),
                      ("kv_blocks_total", "kv_total")):  # fmt: skip
        if data.get(key) is not None:  # what this engine does not tell is left out
            attributes[f"tokentrace.step.{name}"] = data[key]
    if data.get("siblings"):
        attributes["tokentrace.step.siblings"] = data["siblings"]
    if "preempted" in data:
        attributes["tokentrace.step.preempted"] = len(data["preempted"])
    cached = data.get("cached_tokens", {}).get(rid)
    if cached is not None:
        attributes["tokentrace.step.cached_tokens"] = cached
    token = data.get("ids", {}).get(rid)
    if token is not None:
        attributes["tokentrace.token.id"] = token
    batch = int(attributes["tokentrace.step.batch_size"])
    others = "" if batch < 2 else f", {total - mine} of {batch - 1} others"
    attributes["tokentrace.form.in"] = f"{mine} token{'s' * (mine != 1)}{others}"
    if token is not None:
        attributes["tokentrace.form.out"] = f"id {token}"
    return Record(
        "step", LAYER, raw.start_ns, raw.end_ns, attributes, DOWN, raw.process, raw.thread,
        key=f"step:{raw.process}:{data['index']}", parent_key=f"request:{rid}", request=rid, join="request_id",
    )  # fmt: skip


def _part(raw: Raw) -> Record:
    """A part of a step: it lies inside it in time, on its thread."""
    attributes: Attributes = {"tokentrace.step.index": raw.data["index"]}
    # In the scheduler's own process it lies inside the step in time; from another one it names its step.
    parent = step_key(raw) if "engine" in raw.data else ""
    return Record(
        _NAMES.get(raw.name, raw.name), LAYER, raw.start_ns, raw.end_ns, attributes,
        UP if raw.name in _UP else DOWN, raw.process, raw.thread, parent_key=parent, join="step",
    )  # fmt: skip


def _own(raw: Raw, rid: str, reason: str) -> Record:
    """What happened to our request alone. `reason`: why it ended, as whoever answered it has it."""
    attributes: Attributes = {}
    data = raw.data
    if raw.name == "submit":
        attributes["tokentrace.form.in"] = f"{data.get('tokens', '?')} ids"
        attributes["tokentrace.form.out"] = "a request in the engine's queue"
    if "tokens" in data:
        attributes["tokentrace.tokens.count"] = data["tokens"]
    if "reason" in data:
        attributes["tokentrace.finish_reason"] = reason
        if data["reason"] != reason:
            attributes["tokentrace.engine.finish_reason"] = data["reason"]
    return Record(
        _NAMES.get(raw.name, raw.name), LAYER, raw.start_ns, raw.end_ns, attributes,
        UP if raw.name in _UP else DOWN, raw.process, raw.thread, parent_key=f"request:{rid}", request=rid,
        join="request_id", flow=True, envelope=raw.name == "output",  # detokenizing is most of it
    )  # fmt: skip


def _request(parts: Sequence[Raw], rid: str) -> Record:
    """The envelope around everything the engine did for the request."""
    steps = sum(raw.name == "step" for raw in parts)
    attributes: Attributes = {"tokentrace.request_id": rid, "tokentrace.steps": steps}
    return Record(
        "request", LAYER, min(raw.start_ns for raw in parts), max(raw.end_ns for raw in parts), attributes, DOWN,
        parts[0].process, parts[0].thread, key=f"request:{rid}", parent_key=f"request-http:{rid}", request=rid,
        join="request_id", flow=True, envelope=True,
    )  # fmt: skip


def _read(server: Server) -> list[_metrics.Engine]:
    """Raises ProbeUnavailable with the reason and the server's version."""
    try:
        text = server.get_text("/metrics")
    except EndpointError as error:
        raise ProbeUnavailable(f"the engine's metrics are not available: {error}{_version(server)}", fix=FIX) from error
    try:
        engines = _metrics.parse(text)
    except ValueError as error:
        said = f"what the server answers on /metrics is no Prometheus text{_version(server)}"
        raise ProbeUnavailable(f"the engine's metrics are not available: {said}", fix=FIX) from error
    if not engines:
        said = f"none of the known figures is on the server's /metrics{_version(server)}"
        raise ProbeUnavailable(f"the engine's metrics are not available: {said}", fix=FIX)
    return engines


def _version(server: Server) -> str:
    try:
        told = json.loads(server.get_text("/version"))
    except (EndpointError, ValueError):
        return ""
    version = told.get("version") if isinstance(told, dict) else None
    return f" (its version is {version})" if isinstance(version, str) else ""


def _counted(changes: Sequence[_metrics.Change], exchange: Exchange) -> bool:
    """Whether our request may have ended by these counts, or they do not say."""
    if any(one.restarted or one.finished is None for one in changes):
        return True
    ended = [one for one in changes if one.finished]
    return bool(ended) and (len(ended) > 1 or ended[0].finished != 1 or not _unlike(ended[0], exchange))


def _unlike(one: _metrics.Change, exchange: Exchange) -> str:
    """Why the one request that ended cannot be ours, by what the server and the reply count of it; "" when it can."""
    ours = {"prompt": exchange.input_tokens, "generation": exchange.output_tokens}
    for name, words in (("prompt", "prompt"), ("generation", "reply")):
        expected = ours[name]
        if expected is None:
            continue
        size, every = one.sizes.get(name), one.counters.get(f"{name}_tokens")
        if size is not None and size != expected:
            return f"it had {plural(size, f'{words} token')}, ours {expected}"
        if size is None and every is not None and every < expected:  # of other requests it may have counted more
            return f"{plural(every, f'{words} token')} were counted, and ours had {expected}"
    return ""


def _metrics_record(one: _metrics.Change, changes: Sequence[_metrics.Change], exchange: Exchange) -> Record:
    """A span of no length: when within the request these times passed is not known from outside."""
    attributes: Attributes = dict(_flat(one))
    whose, alone = _whose(one, changes, exchange)
    attributes["tokentrace.metrics.alone"] = alone
    attributes["tokentrace.metrics.note"] = f"/metrics before and after; {whose}{_without_decoding(one)}"
    at_ns = exchange.start_ns
    return Record("engine metrics", LAYER, at_ns, at_ns, attributes, DOWN, parent_key="chat", flow=True, join="time")


def _whose(one: _metrics.Change, changes: Sequence[_metrics.Change], exchange: Exchange) -> tuple[str, bool]:
    """Whose figures these are, and whether they are our request's alone."""
    if one.restarted or one.finished == 0:
        return "no request was counted in between; only the state at its end is known", False
    if one.finished is None:
        return "this engine does not count requests: they are the server's, and others may have been in it", False
    ended = f"{plural(one.finished, 'request')} ended in between"
    if not exchange.complete:
        return f"{ended}; ours brought no whole reply, so whether it is among them is not known", False
    if sum(other.finished or 0 for other in changes) > 1:
        ours = "ours among them" if len(changes) == 1 else "ours among those of all engines"
        return f"means over the {ended.replace(' ended', ' that ended')}, {ours}", False
    if unlike := _unlike(one, exchange):
        return f"the one request that ended in between was not ours: {unlike}", False
    whose = "only this request ended in between: the times are its own"
    if one.before.get("running") or one.engine.gauges.get("running"):
        between = " and the time between tokens" if "inter_token_latency" in one.means else ""
        return f"{whose}, the token counts{between} may hold those of others that were running", True
    return f"{whose}, and so are the counts", True


def _without_decoding(one: _metrics.Change) -> str:
    """That requests of one token are in no figure of decoding."""
    if not one.one_token:
        return ""
    if one.one_token == one.finished:
        return "; a reply of one token has no decoding, and no time per token"
    left = (one.finished or 0) - one.one_token
    return f"; decode and time per token over the {left} of more than one token"


def _flat(one: _metrics.Change) -> Iterator[tuple[str, Any]]:
    if one.engine.name:
        yield "tokentrace.metrics.engine", one.engine.name
    for name, value in one.engine.gauges.items():
        yield f"tokentrace.metrics.{name}", value if name == "kv_usage" else round(value)
        if name in one.before:
            before = one.before[name]
            yield f"tokentrace.metrics.{name}_before", before if name == "kv_usage" else round(before)
    for name, seconds in one.means.items():
        yield f"tokentrace.metrics.{name}_s", seconds
    for name, count in one.counters.items():
        yield f"tokentrace.metrics.{name}", count
    if one.finished is not None:
        yield "tokentrace.metrics.requests", one.finished


def _told(engine: _metrics.Engine) -> str:
    gauges = engine.gauges
    parts = [f"{gauges[name]:.0f} {name}" for name in ("running", "waiting") if name in gauges]
    if "kv_usage" in gauges:
        parts.append(f"KV cache {gauges['kv_usage']:.0%} full")
    return (f"{engine.name}: " if engine.name else "") + (", ".join(parts) or "figures of finished requests only")
