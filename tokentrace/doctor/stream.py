"""Layer 8: how a whole reply streamed. What breaks a reply is a cause with an id of its own."""

from __future__ import annotations

from collections.abc import Iterable

from tokentrace.doctor.check import Check, Result, Situation, ok, unknown, warn
from tokentrace.doctor.live import NOTE_ONE_TOKEN
from tokentrace.exchange import TOKEN_KINDS, Chunk, Exchange
from tokentrace.wording import duration, plural

#: Pieces that come this close together were not made one after the other by a model.
_AT_ONCE_NS = 2_000_000
_MIN_PIECES = 5
_HARMLESS = (NOTE_ONE_TOKEN,)  # nobody else asks for one token
#: A gateway that holds a stream back shows a long silence and then everything. A fast model shows neither.
_SILENCE_NS = 150_000_000


def _replies(s: Situation) -> list[Exchange]:
    return [x for x in (s.live.first, s.live.second) if x is not None and x.complete] if s.live is not None else []


def _buffered(s: Situation) -> Iterable[Result]:
    replies = _replies(s)
    if not replies:
        yield unknown("TT870", "no reply came to look at")
        return
    x = replies[-1]
    if not x.streamed:
        yield warn(
            "TT870",
            "the reply came in one piece although streaming was asked for, so no token has a time of its own",
            "look for a gateway that does not pass streams on, or a server without streaming",
            f"content-type {x.response_headers.get('content-type', 'unknown')}",
        )
        return
    times = x.token_times_ns
    if len(times) < _MIN_PIECES:
        yield unknown("TT870", f"only {len(times)} pieces of text came, too few to see how they stream")
        return
    spread, until = times[-1] - times[0], times[0] - x.start_ns
    early = _before_the_text(x)
    silence = times[0] - (early[-1].time_ns if early else x.start_ns)
    evidence = f"{len(times)} pieces within {duration(spread)}, after {duration(silence)} of silence"
    if early:
        first = duration(early[0].time_ns - x.start_ns)
        evidence += f"; {plural(len(early), 'piece')} without text came before, the first after {first}"
    if spread >= _AT_ONCE_NS * len(times) / _MIN_PIECES or until <= _SILENCE_NS or until <= 20 * spread:
        yield ok("TT870", "the pieces of the reply come one by one", evidence)
    elif early:
        # What holds a stream back holds these too: whoever held the text let them pass or made them.
        yield warn(
            "TT870",
            f"the text is held back, not the stream: all {len(times)} pieces of it came at once after "
            f"{duration(until)}, and what has no text came before",
            "look at what turns tokens into text: a server or gateway that waits for the whole reply, a filter, or a "
            "reasoning or tool parser",
            evidence,
        )
    else:
        yield warn(
            "TT870",
            f"the stream is held back: all {len(times)} pieces came at once after {duration(until)}",
            "switch response buffering off in the gateway (nginx: proxy_buffering off, or X-Accel-Buffering: no)",
            evidence,
        )


def _before_the_text(x: Exchange) -> list[Chunk]:
    """Keep-alives, the role: what came through the stream by itself before the first text."""
    first = x.token_times_ns[0]
    return [one for one in x.chunks if one.kind not in TOKEN_KINDS and first - one.time_ns > _AT_ONCE_NS]


def _usage(s: Situation) -> Iterable[Result]:
    replies = _replies(s)
    if not replies:
        yield unknown("TT872", "no reply came to look at")
    elif any(x.usage is None for x in replies):
        yield warn(
            "TT872",
            "the server sends no usage, so how many tokens there were is not known",
            "update the server or the gateway: stream_options.include_usage was asked for",
            *(note for x in replies for note in x.notes if "stream_options" in note),
        )
    elif any(x.output_tokens is None or x.input_tokens is None for x in replies):
        yield warn("TT872", "the server's usage lacks the counts of tokens", "update the server or the gateway")
    else:
        last = replies[-1]
        yield ok("TT872", f"the server counts tokens: {last.input_tokens} in, {last.output_tokens} out")


