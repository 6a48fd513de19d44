"""Was an answer with status 200 a whole reply? If not, why not."""

from __future__ import annotations

from tokentrace.client._diagnose_network import so_far
from tokentrace.client._diagnose_status import passing, root_fix, said_failure
from tokentrace.client.causes import failure, one_line, some_lines
from tokentrace.client.facts import Facts
from tokentrace.errors import EndpointError

_LATER = "try again later"
_GZIP = b"\x1f\x8b"
_OTHERS = {
    "anthropic": ("Anthropic's messages protocol", "use the address of its OpenAI-compatible API"),
    "ollama": ("Ollama's own protocol", "Ollama speaks the OpenAI API under /v1"),
    "responses": ("the OpenAI responses protocol", "use the base URL of its chat completions API"),
}


def reply_failure(facts: Facts) -> EndpointError | None:
    """None when the reply is whole."""
    if facts.is_html and not facts.events:
        way, fix = "", root_fix(facts, "check the base URL")
        if facts.wire.proxy and not facts.better_base:
            way = f", through the proxy {facts.wire.proxy}, whose page it may be"
            fix = f"go past it: {facts.past_proxy}" if facts.past_proxy else fix
        return failure(
            "TT850",
            f"a web page (HTML) came instead of the API, with status {facts.status}, from {facts.url}{way}",
            fix,
        )
    if facts.reply_error is not None:
        return _error_inside(facts)
    if facts.shape in _OTHERS:
        protocol, fix = _OTHERS[facts.shape]
        return failure("TT853", f"{facts.where} speaks {protocol}, not the OpenAI chat API", fix, _keys(facts))
    if facts.strange and not facts.text_chunks:
        return failure(
            "TT851",
            f"the answer from {facts.where} holds no reply: {facts.strange}",
            "look at what serves it, or at what sits between here and the server: something rewrites the answer",
            some_lines(facts.shown(facts.text)),
        )
    if not facts.has_choices:
        return _without_choices(facts)
    if facts.malformed_count:
        return failure(
            "TT862",
            f"{facts.malformed_count} of {facts.events} events of the stream are not JSON, so the reply is not whole",
            "look at what sits between here and the server: something rewrites the stream",
            f"the first began with: {one_line(facts.shown(facts.malformed), 120)}",
        )
    if not facts.finish_reason and not facts.saw_done:
        cut = " in the middle of an event" if facts.unfinished_event else ""
        return failure(
            "TT861",
            f"the stream ended{cut} {so_far(facts)}, without finish_reason and [DONE]: the reply is cut",
            "look at the log of the server, and of any gateway before it, at that time",
        )
    return None


def reply_notes(facts: Facts) -> list[str]:
    """What is odd about a reply that counts as whole."""
    notes = []
    if facts.finish_reason and not facts.saw_done and facts.events:
        notes.append("the stream ended without [DONE]; it had a finish_reason, so the reply counts as whole")
    if facts.saw_done and not facts.finish_reason and facts.events:
        notes.append("the stream gave no finish_reason")
    if facts.strange:
        notes.append(f"a part of the reply could not be read: {facts.strange}")
    if not facts.text_chunks:
        counted = facts.counted or 0
        # One is the end mark.
        more = (
            f", although the server counts {counted} tokens of it: what they were was not sent" if counted > 1 else ""
        )
        notes.append(f"the reply is empty{more}")
    if facts.finish_reason == "length":
        notes.append("the reply was stopped by its length limit (finish_reason length)")
    return notes


def _error_inside(facts: Facts) -> EndpointError:
    if (found := said_failure(facts, 0)) is not None:
        return found
    if not facts.events and not facts.has_choices:
        return failure(
            "TT852",
            f"status {facts.status}, but the JSON from {facts.url} holds an error and no choices (its keys are "
            f"{one_line(facts.shown(', '.join(facts.keys[:12])))}): {one_line(facts.said, 120)}",
            _LATER
            if passing(facts)
            else f"use {facts.better_base}"
            if facts.better_base
            else "change what it names, or check the base URL",
            some_lines(facts.shown(facts.text)),
        )
    error = facts.reply_error or {}
    status = error.get("status_code") or error.get("code")
    code = f" ({one_line(str(status), 40)})" if status else ""
    when = f" {so_far(facts)}" if facts.events > 1 or facts.text_chunks else ""
    return failure(
        "TT852",
        f"status 200, but the server sent an error{code}{when}: {one_line(facts.said, 200)}",
        _LATER if passing(facts) else "change what it names, or look at the server's log",
        some_lines(facts.said),
    )


def _without_choices(facts: Facts) -> EndpointError:
    if facts.malformed_count:
        return failure(
            "TT862",
            f"the stream from {facts.where} holds no JSON",
            root_fix(facts, "check the base URL"),
            f"it began with: {one_line(facts.shown(facts.malformed), 120)}",
        )
    if "choices" in facts.keys and facts.value is None and not facts.events:
        return failure(
            "TT851",
            f"{facts.where} answered with lines of JSON that are no server-sent events: each lacks `data:` before it",
            "look at what sits between here and the server: something rewrites the stream",
            some_lines(facts.shown(facts.text)),
        )
    if facts.keys:
        what = "empty choices" if "choices" in facts.keys else "no choices"
        said = f"; it said: {one_line(facts.said, 120)}" if facts.said else ""
        return failure(
            "TT851",
            f"the JSON from {facts.url} has {what}; {_keys(facts)}{said}",
            root_fix(facts, "check the base URL and what serves it"),
            some_lines(facts.shown(facts.text)),
        )
    if not facts.events and (facts.keepalives or not facts.body.strip()):
        alive = f" but {facts.keepalives} keep-alives" if facts.keepalives else ""
        return failure(
            "TT854",
            f"{facts.where} answered with status {facts.status} and nothing in it{alive}",
            root_fix(facts, "look at the log of the server at that time"),
        )
    if facts.events:
        return failure(
            "TT854",
            f"the stream from {facts.where} held no reply",
            "look at the log of the server at that time",
            _keys(facts),
        )
    return failure(
        "TT851",
        f"{facts.where} answered with {_something(facts)}",
        root_fix(facts, "look at what sits between here and the server" if facts.broken else "check the base URL"),
        "" if facts.body.startswith(_GZIP) else some_lines(facts.shown(facts.text)),
    )


def _something(facts: Facts) -> str:
    kind = facts.content_type.partition(";")[0] or "of no type"
    if facts.body.startswith(_GZIP):
        return "compressed bytes (gzip) whose headers do not say so"
    if facts.broken:
        what = "a stream in which no event can be read" if kind == "text/event-stream" else "JSON that cannot be read"
        return f"{what}: it is cut off or not well formed"
    return f"something that is not the API ({kind})"


def _keys(facts: Facts) -> str:
    return f"its keys are {one_line(facts.shown(', '.join(facts.keys[:12])))}" if facts.keys else ""
