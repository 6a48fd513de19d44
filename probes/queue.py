"""Layer 6: submission, waiting, and every step of the engine that served the request.

From inside (agent): the engine's own steps with batch and KV blocks. From outside: the server's /metrics before and
after; what it counts is everybody's, so the difference is labelled with how many requests ended in that time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokentrace.errors import EndpointError, ProbeUnavailable
from tokentrace.model import DOWN, UP, Attributes, Record
from tokentrace.probe import Finding, LayerState, ProbeContext, Raw
from tokentrace.probes._metrics import Scrape, difference

LAYER = 6
FIX = "trace a server with the agent in it, or one that offers /metrics (vLLM, SGLang)"
_NAMES = {"wait": "queue wait", "prepare": "prepare batch", "update": "update batch"}


class QueueProbe:
    """See the module's docstring."""

    layer = LAYER

    def __init__(self) -> None:
        self.state = LayerState(LAYER)
        self._agent: Any = None
        self._before: Scrape | None = None
        self._why = ""

    def check(self, context: ProbeContext) -> Iterable[Finding]:
        return ()

    def arm(self, context: ProbeContext) -> None:
        self.state = LayerState(LAYER)
        if context.agent is not None:
            context.agent.enable("engine")
            self._agent = context.agent
        elif context.server is not None:
            try:
                self._before = Scrape.of(context.server.get_text("/metrics"))
            except EndpointError as error:
                self._why = str(error)

    def disarm(self) -> None:
        if self._agent is not None:
            self._agent.disable("engine")
            self._agent = None

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        if context.agent is None:
            return [self._outside(context)]
        rid = context.request_id
        raws = context.agent.records("engine")
        steps = {r.data["index"]: r for r in raws if r.name == "step"}
        ours = {i for i, r in steps.items() if not rid or rid in r.data.get("reqs", {})}
        records = [_record(raw, rid) for raw in raws if _belongs(raw, rid, ours)]
        mine = [r for r in raws if r.data.get("rid") == rid and rid]
        if mine:
            first, last = min(r.start_ns for r in mine), max(r.end_ns for r in mine)
            last = max([last, *(steps[i].end_ns for i in ours)])
            attributes: Attributes = {"tokentrace.request_id": rid, "tokentrace.steps": len(ours)}
            records.append(
                Record(
                    "request", LAYER, first, last, attributes, DOWN, mine[0].process, mine[0].thread,
                    key=f"request:{rid}", parent_key=f"request-http:{rid}", request=rid, join="request_id",
                    flow=True, envelope=True,
                )
            )  # fmt: skip
        if not records:
            raise ProbeUnavailable("the engine recorded nothing for this request", fix="look at the server's log")
        return records

    def _outside(self, context: ProbeContext) -> Record:
        exchange = context.exchange
        if context.server is None or exchange is None or self._before is None:
            raise ProbeUnavailable(f"seen only from outside, and {self._why or 'there is no server to ask'}", fix=FIX)
        try:
            after = Scrape.of(context.server.get_text("/metrics"))
        except EndpointError as error:
            raise ProbeUnavailable(f"seen only from outside, and {error}", fix=FIX) from error
        facts = difference(self._before, after)
        if not facts:
            raise ProbeUnavailable("its /metrics has no figure that is known", fix=FIX)
        self.state.facts.update(facts)
        attributes = {f"tokentrace.metrics.{name}": value for name, value in facts.items()}
        attributes["tokentrace.note"] = "from /metrics before and after; other requests of that time count too"
        return Record(
            "engine metrics", LAYER, exchange.start_ns, exchange.start_ns, attributes, DOWN,
            parent_key="chat", flow=True, join="time",
        )  # fmt: skip


def _belongs(raw: Raw, rid: str, ours: set[int]) -> bool:
    if "index" in raw.data:
        return raw.data["index"] in ours
    return not rid or raw.data.get("rid") == rid


def _record(raw: Raw, rid: str) -> Record:
    data = raw.data
    name = _NAMES.get(raw.name, raw.name)
    way = UP if raw.name in ("update", "finish") else DOWN
    request = f"request:{rid}"
    place: dict[str, Any] = {"process": raw.process, "thread": raw.thread}
    if raw.name == "step":
        reqs: dict[str, int] = data["reqs"]
        attributes: Attributes = {
            "tokentrace.step.index": data["index"],
            "tokentrace.step.phase": data["phase"],
            "tokentrace.step.batch_size": data["batch"],
            "tokentrace.step.scheduled_tokens": data["tokens"],
            "tokentrace.step.request_tokens": reqs.get(rid, 0),
            "tokentrace.step.running": data["running"],
            "tokentrace.step.waiting": data["waiting"],
            "tokentrace.step.kv_blocks_used": data["kv_used"],
            "tokentrace.step.kv_blocks_total": data["kv_total"],
            "tokentrace.step.preempted": len(data.get("preempted", ())),
        }
        cached = data.get("cached_tokens", {}).get(rid)
        if cached is not None:
            attributes["tokentrace.step.cached_tokens"] = cached
        if data.get("ids", {}).get(rid) is not None:
            attributes["tokentrace.token.id"] = data["ids"][rid]
        attributes["tokentrace.form.in"] = f"{reqs.get(rid, 0)} of {data['tokens']} tokens in the batch"
        return Record(
            name, LAYER, raw.start_ns, raw.end_ns, attributes, way,
            key=f"step:{raw.process}:{data['index']}", parent_key=request, join="request_id", **place,
        )  # fmt: skip
    if "index" in data:
        return Record(name, LAYER, raw.start_ns, raw.end_ns, {}, way, join="time", **place)
    attributes = {"tokentrace.tokens.count": data["tokens"]} if "tokens" in data else {}
    if raw.name == "submit":
        attributes["tokentrace.form.in"] = f"{data['tokens']} ids"
        attributes["tokentrace.form.out"] = "request in the engine's queue"
    return Record(
        name, LAYER, raw.start_ns, raw.end_ns, attributes, way, parent_key=request, request=rid, join="request_id",
        flow=True, **place,
    )  # fmt: skip