def _ending(s: Situation) -> Iterable[Result]:
    replies = [x for x in _replies(s) if x.streamed]
    if not replies:
        yield unknown("TT873", "no stream came to look at")
        return
    odd = []
    if any(not x.saw_done for x in replies):
        odd.append("ends without [DONE]")
    if any(not x.finish_reason for x in replies):
        odd.append("gives no finish_reason")
    if any("not ended properly" in note for x in replies for note in x.notes):
        odd.append("does not end its connection properly")
    if odd:
        yield warn(
            "TT873",
            f"the stream {' and '.join(odd)}; some clients take such a reply for cut",
            "update the server, or look at the gateway before it",
        )
    else:
        yield ok("TT873", "the streams have finish_reason and [DONE]")


def _changed(s: Situation) -> Iterable[Result]:
    replies = _replies(s)
    notes = list(
        dict.fromkeys(
            n for x in replies for n in x.notes if n not in _HARMLESS and ("refused" in n or "redirected" in n)
        )
    )
    if not replies:
        yield unknown("TT874", "no reply came to look at")
    elif notes:
        yield warn("TT874", notes[0], _as_it_wants(notes[0]), *notes[1:])
    else:
        yield ok("TT874", "the request was taken as it was sent")


def _as_it_wants(note: str) -> str:
    """What clients that do not adapt have to do."""
    if "redirected" in note:
        return "use a base URL that leads there without a redirect"
    if "stream_options" in note:
        return "leave stream_options out for this server, in other clients too"
    return "send max_completion_tokens to this server, in other clients too"


def _content(s: Situation) -> Iterable[Result]:
    """A reply of one token may show nothing: a reasoning model may hide it. One of many should show something."""
    x = s.live.second if s.live is not None else None
    if x is None or not x.complete:
        yield unknown("TT875", "no reply of several tokens came to look at")
    elif not (x.text or x.reasoning or any(c.kind == "tool" for c in x.chunks)):
        counted = f"the server counts {plural(x.output_tokens or 0, 'token')} of reply"
        made = counted if x.output_tokens else "the reply is whole"
        yield warn(
            "TT875",
            f"{made}, and no text came",
            "a reasoning model may hide its first tokens; else look at the server's reasoning or tool parser",
        )
    else:
        yield ok("TT875", "the reply has text")


CHECKS = (
    Check(
        "TT870",
        "streaming",
        "Pieces of a reply arrive as they are made. A gateway that collects them makes a fast model look slow: the "
        "first token then comes with the last.",
        "the arrival of each piece in a reply of up to 16 tokens",
        "Switch response buffering off in what stands before the server.",
        _buffered,
        live=True,
        network=True,
    ),
    Check(
        "TT872",
        "usage",
        "The server says how many tokens went in and came out. Without it, tokens per second cannot be told.",
        "the usage of the live calls",
        "Use a server that knows stream_options.include_usage.",
        _usage,
        live=True,
        network=True,
    ),
    Check(
        "TT873",
        "end of the stream",
        "Streams end with a finish_reason and [DONE], so that no client takes a cut reply for a whole one, or the "
        "reverse.",
        "the last events of the live calls",
        "Update the server, or look at the gateway before it.",
        _ending,
        live=True,
        network=True,
    ),
    Check(
        "TT874",
        "fields and address",
        "The server took the request as it was sent: no field was refused, no redirect was followed.",
        "what had to be changed for the live calls to be answered",
        "Use the address it redirects to, and fields it knows.",
        _changed,
        live=True,
        network=True,
    ),
    Check(
        "TT875",
        "text",
        "A reply of several tokens has text, reasoning or a tool call in it.",
        "the pieces of the second live call",
        "Look at the server's reasoning parser or chat template.",
        _content,
        live=True,
        network=True,
    ),
)
