"""From the requests and generations of a block to the passes of its trace: what each layer saw of every one of them."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tokentrace.errors import EndpointError, ProbeUnavailable
from tokentrace.exchange import Exchange
from tokentrace.layers import by_number, load
from tokentrace.model import Record
from tokentrace.probe import LayerState, Probe, ProbeContext
from tokentrace.registry import create
from tokentrace.stitch import PassRecords
from tokentrace.tracing.in_process import InProcess
from tokentrace.tracing.stages import Stage, Stages

OUTSIDE = "it lies inside the server, and only the program's own side was watched"
FAILED_FIX = "see the error in the program: its words are kept out of the trace"
OUTSIDE_FIX = "tokentrace run PROMPT --url URL asks the server for more"


@dataclass(slots=True)
class Watched:
    """One request or one generation, and the stage of the program it belongs to."""

    stage: Stage | None
    start_ns: int
    end_ns: int
    exchange: Exchange
    request_id: str = ""  # of a generation in this process; "" for a request that was sent
    left_with: str = ""  # the kind of error with which the program left it


def generations(inside: InProcess, stages: Stages) -> list[Watched]:
    """What is known of each generation in this process, in the form in which the report knows requests."""
    return [_generation(inside, stages, rid, start, end) for rid, start, end in inside.requests()]


def _generation(inside: InProcess, stages: Stages, rid: str, start_ns: int, end_ns: int) -> Watched:
    facts = inside.facts_of(rid)
    exchange = Exchange("", str(facts["model"]), 0, "", start_ns=start_ns, end_ns=end_ns, complete=True)
    if facts["prompt"]:
        exchange.request = {"prompt": facts["prompt"]}
    exchange.text, exchange.finish_reason = str(facts["reply"]), str(facts["finish_reason"])
    exchange.usage = {key: facts[key] for key in ("prompt_tokens", "completion_tokens") if facts[key]}
    heard = inside.stage_of.get(rid)
    # By its end, not by the decoding behind it, which may lie in the next stage.
    stage, told = heard if heard is not None else stages.at(facts["finished_ns"], facts["thread"])
    if told:
        exchange.notes.append(told)
    left_with = inside.failed_with.get(rid, "")
    if left_with:
        exchange.complete, exchange.error_type = False, left_with
        exchange.error = EndpointError(f"generate raised {left_with}", fix=FAILED_FIX, layer=6)
    return Watched(stage, start_ns, end_ns, exchange, rid, left_with)


def names(stages: Sequence[Stage | None]) -> list[str]:
    """A name for each pass: its stage, or "call"; numbered where one name would stand twice."""
    wanted = [stage.name or "call" if stage is not None else "call" for stage in stages]
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


def pass_of(
    name: str, one: Watched, inside: InProcess, *, group: int, deep: bool, layers: frozenset[int] | None
) -> PassRecords:
    """What the probes saw of it. A layer that fails is unseen, with the reason. `group`: the number of its stage."""
    records: list[Record] = []
    states: dict[int, LayerState] = {}
    sent = not one.request_id
    # A server that is not on this machine has its power elsewhere, as with `run --url`.
    context = ProbeContext("url" if sent else "trace", name, deep, exchange=one.exchange)
    if sent:
        _collect(8, create(by_number(8)), context, records, states)
        probes: Sequence[Probe] = [p for p in inside.probes if p.layer == 1]
    else:
        context.agent, context.request_id = inside.agent, one.request_id
        states[8] = LayerState(8, "unseen", "the model was called in this process, no request was sent")
        probes = inside.probes
    for probe in probes:
        _collect(probe.layer, probe, context, records, states)
    for layer in load():
        if layer.number in states or (layers is not None and layer.number not in layers):
            continue
        if sent:
            states[layer.number] = LayerState(layer.number, "unseen", OUTSIDE, OUTSIDE_FIX)
        elif layer.number in inside.unseen:
            states[layer.number] = inside.unseen[layer.number]
    ordered = [states[number] for number in sorted(states, reverse=True)]
    span_id = one.exchange.span_id
    told = {"tokentrace.stage": one.stage.name} if one.stage is not None else {}
    return PassRecords(
        name, one.start_ns, one.end_ns, records, ordered, span_id, one.request_id, told, one.exchange, group
    )


def _collect(
    number: int, probe: Probe, context: ProbeContext, records: list[Record], states: dict[int, LayerState]
) -> None:
    try:
        records += probe.collect(context)
        states[number] = copy.deepcopy(probe.state)  # the probe is asked again for the next call
    except ProbeUnavailable as error:
        states[number] = LayerState(number, "unseen", str(error), error.fix)
    except Exception as error:  # noqa: BLE001 - a layer that fails never fails the trace
        states[number] = LayerState(number, "unseen", f"its probe failed: {type(error).__name__}: {error}")


def empty_pass(start_ns: int, end_ns: int) -> PassRecords:
    """Of a block in which nothing happened that can be watched."""
    why = "no request and no call of a model was seen inside the block"
    states = [LayerState(layer.number, "unseen", why) for layer in load()]
    return PassRecords("once", start_ns, end_ns, [], states)
