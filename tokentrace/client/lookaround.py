"""Looks once more after a request has failed: what would the right setting have been, and what is really there?

Only GET requests to the host that was addressed, two seconds each, that make no tokens; or no more than a handshake.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping

from tokentrace.client import certificates, protocols
from tokentrace.client.chunks import parse_json
from tokentrace.client.facts import Facts
from tokentrace.client.fetch import fetch, hider_of
from tokentrace.client.settings import Endpoint
from tokentrace.client.urls import bracketed, is_loopback, server_root
from tokentrace.errors import EndpointError

#: Causes whose message gets better by asking for the server's models, here or under another base URL.
_ASK = frozenset({"TT840", "TT841", "TT842", "TT850", "TT851", "TT854"})
_EACH_S = 2.0
#: All of it together, unless told otherwise.
ALL_S = 5.0


def model_ids(
    endpoint: Endpoint, base_url: str = "", timeout_s: float = _EACH_S, environ: Mapping[str, str] | None = None
) -> list[str] | None:
    """Ids in `/models` under the base URL (the endpoint's own unless given); None when there is no such list."""
    url = (base_url or endpoint.base_url) + "/models" + endpoint.query
    try:
        answer = fetch(endpoint, "GET", url, timeout_s=timeout_s, environ=environ)
        value = parse_json(answer.body) if answer.status == 200 and answer.is_json else None
    except (EndpointError, ValueError):
        return None
    listed = value.get("data") if isinstance(value, dict) else value
    if not isinstance(listed, list):
        return None
    ids = [str(m["id"]) for m in listed if isinstance(m, dict) and m.get("id")]
    holds = hider_of(endpoint).holds  # a server that lists the key as a model is not to have it sent and shown as one
    return [one for one in ids if not holds(one)]


def look(
    endpoint: Endpoint,
    facts: Facts,
    error: EndpointError,
    all_s: float = ALL_S,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Fill in what makes the sentence for this error better, if anything does. Ends after `all_s`. Never raises."""
    check = error.check
    if check in _ASK or (check == "TT852" and not facts.events):
        _ask(endpoint, facts, check, all_s, environ)
    elif (check in ("TT810", "TT811", "TT812") and not facts.wire.proxy) or _may_be_https(facts, check):
        seconds = min(_EACH_S, all_s)
        facts.certificate = certificates.presented(endpoint.host, endpoint.port, seconds, facts.wire.peer)
    elif check == "TT803" and not facts.wire.proxy:
        facts.listener = _listener(endpoint, facts, all_s)
    elif facts.wire.tls_start_ns and not facts.wire.tls_end_ns and not facts.wire.proxy:
        facts.plain = protocols.heard(facts.wire.peer or endpoint.host, endpoint.port, min(_EACH_S, all_s))


def _may_be_https(facts: Facts, check: str) -> bool:
    """A server of https often just closes a connection that speaks plain http."""
    return check == "TT828" and facts.base_url.startswith("http://") and not facts.wire.proxy


def _listener(endpoint: Endpoint, facts: Facts, all_s: float) -> str:
    """The base URL on another of this machine's addresses where something listens; "" when nothing does.

    Only for an address of this machine itself. Nothing is sent.
    """
    tried = [a.address for a in facts.wire.attempts]
    own = _own_addresses()
    if not any(is_loopback(a) or a in own for a in tried):
        return ""
    end = time.monotonic() + min(_EACH_S, all_s)
    for address in dict.fromkeys(("127.0.0.1", "::1", *own)):
        left = end - time.monotonic()
        if address in tried or left <= 0:
            continue
        with contextlib.suppress(OSError), socket.create_connection((address, endpoint.port), timeout=min(0.5, left)):
            parts = endpoint.parts
            path = parts.url[len(parts.origin) :]
            return f"{parts.scheme}://{bracketed(address)}:{parts.port}{path}"
    return ""


def _own_addresses() -> list[str]:
    import psutil

    try:
        found = [one.address for addresses in psutil.net_if_addrs().values() for one in addresses
                 if one.family in (socket.AF_INET, socket.AF_INET6)]  # fmt: skip
    except (psutil.Error, OSError):
        return []
    return [address for address in found if "%" not in address]


def _ask(endpoint: Endpoint, facts: Facts, check: str, all_s: float, environ: Mapping[str, str] | None = None) -> None:
    """Fill in `facts.models` or `facts.better_base`; leaves them alone when nothing helps."""
    end = time.monotonic() + all_s
    models = model_ids(endpoint, timeout_s=min(_EACH_S, all_s), environ=environ)
    if models is not None:
        facts.models = tuple(models)
        return
    if check == "TT841":
        return
    for candidate in _candidates(endpoint):
        left = end - time.monotonic()
        if left <= 0:
            return
        if model_ids(endpoint, candidate, min(_EACH_S, left), environ) is not None:
            facts.better_base = candidate
            return


def _candidates(endpoint: Endpoint) -> list[str]:
    """Where an API usually is, nearest to what was given first."""
    base, origin = endpoint.base_url, endpoint.parts.origin
    root = server_root(base)
    guesses = [f"{base}/v1", f"{root}/v1", f"{origin}/v1", f"{origin}/api/v1", f"{origin}/openai/v1"]
    return [g for g in dict.fromkeys(guesses) if g != base and not g.endswith("/v1/v1")][:4]
