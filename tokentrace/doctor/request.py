"""Layer 8 and below: the real request. Every cause for which it may fail is a check of its own, with its own id."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from tokentrace.client.causes import CAUSES, failure
from tokentrace.doctor import processes
from tokentrace.doctor.check import Check, Result, Sample, Situation, fail, ok, skip, unknown
from tokentrace.doctor.explained import CAUSE_TEXTS
from tokentrace.doctor.readings import NAME, Progress, progress
from tokentrace.doctor.refine import SILENT, gone, place, refine
from tokentrace.errors import EndpointError, TokentraceError
from tokentrace.exchange import Exchange
from tokentrace.wording import duration, plural

#: Left over for saying it, after the last question to the server.
_SAY_S = 0.4
#: The second call may meet the deadline, which is the doctor's own.
_LATE = SILENT | {"TT827"}


def engine_progress(s: Situation) -> Progress | None:
    """What the readings during the live call say; None when there were none."""
    live = s.live
    if live is None:
        return None
    x = live.first
    silent = x is not None and x.error is not None and x.error.check in SILENT
    samples = live.of(NAME)
    return progress(samples, silent, _own_tokens(s, samples)) if samples else None


def _own_tokens(s: Situation, samples: Sequence[Sample]) -> int | None:
    """What the live calls got of the tokens made between the first reading and the last; None: that is not known."""
    calls = [x for x in (s.live.first, s.live.second) if x is not None] if s.live is not None else []
    if any(x.start_ns < samples[0].time_ns or x.end_ns > samples[-1].time_ns for x in calls):
        return None
    own = [0 if not x.complete and not x.token_times_ns else x.output_tokens for x in calls]
    return None if None in own else sum(filter(None, own))


def _request(s: Situation) -> Iterable[Result]:
    live = s.live
    x = live.first if live is not None else None
    if live is None or s.setting_error is not None:
        yield skip("TT800", "the settings cannot be used, so nothing was sent")
    elif x is None:
        yield from _not_made(s)
    elif x.error is not None:
        yield from failed(s, x.error, x)
    elif x.interrupted:
        yield unknown("TT800", "the call was interrupted")
    elif live.second is not None and live.second.error is not None and live.second.error.check not in _LATE:
        error = live.second.error
        yield from failed(s, failure(error.check, f"one token came, but then: {error}", error.fix, error.detail), x)
    else:
        late = live.second is not None and live.second.error is not None
        more = ["the second call, of several tokens, did not end within the time left"] if late else []
        yield ok("TT800", f"a real request was answered in {duration(x.wall_ns)}", *_phases(x), *x.notes, *more)


def _at_once(s: Situation) -> Iterable[Result]:
    """The request's own diagnosis, when a second look at the server took too long."""
    x = s.live.first if s.live is not None else None
    if x is not None and x.error is not None:
        error = refine(x.error, engine_progress(s), s.look, x.wall_ns / 1e9, _where(s, x))
        check = error.check if error.check in CAUSES else "TT846"
        yield fail(check, str(error), error.fix, *error.detail.splitlines(), *_phases(x))


def _not_made(s: Situation) -> Iterable[Result]:
    live = s.live
    assert live is not None
    if s.mode == "machine":
        error = live.engine_error
        if error is not None:
            fix, detail = (error.fix, error.detail) if isinstance(error, TokentraceError) else ("", "")
            yield fail("TT608", live.why_not, fix or "see the last lines of its log", *detail.splitlines()[-12:])
        else:
            fix = s.local_model.fix if s.local_model is not None else ""
            yield unknown("TT800", f"no request was made: {live.why_not}", fix)
        return
    first = s.look.get("models") if s.look is not None else None
    if first is not None and first.error is not None:
        yield from failed(s, first.error, None)
    else:
        yield unknown("TT800", live.why_not or "no call was made")


def failed(s: Situation, error: EndpointError, x: Exchange | None) -> Iterable[Result]:
    """The cause under its own id; and when it lies deeper, that the way to the server is sound."""
    waited = x.wall_ns / 1e9 if x is not None else s.timeout_s
    error = refine(error, engine_progress(s), s.look, waited, _where(s, x))
    if s.endpoint is not None:
        answered = s.look is not None and any(reply.status for reply in s.look.replies.values())
        error = gone(error, s.endpoint, s.environ, s.pid, answered, s.last - time.monotonic() - _SAY_S)
    error = _stopped(s, _servers_key(s, error))
    check = error.check if error.check in CAUSES else "TT846"
    evidence = [*error.detail.splitlines(), *(_phases(x) if x is not None else ()), *_others(s)]
    yield fail(check, str(error), error.fix, *evidence)
    layer = CAUSES[check].layer
    if layer != 8:
        status = f" (status {x.status_code})" if x is not None and x.status_code else ""
        yield ok("TT800", f"the request reached the server{status}: the fault lies in layer {layer}")


