"""The doctor's second look at a request that failed: does the cause lie in the engine behind the web server?

The client's diagnosis knows the request; this knows how the engine stood meanwhile. Used by `doctor` and by every
command whose request failed, so that both say the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from tokentrace.client import proxies
from tokentrace.client.causes import failure
from tokentrace.client.settings import Endpoint
from tokentrace.client.urls import bracketed
from tokentrace.doctor.check import Sample, Situation
from tokentrace.doctor.jobs import Job
from tokentrace.doctor.look import Look, ask, look, urls
from tokentrace.doctor.readings import SAMPLER, Progress, progress
from tokentrace.errors import ConfigError, EndpointError, TokentraceError
from tokentrace.wording import duration

#: Nothing came in time, although the request had been taken.
SILENT = frozenset(("TT825", "TT826"))
#: For a command whose request has failed: all of it, and of it the look at the other routes.
_ALL_S = 2.5
_LOOK_S = 2.0
_BETWEEN_S = 0.7
_THROUGH = " through the proxy "
#: For asking whether the server is still there.
_GONE_S = 1.0


def refine(
    error: EndpointError, seen: Progress | None, others: Look | None, waited_s: float, where: str = ""
) -> EndpointError:
    """The error itself, or the one that names the engine as its cause. `where`: the server as host:port."""
    if error.check not in SILENT:
        return error
    detail = "\n".join(filter(None, [error.detail, *(seen.evidence if seen else ())]))
    time_s = f"{waited_s:.0f} s" if waited_s >= 1 else duration(waited_s * 1e9)
    waited = f"no token came within {time_s}"
    if seen is not None and seen.verdict == "stalled":
        return failure(
            "TT605",
            f"the engine {seen.sentence}; the web server before it lives",
            "look at the end of the server's log; unless it loads or compiles something, restart the server",
            detail,
        )
    if seen is not None and seen.verdict in ("busy", "working"):
        return failure(
            "TT607",
            f"{waited}: the engine {seen.sentence}",
            "raise --timeout, send less at once, or give the server more capacity",
            detail,
        )
    alive = [f"{name} {reply.told}" for name, reply in others.replies.items() if reply.status == 200] if others else []
    if alive and error.check == "TT825":
        known = seen.sentence if seen is not None else "cannot be looked at, because the server offers no /metrics"
        return failure(
            "TT606",
            f"the web server lives, but {waited}: the engine behind it {known}",
            "look at the server's log; if it shows no progress, restart it; if it does, raise --timeout",
            "\n".join(filter(None, [str(error), detail, *alive])),
        )
    if where and others is not None and error.check == "TT825" and _silent(others):
        if _THROUGH in where:
            return failure(
                "TT825",
                f"nothing came back from {where}: either of them may be silent",
                "look whether the proxy passes anything on, or put the host into NO_PROXY to go past it",
                "\n".join(filter(None, [str(error), detail])),
            )
        return failure(
            "TT825",
            f"nothing answers on {where}: it takes connections, and no request got an answer on any path",
            "look whether the process that listens there is stopped or hangs, and restart it; a forwarded port that "
            "leads nowhere looks the same",
            "\n".join(filter(None, [str(error), detail])),
        )
    return error


def place(endpoint: Endpoint, proxy: str = "") -> str:
    """The server as host:port, and the proxy on the way to it, as it is shown."""
    return f"{bracketed(endpoint.host)}:{endpoint.port}{_THROUGH + proxy if proxy else ''}"


def _silent(others: Look) -> bool:
    """Did no other route answer either, each asked for a while?"""
    return all(r.error is not None and r.error.check in SILENT for r in others.replies.values())


def gone(
    error: EndpointError,
    endpoint: Endpoint,
    environ: Mapping[str, str],
    pid: int | None,
    answered: bool,
    left_s: float = _GONE_S,
) -> EndpointError:
    """Of a connection that ended without a whole answer: did the server end with it? Asks once more, for a second.

    `answered`: it answered other requests over the same scheme meanwhile, so that is not the fault.
    """
    broken = error.check in ("TT828", "TT860", "TT861")
    if not (broken or (error.check == "TT803" and answered)):
        return error
    if error.check == "TT803" or _refused(endpoint, environ, min(_GONE_S, left_s)):
        process = f"its process ({pid}) ended" if pid is not None and not _alive(pid) else "nothing listens there now"
        return failure(
            "TT602",
            f"the server went away during the request: {process}",
            "look at the end of its log, and at dmesg for a process killed for memory; then start it again",
            f"{error}\n{error.detail}",
        )
    if error.check == "TT828" and answered:
        return failure(
            "TT828",
            f"{error}, though it answers other requests",
            "look at the log of the server, and of any gateway before it, at that time",
            error.detail,
        )
    return error


def _refused(endpoint: Endpoint, environ: Mapping[str, str], timeout_s: float) -> bool:
    reply = ask(endpoint, urls(endpoint)["models"], environ, max(0.1, timeout_s))
    return reply.error is not None and reply.error.check == "TT803"


def _alive(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def after_failure(
    error: TokentraceError, endpoint: Endpoint | None, environ: Mapping[str, str] | None = None
) -> TokentraceError:
    """For a command whose request has just failed: look at the server once more where that helps. At most 2.5 s."""
    if endpoint is None or not isinstance(error, EndpointError):
        return error
    env = os.environ if environ is None else environ
    if error.check not in SILENT:
        return gone(error, endpoint, env, None, answered=False)
    situation = Situation("endpoint", env, time.monotonic() + _ALL_S, endpoint=endpoint)
    samples: list[Sample] = []
    reading = Job("readings", lambda: _read(situation, samples))
    others = look(endpoint, env, _LOOK_S)
    reading.wait(situation.left_s)
    seen = list(samples)
    try:
        proxy = proxies.choose(endpoint.parts.scheme, endpoint.host, endpoint.port, env)
    except ConfigError:
        proxy = None
    known = progress(seen, call_failed=True) if seen else None
    return refine(error, known, others, endpoint.timeout_s, place(endpoint, proxy.shown if proxy else ""))


def _read(situation: Situation, found: list[Sample]) -> None:
    """The engine's figures several times over, so that they show whether it moves; none where there are none."""
    reader = SAMPLER.open(situation)
    while reader is not None and situation.left_s > 0:
        try:
            found.append(Sample(time.time_ns(), "after", reader.read()))
        except (EndpointError, ValueError):
            return
        time.sleep(_BETWEEN_S)
