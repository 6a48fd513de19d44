"""Which of the records in a serving process belong to our request."""

from __future__ import annotations

from collections.abc import Iterable

from tokentrace.probe import ProbeContext, Raw


def our_id(context: ProbeContext, known: Iterable[str] = ()) -> str:
    """The server's id of our request, "" when it cannot be told.

    In this order: as given, the reply's id, the request that carried our traceparent. Servers may lengthen an id on
    the way in ("chatcmpl-x" becomes "chatcmpl-x-1a2b3c4d"): of the ids in `known`, the one that begins with ours is
    taken then. The only one there is is ours as well.
    """
    exchange = context.exchange
    wanted = [context.request_id]
    if exchange is not None:
        wanted.append(exchange.response_id)
        if context.agent is not None and exchange.traceparent:
            for raw in context.agent.records("http"):
                if same_span(str(raw.data.get("traceparent", "")), exchange.traceparent):
                    wanted.append(str(raw.data.get("rid", "")))
    there = {one for one in known if one}
    for one in filter(None, wanted):
        if not there or one in there:
            return one
        longer = [rid for rid in there if rid.startswith(one)]
        if len(longer) == 1:
            return longer[0]
    return next(iter(there)) if len(there) == 1 else ""


def same_span(theirs: str, ours: str) -> bool:
    """Whether a server's traceparent names the span we sent. A proxy may have changed the flags, but not the ids."""
    got, sent = theirs.split("-"), ours.split("-")
    return len(got) >= 3 and len(sent) >= 3 and got[1:3] == sent[1:3]


def step_of(raw: Raw) -> tuple[str, int]:
    """Which step a record belongs to: the scheduler's process and the step's number there. A worker in a process of
    its own says whose step it was."""
    return str(raw.data.get("engine", raw.process)), int(raw.data.get("index", -1))


def step_key(raw: Raw) -> str:
    """The key of that step's record."""
    process, index = step_of(raw)
    return f"step:{process}:{index}"


def ended(own: Iterable[Raw]) -> str:
    """Why a request ended, by its own records: stop, length, abort, …; "" not known.

    The process that answers wins over the engine: where it finds a stop string in the text, the reply is whole, and the
    engine is told to abort what it still makes for it.
    """
    told = list(own)
    answered = next((str(raw.data["ended"]) for raw in told if raw.name == "output" and raw.data.get("ended")), "")
    return answered or next((str(raw.data.get("reason") or "") for raw in told if raw.name == "finish"), "")


def window(context: ProbeContext) -> tuple[int, int]:
    """The time of our exchange in ns; everything when there was none."""
    exchange = context.exchange
    if exchange is None or not exchange.end_ns:
        return 0, 1 << 63
    return exchange.start_ns, exchange.end_ns
