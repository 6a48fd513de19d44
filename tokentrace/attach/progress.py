"""Is the engine working? Told by its counters: a server's /health answers also when the engine behind it stands still.

idle      nothing is running or waiting
busy      requests are there, and their tokens go on
stalled   requests are there, and nothing was counted for the whole time
unknown   the server does not tell
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from tokentrace.client.server import HttpServer
from tokentrace.client.settings import Endpoint
from tokentrace.errors import EndpointError
from tokentrace.probes import _metrics
from tokentrace.wording import plural

LOOK_S = 3.0
_EVERY_S = 0.25
State = Literal["idle", "busy", "stalled", "unknown"]


@dataclass(frozen=True, slots=True)
class Progress:
    """What was found, in one sentence."""

    state: State
    sentence: str
    fix: str = ""


def look(endpoint: Endpoint, seconds: float = LOOK_S) -> Progress:
    """Read /metrics until something moves, for `seconds` at most. Sends no prompt; never raises."""
    server = HttpServer(endpoint)
    try:
        first = _metrics.parse(server.get_text("/metrics"))
        deadline = time.monotonic() + seconds
        now = first
        while True:
            if not any(_present(engine) for engine in now):
                if any("running" in engine.gauges for engine in now):
                    return Progress("idle", "The engine is idle: no request is running or waiting.")
                return Progress("unknown", "The server's /metrics do not say how many requests are running.")
            if _counted(first) != _counted(now):
                count = sum(_present(engine) for engine in now)
                return Progress("busy", f"The engine is at work on {plural(count, 'request')}.")
            if time.monotonic() >= deadline:
                break
            time.sleep(_EVERY_S)
            now = _metrics.parse(server.get_text("/metrics"))
    except (EndpointError, ValueError) as error:
        return Progress("unknown", f"The server's /metrics cannot be read: {error}")
    count = sum(_present(engine) for engine in now)
    return Progress(
        "stalled",
        f"The engine stands still: {plural(count, 'request')} there, and no token in {seconds:g} s.",
        "look at the server's log and at the engine's process (py-spy dump --pid PID); a restart may be needed",
    )


def _present(engine: _metrics.Engine) -> int:
    return round(engine.gauges.get("running", 0.0) + engine.gauges.get("waiting", 0.0))


def _counted(engines: list[_metrics.Engine]) -> list[tuple[str, tuple[tuple[str, float], ...]]]:
    """What grows while an engine works."""
    return [
        (engine.name, tuple(sorted(engine.counters.items())) + tuple(sorted((k, v[1]) for k, v in engine.sums.items())))
        for engine in engines
    ]