def _where(s: Situation, x: Exchange | None) -> str:
    """The server as host:port, "" when it has begun an answer."""
    if s.endpoint is None or (x is not None and x.status_code):
        return ""
    return place(s.endpoint, x.proxy if x is not None else "")


def _servers_key(s: Situation, error: EndpointError) -> EndpointError:
    """A vLLM that was started where VLLM_API_KEY was set wants that key, whatever its command line says."""
    if error.check not in ("TT830", "TT831") or s.server_environ is None or "VLLM_API_KEY" not in s.server_environ:
        return error
    own = "$VLLM_API_KEY" if s.environ.get("VLLM_API_KEY") else "…"
    return failure(
        error.check,
        f"{error}: the server (process {s.pid}) was started with VLLM_API_KEY set, so it wants that key",
        f"send that key: export OPENAI_API_KEY={own}; or start the server without VLLM_API_KEY",
        error.detail,
    )


def _stopped(s: Situation, error: EndpointError) -> EndpointError:
    """A server's process on this machine that is stopped takes connections (the kernel does) and answers nothing."""
    if error.check not in (*SILENT, "TT605", "TT606", "TT804") or s.pid is None:
        return error
    found = processes.halted(s.pid)
    if found is None:
        return error
    return failure("TT605", f"the server cannot answer: its {found.told}", found.fix, f"{error}\n{error.detail}")


def _phases(x: Exchange) -> list[str]:
    told = [f"{p.name} {duration(p.end_ns - p.start_ns)}" for p in x.phases]
    told += [f"status {x.status_code}"] if x.status_code else []
    return ["; ".join(told)] if told else []


def _others(s: Situation) -> list[str]:
    """How other routes of the server answered: a green health route beside a failed request proves nothing."""
    if s.look is None or not s.look.alive:
        return []
    green = [f"/{name} {reply.told}" for name, reply in s.look.replies.items()]
    return [f"meanwhile: {', '.join(green)}"]


def _limit(s: Situation) -> Iterable[Result]:
    """Does the server keep to max_tokens, and allow more than one token?"""
    live = s.live
    first, second = (live.first, live.second) if live is not None else (None, None)
    for x in (first, second):
        asked = x.request.get("max_tokens") or x.request.get("max_completion_tokens") if x is not None else None
        made = x.output_tokens if x is not None else None
        if x is not None and x.complete and isinstance(asked, int) and made is not None and made > asked:
            yield Result(
                "TT617",
                "warn",
                f"{plural(asked, 'token')} asked for, {made} came: the server does not keep to max_tokens",
                "do not rely on --max-tokens there; a gateway may drop the field",
            )
            return
    if second is None or not second.complete:
        yield unknown("TT617", "no second call was answered, so the limit could not be seen")
    elif second.finish_reason == "length" and (second.output_tokens or len(second.token_times_ns)) == 1:
        yield Result(
            "TT617",
            "warn",
            f"{second.request.get('max_tokens')} tokens were asked for, and the server stopped after 1 (length): "
            "something on the way limits replies to one token",
            "look for max_tokens or max_new_tokens of 1 in the server's and the gateway's configuration",
        )
    else:
        yield ok("TT617", "the server keeps to max_tokens")


CHECKS = (
    Check(
        "TT800",
        "a real request",
        "A chat request of one token (the prompt is Hi) was sent as any client sends it, and answered whole. No other "
        "route can show this: a web server may be green over an engine that is frozen.",
        "the request's phases, its status, and the reply's events",
        "What to do depends on the cause; each has an id of its own.",
        _request,
        live=True,
        network=True,
        hurried=_at_once,
    ),
    Check(
        "TT617",
        "limit of tokens",
        "The server makes no more tokens than max_tokens allows, and is not limited to one by something on the way.",
        "the server's own count of tokens, against what was asked for",
        "Look at the defaults of the server and of the gateway before it.",
        _limit,
        live=True,
        network=True,
    ),
    *(
        Check(check_id, cause.title, *CAUSE_TEXTS[check_id])
        for check_id, cause in CAUSES.items()
        if check_id in CAUSE_TEXTS and check_id not in ("TT801", "TT832")
    ),
)
