"""How the reply came: at once, in bursts, with a token that was late."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from tokentrace.analyze._passes import name_of
from tokentrace.model import Trace
from tokentrace.probe import Finding
from tokentrace.wording import duration, plural

if TYPE_CHECKING:
    from tokentrace.analyze import Analysis, PassTimes

_SMALL_NS = 1_000_000


def bursts(trace: Trace, found: Analysis) -> Iterator[Finding]:
    """A reply that came at once although it was made token by token, and where it was held."""
    main = found.main
    times = [int(at) for at, _ in main.view.exchange.get("chunks") or ()]
    if len(times) < 5:
        return
    intervals = [b - a for a, b in pairwise(times)]
    mean = (times[-1] - times[0]) / len(intervals)
    together = sum(1 for i in intervals if i < mean / 10)
    decode = [s.wall_ns for s in main.steps if s.took_part_as("decode")]
    if times[-1] - times[0] < main.wall_ns / 20 and (not decode or sum(decode) > 4 * (times[-1] - times[0])):
        yield _at_once(trace, main, times, sum(decode))
    elif together >= len(intervals) / 2:
        yield Finding(8, "Tokens arrived in bursts.",
                      f"{together} of {len(intervals)} chunks came right behind the one before",
                      "a proxy that buffers, speculative decoding and multi-step scheduling all look like this from "
                      "here; compare `write chunk` with the arrivals where the server is seen", "ok")  # fmt: skip


def _at_once(trace: Trace, main: PassTimes, times: list[int], decode_ns: int) -> Finding:
    evidence = (
        f"{plural(len(times), 'chunk')} within {duration(times[-1] - times[0])}, {duration(times[0])} after the request"
    )
    if decode_ns:
        evidence += f"; its decode steps took {duration(decode_ns)}"
    if _held_inside(trace, main, times):
        longest = max(
            (
                r
                for r in main.view.rows
                if trace.layer[r] == 6 and name_of(trace, r) in ("process outputs", "hop to api")
            ),
            key=lambda r: trace.end_ns[r] - trace.start_ns[r],
            default=None,
        )
        if longest is not None:
            length = trace.end_ns[longest] - trace.start_ns[longest]
            evidence += f"; the longest `{name_of(trace, longest)}` took {duration(length)}"
        sentence = "The server sent the reply almost at once at the end: it held the tokens back after they were made."
        return Finding(6, sentence, evidence, "", "warn")
    sentence = "The reply arrived almost at once at the end: something between the engine and here holds it back."
    if decode_ns:
        return Finding(8, sentence, evidence, "switch off buffering in the proxy (nginx: proxy_buffering off)", "warn")
    return Finding(8, sentence, evidence, "see whether a proxy buffers, or the reply was cached", "unknown")


def _held_inside(trace: Trace, main: PassTimes, times: list[int]) -> bool:
    """Whether the server was seen to send most of the reply only when it arrived, so that nothing after it held it."""
    rows = [r for r in main.view.rows if trace.layer[r] == 8 and name_of(trace, r) == "write chunk"]
    before = main.view.start_ns + times[0] - max(times[-1] - times[0], 5 * _SMALL_NS)
    return bool(rows) and 2 * sum(trace.start_ns[r] < before for r in rows) < len(times)


def late_token(trace: Trace, found: Analysis) -> Iterator[Finding]:
    """One token that came much later than the others, and the step before it."""
    rows = [t for t in found.tokens if t.itl_ns is not None]
    if len(rows) < 5:
        return
    middle = median(t.itl_ns or 0 for t in rows)
    worst = max(rows, key=lambda t: t.itl_ns or 0)
    late = worst.itl_ns or 0
    if late > 3 * middle and late - middle > 20 * _SMALL_NS:
        sentence = (
            f"Token {worst.index} {worst.text!r} came {duration(late)} after the one before, the median is "
            f"{duration(middle)}."
        )
        yield Finding(6, sentence, _step_before(found, worst.arrival_ns or 0), "", "ok")


def _step_before(found: Analysis, arrival_ns: int) -> str:
    ended = [s for s in found.steps if s.start_ns + s.wall_ns <= arrival_ns]
    if not ended:
        return ""
    step = ended[-1]
    which = f"step {step.index}" if step.index is not None else "its step"
    also = ", with another's prompt in its batch" if step.phase == "mixed" and step.role == "decode" else ""
    return f"{which} ({step.role or step.phase}{also}) took {duration(step.wall_ns)}"
