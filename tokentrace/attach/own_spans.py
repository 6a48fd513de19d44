"""Does the server send spans of its own, and where to? By its command line, so of a server on this machine only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tokentrace.attach.found import Depth, Found
from tokentrace.host import proc
from tokentrace.host.flags import flags_of

if TYPE_CHECKING:
    from tokentrace.receive import Receiver

FLAG = "--otlp-traces-endpoint"


def endpoint_of(found: Found) -> str | None:
    """Where the server was told to send its spans; "" nowhere that its command line shows, None: not to be seen."""
    if found.engine != "vllm":
        return None
    for process in found.processes[:1]:
        try:
            words = proc.command_line(process.pid)
        except OSError:
            return None
        if len(words) < 2:
            return None  # it has renamed itself
        return flags_of(words)[0].get(FLAG.removeprefix("--"), "").partition(" ")[0]
    return None


def advice(found: Found, depth: Depth, receiver: Receiver | None) -> Iterator[str]:
    """What to change so that the server's own spans come here, or that they could."""
    sends_to = endpoint_of(found)
    if sends_to is None:
        return
    port, http = _port(sends_to)
    if receiver is None:
        if sends_to and depth == "outside":
            yield f"the server sends spans of its own to {sends_to}: --receive {port - http} takes them here"
    elif not sends_to:
        yield f"its command line does not have {FLAG}: start it with {FLAG} http://127.0.0.1:{receiver.grpc_port}"
    elif port != (receiver.http_port if http else receiver.grpc_port):
        yield f"the server sends its spans to {sends_to}, not here: use --receive {port - http}"


def _port(endpoint: str) -> tuple[int, bool]:
    """The port in an endpoint, and whether it is one for HTTP, by its path; OTLP's own where it names none."""
    try:
        parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
        http = parts.path.rstrip("/").endswith("/v1/traces")
        return parts.port or (4318 if http else 4317), http
    except ValueError:
        return 4317, False
