"""How the reply came: at once, in bursts, with a token that was late."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from tokentrace.analyze._passes import name_of
from tokentrace.analyze._steps import TokenRow
from tokentrace.analyze._written import Write, held_ns, intervals, text_arrivals, written
from tokentrace.model import Trace
from tokentrace.probe import Finding
from tokentrace.wording import duration, plural

if TYPE_CHECKING:
    from tokentrace.analyze import Analysis, PassTimes

_SMALL_NS = 1_000_000
FIX_CLIENT = "look at what keeps the client from reading (load on its machine), and at a proxy or network between"


def bursts(trace: Trace, found: Analysis) -> Iterator[Finding]:
    """A reply that came at once although it was made token by token, and where it was held."""
    main = found.main
    times = [int(at) for at, _ in main.view.exchange.get("chunks") or ()]
    if len(times) < 5:
        return
    between = [b - a for a, b in pairwise(times)]
    mean = (times[-1] - times[0]) / len(between)
    together = sum(1 for i in between if i < mean / 10)
    decode = [s.wall_ns for s in main.steps if s.took_part_as("decode")]
    if times[-1] - times[0] < main.wall_ns / 20 and (not decode or sum(decode) > 4 * (times[-1] - times[0])):
        yield _at_once(trace, main, times, sum(decode))
    elif together >= len(between) / 2:
        evidence = f"{together} of {len(between)} chunks came right behind the one before"
        yield from _in_bursts(trace, found, evidence)


def _in_bursts(trace: Trace, found: Analysis, evidence: str) -> Iterator[Finding]:
    sent = written(trace, found.main.view)
    if sent is None or len(sent) < 5:
        yield Finding(8, "Tokens arrived in bursts.", evidence,
                      "a proxy that buffers, speculative decoding and multi-step scheduling all look like this from "
                      "here; compare `write chunk` with the arrivals where the server is seen", "ok")  # fmt: skip
        return
    apart = intervals(sent)
    mean = (sent[-1][0] - sent[0][0]) / len(apart)
    together = sum(1 for i in apart if i < mean / 10)
    if together >= len(apart) / 2:
        evidence += f"; the server wrote {together} of them so"
        yield Finding(6, "The server wrote the tokens in bursts.", evidence,
                      "speculative decoding and multi-step scheduling look like this", "ok")  # fmt: skip
        return
    late = _latest(found)
    if late is None or not _held_on_the_way(found, sent, late):  # else that finding says it
        evidence += f"; the server wrote them {duration(median(apart))} apart (median)"
        yield Finding(
            8, "Tokens arrived in bursts, but the server wrote them one by one.", evidence, FIX_CLIENT, "warn"
        )


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
    """One token that came much later than the others, and who was late: the server, or who brought and read it."""
    late = _latest(found)
    if late is None:
        return
    token, between = late
    gap = token.itl_ns or 0
    # Without an id the row is a chunk, which may hold several tokens.
    kind = "Chunk" if token.id is None else "Token"
    came = f"{kind} {token.index} {token.text!r} came {duration(gap)} after the one before"
    usual = f", the median is {duration(median(between))}" if median(between) >= _SMALL_NS else ""
    sent = written(trace, found.main.view)
    if sent is not None and (held := _held_on_the_way(found, sent, late)):
        apart = intervals(sent)
        evidence = (
            f"the server wrote its pieces {duration(median(apart))} apart (median), at most {duration(max(apart))}"
        )
        sentence = f"{came}, but the server had written it {duration(held)} before it was read."
        yield Finding(8, sentence, evidence, FIX_CLIENT, "warn")
        return
    until = token.arrival_ns or 0
    if sent is not None:
        until = sent[_position(found, token)][0]
    why, explains = _step_before(found, until, gap)
    if sent is None and not explains:
        unseen = "the server's writes were not seen: it may have been late, or what is between it and here"
        yield Finding(8, f"{came}{usual}.", "; ".join(filter(None, (why, unseen))), "", "unknown")
        return
    yield Finding(6, f"{came}{usual}.", why, "", "ok")


def _latest(found: Analysis) -> tuple[TokenRow, list[int]] | None:
    """The token that came late and the intervals of all of them, if one did."""
    rows = [t for t in found.tokens if t.itl_ns is not None]
    if len(rows) < 5:
        return None
    between = [t.itl_ns or 0 for t in rows]
    middle, late = median(between), max(between)
    if late <= 3 * middle or late - middle <= 20 * _SMALL_NS:
        return None
    return rows[between.index(late)], between


def _position(found: Analysis, token: TokenRow) -> int:
    """Which of the pieces of text it came with."""
    return sum(t.arrival_ns is not None for t in found.tokens[: found.tokens.index(token)])


def _held_on_the_way(found: Analysis, sent: list[Write], late: tuple[TokenRow, list[int]]) -> int:
    """How long the late token was under way, ns, if that is most of why it was late; else 0."""
    token = late[0]
    held = held_ns(sent, text_arrivals(found.main.view))[_position(found, token)]
    return held if 2 * held > (token.itl_ns or 0) else 0


def _step_before(found: Analysis, until_ns: int, late_ns: int) -> tuple[str, bool]:
    """The step that made what was written at `until_ns`, and whether it explains most of `late_ns`."""
    ended = [s for s in found.steps if s.start_ns + s.wall_ns <= until_ns]
    if not ended:
        return "", False
    step = ended[-1]
    which = f"step {step.index}" if step.index is not None else "its step"
    also = ", with another's prompt in its batch" if step.phase == "mixed" and step.role == "decode" else ""
    took = f"{which} ({step.role or step.phase}{also}) took {duration(step.wall_ns)}"
    if 2 * step.wall_ns > late_ns:
        return took, True
    if len(ended) > 1:
        idle = step.start_ns - ended[-2].start_ns - ended[-2].wall_ns
        if 2 * idle > late_ns:
            return f"no step served it for {duration(idle)} before {which}", True
    after = until_ns - step.start_ns - step.wall_ns
    if 2 * after > late_ns:
        return f"{took}; it was written {duration(after)} after that", False
    return took, False
