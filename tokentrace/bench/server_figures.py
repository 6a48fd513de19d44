"""The server's own figures over the same requests, from its /metrics, beside ours: do both tell the same?"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from tokentrace.client.server import HttpServer
from tokentrace.client.settings import Endpoint
from tokentrace.errors import EndpointError
from tokentrace.probes import _metrics

_SETTLE_S = 2.0


@dataclass(slots=True)
class ServerFigures:
    """Means in ns by name (time_to_first_token, inter_token_latency, time_per_output_token, e2e, …) over `requests`.

    `alone` False: the server ended another number of requests than we sent, so that others' are in the means.
    `endpoints`: how many of the benched endpoints are this server; the means are over the requests to all of them.
    """

    requests: int | None
    alone: bool | None
    means_ns: dict[str, float] = field(default_factory=dict)
    endpoints: int = 1

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def read(endpoint: Endpoint) -> list[_metrics.Engine] | None:
    """What /metrics says now; None where there is none with figures that are known."""
    try:
        return _metrics.parse(HttpServer(endpoint).get_text("/metrics")) or None
    except (EndpointError, ValueError):
        return None


def since(
    endpoint: Endpoint, before: list[_metrics.Engine] | None, sent: int, endpoints: int = 1
) -> ServerFigures | None:
    """The figures of what ended since `before`; waits a moment for the server to count its last requests."""
    if before is None or not sent:
        return None
    end = time.monotonic() + _SETTLE_S
    while True:
        after = read(endpoint)
        changes = _metrics.change(before, after) if after is not None else []
        if len(changes) != 1 or changes[0].restarted:
            return None  # several engines have no common mean
        finished = changes[0].finished
        if finished is None or finished >= sent or time.monotonic() > end:
            break
        time.sleep(0.1)
    means = {name: seconds * 1e9 for name, seconds in changes[0].means.items()}
    alone = finished == sent if finished is not None else None
    return ServerFigures(finished, alone, means, endpoints) if means else None
