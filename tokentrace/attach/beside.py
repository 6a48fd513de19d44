"""The process beside a server that was started with TOKENTRACE_ENABLE: traces chosen requests and sends them on.

    python -m tokentrace.attach.beside PID

Chosen are requests with a sampled traceparent, and of the others the share TOKENTRACE_SHARE. It talks to the agents
that wait in the server's processes, sends each trace to where the OTEL_EXPORTER_OTLP_* variables say, and ends when the
server does. While it is there, nobody else can attach. What goes wrong is said on standard error, in the server's log.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from tokentrace import attach, workflow
from tokentrace.attach.watch import watch
from tokentrace.client.server import HttpServer
from tokentrace.client.settings import Endpoint
from tokentrace.emit.otlp_target import configured
from tokentrace.errors import ConfigError, TokentraceError
from tokentrace.host import proc

#: A server's processes appear one after the other while it loads.
LOOK_S = 2.0
SETTLED_S = 60.0


def selection(environ: Mapping[str, str]) -> dict[str, Any]:
    """What TOKENTRACE_SHARE asks for beside sampled traceparents. Raises ConfigError."""
    text = environ.get("TOKENTRACE_SHARE", "").strip()
    try:
        share = float(text) if text else 0.0
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"TOKENTRACE_SHARE is {text!r}", fix="give a number from 0 to 1, such as 0.01")
    return {"sampled": True, "share": share}


def main(pid: int) -> None:
    """Serve the server with this process until it ends."""
    try:
        chosen = selection(os.environ)
        if not configured():
            raise ConfigError(
                "TOKENTRACE_ENABLE is set, and no OTEL_EXPORTER_OTLP_ENDPOINT says where traces go",
                fix="set OTEL_EXPORTER_OTLP_ENDPOINT, for example to http://localhost:4318",
            )
    except ConfigError as error:
        _say(f"{error}: {error.fix}")
        return
    told = ""
    while not proc.has_ended(pid):
        try:
            _serve(pid, chosen)
        except TokentraceError as error:
            if str(error) != told:  # once is enough; it is tried again all the same
                told = str(error)
                _say(f"{error}: {error.fix}")
        time.sleep(LOOK_S)


def _serve(pid: int, chosen: Mapping[str, Any]) -> None:
    found = _whole(pid)
    if found is None:
        return
    # No endpoint of ours: nothing is sent to the server.
    settings = workflow.Settings(save=False)
    with attach.open(found, method="agent") as attached:
        _say(f"from now on {promised(chosen)} are traced")
        for _, run in watch(attached, settings, select=chosen, stop=lambda: proc.has_ended(pid)):
            for warning in run.warnings:
                _say(warning)


def promised(chosen: Mapping[str, Any]) -> str:
    """Which requests these are, for the server's log."""
    others = f", and {chosen['share']:.3g} of the others," if chosen["share"] else ""
    return f"requests with a sampled traceparent{others}"


def _whole(pid: int) -> attach.Found | None:
    """The server once all its processes have an agent: when it answers, or, where it speaks no HTTP, when no process
    was added for a while. None when it has ended."""
    seen: set[int] = set()
    since = time.monotonic()
    while not proc.has_ended(pid):
        try:
            found = attach.find(pid=pid)
        except TokentraceError:  # too early
            time.sleep(LOOK_S)
            continue
        pids = {one.pid for one in found.processes}
        if pids != seen or not pids <= set(found.sockets):
            seen, since = pids, time.monotonic()
        elif _answers(found) or (not found.base_url and not found.not_ready and time.monotonic() - since >= SETTLED_S):
            return found
        time.sleep(LOOK_S)
    return None


def _answers(found: attach.Found) -> bool:
    if not found.base_url:
        return False
    try:
        HttpServer(Endpoint(found.base_url)).get_text("/health")
    except TokentraceError:
        return False
    return True


def _say(sentence: str) -> None:
    sys.stderr.write(f"tokentrace: {sentence}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
