"""What `tokentrace attach` says of a server: what was found, how deep it looks, what it would do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tokentrace.cli import _streams
from tokentrace.wording import duration, plural

if TYPE_CHECKING:
    from rich.console import Console

    from tokentrace.attach import Attached, Found, ServerProcess
    from tokentrace.attach.plan import Plan
    from tokentrace.receive import Receiver

#: Sentences about what was not seen of watched requests, printed at most.
_GAPS = 3


def _speaker(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(text, markup=False, soft_wrap=True)


def _say_depth(say: Callable[[str], None], one: Attached | Plan) -> None:
    """What was found, how deep that lets us look, and why not deeper."""
    from tokentrace.attach.why import by_fix

    for sentence in about(one.found):
        say(sentence)
    if one.found.not_ready:
        say(f"  it takes no requests: {one.found.not_ready}")
    say(f"depth: {one.depth}")
    for reasons, fix in by_fix(one.whys):
        for reason in reasons:
            say(f"  not deeper: {reason}")
        if fix:
            say(f"  fix: {fix}")


def as_document(attached: Attached) -> dict[str, Any]:
    """How deep we got, by which method, and in which processes, for JSON. `way`: waits, how the agent was put in, or
    "" where there is none, as that process's `reason` says."""
    from tokentrace.attach.plan import process_in_json
    from tokentrace.attach.why import NOTHING

    ways = {one.process.pid: one.way or "waits" for one in attached.inside}
    whys = {one.process.pid: one.why for one in attached.left_alone}
    return {
        "method": attached.method,
        "depth": attached.depth,
        "reason": attached.reason,
        "fix": attached.fix,
        "processes": [
            process_in_json(one, ways.get(one.pid, ""), whys.get(one.pid, NOTHING)) for one in attached.found.processes
        ],
        "notes": list(attached.notes),
    }


def show_attached(attached: Attached, console: Console, receiver: Receiver | None = None) -> None:
    """How deep we got and why, and where; where the server's own spans are waited for, or could be."""
    from tokentrace.attach.own_spans import advice

    say = _speaker(console)
    _say_depth(say, attached)
    for one in attached.inside:
        how = f"agent put in ({one.way})" if one.way else "agent was waiting"
        held = f", one thread held for {duration(one.held_ns)}" if one.held_ns else ""
        say(f"  {_named(one.process)}: {how}{held}")
    for note in attached.notes:
        say(f"  note: {note}")
    if receiver is not None:
        say(f"  its own spans are taken at {receiver.where}")
    for note in advice(attached.found, attached.depth, receiver):
        say(f"  note: {note}")
    say("")


def about(found: Found) -> list[str]:
    """One line on what was found."""
    engine = {"vllm": "vLLM", "tokentrace": "the local engine"}.get(found.engine, "an unknown engine")
    version = found.version or "version unknown: only functions that are found by name are watched"
    if not found.processes:
        version = found.version or "version unknown"
    where = f" at {found.base_url}" if found.base_url else ""
    count = f", {plural(len(found.processes), 'process', 'processes')}" if found.processes else ""
    return [f"{engine} ({version}){where}{count}"]


def _named(process: ServerProcess) -> str:
    return f"{process.part} (process {process.pid}, Python {process.python or 'unknown'})"


def show_gaps(gaps: Mapping[str, int], console: Console) -> None:
    """What was not seen of watched requests, and in how many of them."""
    for sentence, count in list(gaps.items())[:_GAPS]:
        console.print(f"in {plural(count, 'request')}: {sentence}", markup=False, soft_wrap=True)
    if len(gaps) > _GAPS:
        console.print(f"and {len(gaps) - _GAPS} more such sentences: tokentrace show of the runs", markup=False)


def show_plan(plan: Plan, console: Console, *, as_json: bool) -> None:
    """What would be done, as text or as JSON."""
    if as_json:
        _streams.print_json(plan.to_json())
        return

    say = _speaker(console)
    if plan.refused:
        say(f"attaching is refused now: {plan.refused}")
        say(f"  fix: {plan.refused_fix}")
    _say_depth(say, plan)
    say("processes:" if plan.processes else "processes: none that can be looked into")
    for one in plan.processes:
        way = {"waits": "an agent waits there", "taken": "its agent is taken", "": "left alone"}.get(
            one.way, f"an agent would be put in ({one.way})"
        )
        say(f"  {_named(one.process)}: {way}{': ' + one.why.reason if one.why.reason else ''}")
    if plan.wraps:
        say("would wrap, and put back at the end:")
        for role, targets in plan.wraps.items():
            say(f"  {role}: {plural(len(targets), 'function')}")
            for target in targets:
                say(f"    {target}")
    else:
        say("would wrap: nothing")
    say("layers:")
    for layer in plan.layers:
        say(f"  {layer.number} {layer.title}: {'seen' if layer.seen else 'unseen'}: {layer.what}")
        if layer.fix and not layer.seen:
            say(f"      to see it: {layer.fix}")
