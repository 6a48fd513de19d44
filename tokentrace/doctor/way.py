"""Layer 8, on the way to the server: names, addresses, certificates, how long each step took, and who answers there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime, timezone

from tokentrace.client import certificates
from tokentrace.client.causes import one_line
from tokentrace.doctor.check import SERVERS, Check, Result, Situation, ok, skip, unknown, warn
from tokentrace.doctor.look import LITELLM
from tokentrace.exchange import Exchange, Phase
from tokentrace.wording import duration, listed

_SLOW_S = 1.0
_SOON_DAYS = 14


def _exchange(s: Situation) -> Exchange | None:
    return s.live.first if s.live is not None else None


def _phase(x: Exchange, name: str) -> Phase | None:
    return next((p for p in x.phases if p.name == name), None)


def _addresses(s: Situation) -> Iterable[Result]:
    x = _exchange(s)
    connect = _phase(x, "connect") if x is not None else None
    if x is None or connect is None:
        yield unknown("TT807", "no connection was tried")
        return
    tried = [str(a) for a in connect.attributes.get("tokentrace.connect.attempts", ())]
    lost = [a for a in tried if not a.split(" after ")[0].endswith("connected")]
    peer = connect.attributes.get("network.peer.address")
    if not peer:
        yield unknown("TT807", "no address took the connection", "", *tried)
    elif lost and ":" in lost[0].split(" ")[0]:
        yield warn(
            "TT807",
            f"{x.server_address} leads to IPv6 first, where the server does not listen; it was reached at {peer}. "
            "Clients that do not try both at once wait for it at each request",
            f"use {peer} instead of {x.server_address} in the base URL",
            *tried,
        )
    elif lost:
        yield warn(
            "TT807",
            f"{len(lost)} of the {len(tried)} addresses of {x.server_address} that were tried did not answer",
            "check that name in the DNS; some of its addresses are dead",
            *tried,
        )
    else:
        yield ok("TT807", f"{x.server_address} was reached at {peer}", *tried)


def _times(s: Situation) -> Iterable[Result]:
    x = _exchange(s)
    found = {p.name: p.end_ns - p.start_ns for p in x.phases} if x is not None else {}
    early = {n: found[n] for n in ("dns", "connect", "tls") if n in found}
    if not early or x is None or not x.status_code:
        yield unknown("TT881", "no connection came about")
        return
    told = [f"{name} {duration(ns)}" for name, ns in early.items()]
    slow = [name for name, ns in early.items() if ns > _SLOW_S * 1e9]
    if slow:
        why = {"dns": "the name server", "connect": "the network, or a server too busy to accept", "tls": "the server"}
        yield warn(
            "TT881",
            f"{listed([f'{n} took {duration(early[n])}' for n in slow])} before anything was sent",
            f"look at {why[slow[0]]}",
            *told,
        )
    else:
        yield ok("TT881", f"connecting took {duration(sum(early.values()))}", *told)


def _certificate(s: Situation) -> Iterable[Result]:
    endpoint = s.endpoint
    if endpoint is None or not endpoint.base_url.startswith("https://"):
        yield skip("TT817", "plain http has no certificate")
        return
    x = _exchange(s)
    if x is not None and x.proxy:
        yield skip("TT817", "a proxy stands between; the certificate is judged by the request itself")
        return
    found = certificates.presented(endpoint.host, endpoint.port, max(0.2, min(1.8, s.left_s)))
    if found is None:
        yield unknown("TT817", "the server showed no certificate")
        return
    evidence = (f"for {found.subject}", f"signed by {found.issuer}", f"valid {found.not_before} to {found.not_after}")
    left = _days_left(found.not_after)
    if left is not None and 0 <= left < _SOON_DAYS:
        when = f"expires on {found.not_after}"
        yield warn("TT817", f"the server's certificate {when}", "have it renewed", *evidence)
    elif left is not None and left < 0:
        yield warn("TT817", f"the server's certificate expired on {found.not_after}", "have it renewed", *evidence)
    else:
        yield ok("TT817", f"the server's certificate is valid until {found.not_after}", *evidence)


def _days_left(date: str) -> int | None:
    try:
        then = datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return int((then.timestamp() - time.time()) // 86_400)


def _models(s: Situation) -> Iterable[Result]:
    reply = s.look.get("models") if s.look is not None else None
    if reply is None:
        yield unknown("TT848", "the list of models did not come in time")
        return
    models = s.look.models if s.look is not None else None
    wanted = s.endpoint.model if s.endpoint is not None else ""
    if models is not None:
        names = [one_line(str(m["id"]), 80) for m in models]
        told = f"{len(names)} model{'s' * (len(names) != 1)}: {listed(names)}" if names else "an empty list"
        if not names:
            yield warn("TT848", "the server lists no model", "load one there", f"/models {reply.told}")
        elif wanted and wanted not in [str(m["id"]) for m in models]:
            yield unknown("TT848", f"the server does not list {one_line(wanted, 80)!r}; it lists {listed(names)}")
        else:
            yield ok("TT848", f"the server lists {told}", f"/models {reply.told}")
    elif reply.error is not None:
        yield unknown("TT848", f"no list of models: {one_line(str(reply.error))}")
    elif reply.status in (401, 403):
        yield unknown("TT848", f"the list of models is not given with this key ({reply.status})")
    else:
        yield unknown("TT848", f"the server has no list of models ({reply.status})")


def _server(s: Situation) -> Iterable[Result]:
    look = s.look
    if look is None or not look.alive:
        yield unknown("TT856", "none of the server's other addresses answered")
        return
    routes = [f"/{name} {reply.told}" for name, reply in look.replies.items()]
    name, version = look.server, look.version
    x = _exchange(s)
    if x is not None and any(header.startswith("x-litellm") for header in x.response_headers):
        name = LITELLM
    if name == LITELLM:
        yield ok("TT856", "it is LiteLLM, a gateway: what lies behind it is seen only by asking that server", *routes)
    elif name:
        yield ok("TT856", f"it is {name}{f' {version}' if version else ''}", *routes)
    else:
        yield unknown("TT856", "which server this is could not be told; optional routes may be missing", "", *routes)


CHECKS = (
    Check(
        "TT807",
        "addresses",
        "Every address that the host name leads to was tried the way it comes; none was dead. `localhost` often leads "
        "to IPv6 first, where most servers do not listen.",
        "each attempt to connect during the live call, with its time",
        "Use 127.0.0.1 in place of localhost, or mend the name's addresses.",
        _addresses,
        live=True,
        network=True,
        modes=SERVERS,
    ),
    Check(
        "TT817",
        "certificate",
        "The server's certificate is valid for more than two weeks.",
        "the certificate that the server shows in a handshake; nothing else is sent",
        "Have it renewed.",
        _certificate,
        live=True,
        network=True,
        modes=SERVERS,
    ),
    Check(
        "TT848",
        "list of models",
        "The server lists its models to this key. A server without such a list may be all right.",
        "GET /models under the base URL",
        "Use one of the names listed with --model.",
        _models,
        network=True,
        modes=SERVERS,
    ),
    Check(
        "TT856",
        "server",
        "Which server answers: routes like /version, /metrics and /tokenize differ between them, and one that is "
        "missing is no fault. A green /health alone proves nothing about the engine.",
        "GET /version, /health, /metrics and the owner in /models",
        "Nothing to mend; it explains what else can be seen.",
        _server,
        network=True,
        modes=SERVERS,
    ),
    Check(
        "TT881",
        "time to connect",
        "Looking up the name, connecting and the TLS handshake each took less than a second.",
        "the phases of the live call",
        "Look at the name server, the network, or the server's backlog, whichever was slow.",
        _times,
        live=True,
        network=True,
        modes=SERVERS,
    ),
)
