"""Causes that lie in a gateway before the server, or in a proxy: it answered itself, and the server was not asked."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from tokentrace.client import gateways
from tokentrace.client.causes import failure, one_line, some_lines
from tokentrace.client.facts import Facts
from tokentrace.client.gateways import Gateway
from tokentrace.errors import EndpointError

#: A request of fewer bytes is no reason for a limit.
_SMALL_BYTES = 8_192


def gateways_own(facts: Facts, by: Gateway) -> EndpointError:
    """What a status means in an answer that `by` wrote itself."""
    status, path = facts.status, urlsplit(facts.url).path
    title = one_line(gateways.title(facts.shown(facts.text)) or ("" if facts.is_html else facts.said), 120)
    named = f"{status} {title}".strip()
    itself = f"{by.name} before the server answered itself ({named})"
    asked_not = "the server behind it was not asked"
    log = f"{by.where_it_tells} tells why"
    routes = f"{by.routes} of {by.name}" if by.routes else f"the routes of {by.name}"
    if status == 401:
        return _login(facts, by, named)
    if status == 403:
        return failure(
            "TT834", f"{itself}: its own rules forbid this request, and {asked_not}",
            f"change its rules for this path, address or user agent; {log}",
        )  # fmt: skip
    if status == 404:
        # Which routes it does pass on, if any, was asked for.
        other = f", although it passes /models on under {facts.better_base}" if facts.better_base else ""
        other = ", although it passes /models on" if facts.models is not None else other
        fix = f"use {facts.better_base}" if facts.better_base else f"pass this path on ({routes}); {log}"
        return failure("TT840", f"{itself}: it has no route for {path}{other}, and {asked_not}", fix)
    if status in (405, 501):
        return failure(
            "TT842", f"{itself}: it does not take POST at {path}, and {asked_not}",
            f"check the path of the base URL, and that {by.name} passes it on ({routes})",
        )  # fmt: skip
    if status == 413:
        limit = f"{by.size} of {by.name}" if by.size else f"the limit for a request's size in {by.name}"
        return failure(
            "TT843", f"{itself}: it finds {size_of(facts)} too large{absurdly(facts)}, and {asked_not}",
            f"raise {limit}",
        )  # fmt: skip
    if status == 429:
        fix = f"wait {facts.wait}" if facts.wait else "send less at once, or raise its limit"
        return failure("TT845", f"{itself}: it limits the rate of requests, and {asked_not}", f"{fix}; {log}")
    if status == 400 and re.search("certificate", title, re.IGNORECASE):
        return failure(
            "TT834", f"{itself}: it wants a certificate of the client, and {asked_not}",
            "tokentrace sends none: use an address without that demand",
        )  # fmt: skip
    if status < 500:
        return failure("TT844", f"{itself}, and {asked_not}", f"mend what it names; {log}")
    return _own_failure(facts, by, named)


def proxys_own(facts: Facts) -> EndpointError | None:
    """What a proxy from the environment answered in place of passing the request on; None when it did pass it on."""
    proxy, status = facts.wire.proxy, facts.status
    if not proxy or isinstance(facts.value, dict):
        return None
    writer, server = facts.writer, facts.headers.get("server", "").lower()
    if writer is not None and writer.name != "Squid":
        return None  # another gateway's page, which came through the proxy
    told = "x-squid-error" in facts.headers or "proxy" in server
    # A 403 in HTML or with nothing in it is how filtering proxies refuse; an API would have answered in JSON.
    refuses = status == 403 and (facts.is_html or not facts.body.strip())
    if not (told or refuses or status in (502, 503, 504)):
        return None
    code = one_line(
        facts.headers.get("x-squid-error", "").partition(" ")[0] or gateways.title(facts.shown(facts.text)), 80
    )
    return proxy_answered(facts, f"{status} {code}".strip(), status in (500, 502, 503, 504))


def proxy_answered(facts: Facts, named: str, unreached: bool) -> EndpointError:
    """The proxy's own answer, `named` by its status and its words."""
    host = urlsplit(facts.url).hostname or ""
    what = f"could not reach {host}" if unreached else f"does not pass requests to {host} on"
    return failure(
        "TT821",
        f"the proxy {facts.wire.proxy} {what} ({named}); the server was not asked",
        f"{facts.past_proxy or f'unset {facts.proxy_variable}'} lets requests to {host} go past the proxy; if they "
        "must go through it, have it allow them",
    )


def _own_failure(facts: Facts, by: Gateway, named: str) -> EndpointError:
    said = some_lines(facts.shown(facts.text)) if not facts.is_html else ""
    up = "check that the server itself is up"
    if facts.status == 504:
        wait = f"; if the server is only slow, raise {by.wait}" if by.wait else ""
        return failure(
            "TT847", f"{by.name} got no answer in time from the server behind it ({named})",
            f"{up}{wait}; {by.where_it_tells} names the address that it asked", said,
        )  # fmt: skip
    if facts.status == 502:
        return failure(
            "TT847", f"{by.name} cannot reach the server behind it ({named})",
            f"{up} and that {by.name} has its address ({by.routes or 'its routes'}); "
            f"{by.where_it_tells} names the address that it tried", said,
        )  # fmt: skip
    if facts.status == 503:
        return failure(
            "TT847",
            f"{by.name} answered itself ({named}): it has no server behind it that is up, or limits how many requests "
            "it passes on",
            f"{up}; {by.where_it_tells} tells which", said,
        )  # fmt: skip
    if by.name == "Cloudflare" and (found := _origin(facts, named)) is not None:
        return found
    return failure(
        "TT847", f"{by.name} before the server failed itself ({named}); the server's log has nothing of it",
        f"look at {by.where_it_tells} at that time", said,
    )  # fmt: skip


#: https://developers.cloudflare.com/support/troubleshooting/http-status-codes/cloudflare-5xx-errors/
_ORIGIN = {
    520: ("got an answer that it could not read from the server behind it", "look at the server's log at that time"),
    521: ("was refused the connection by the server behind it", "start the server, or let Cloudflare's addresses in"),
    522: ("got no connection to the server behind it", "check that the server is up, and the firewall before it"),
    523: ("found no way to the server behind it", "check the server's address in Cloudflare's DNS"),
    524: ("had the connection, and no answer in time from the server behind it",
          "ask for a stream, which keeps the connection busy, or for fewer tokens; look whether the server is stuck"),
    525: ("could not finish the TLS handshake with the server behind it", "look at the server's TLS settings"),
    530: ("found no server behind it", "check that the tunnel (cloudflared) runs, or the server's address in "
          "Cloudflare's DNS"),
    526: ("does not trust the certificate of the server behind it", "have that certificate renewed"),
}  # fmt: skip


def _origin(facts: Facts, named: str) -> EndpointError | None:
    """Cloudflare's own statuses say what was wrong with the server behind it."""
    known = _ORIGIN.get(facts.status)
    return failure("TT847", f"Cloudflare {known[0]} ({named})", known[1]) if known is not None else None


def _login(facts: Facts, by: Gateway, named: str) -> EndpointError:
    asks = facts.headers.get("www-authenticate", "")
    itself = f"({named}, {by.name} answered itself)"
    if asks.lower().startswith("basic"):
        return failure(
            "TT836",
            f"{by.name} before the server wants a user name and password {itself}; the server behind it was not asked",
            'give it them as a header in a profile: headers = { Authorization = "Basic …" }, or take that demand off '
            "for this path",
            f"WWW-Authenticate: {one_line(asks, 120)}",
        )
    if not facts.key_sent:
        return failure(
            "TT830", f"{by.name} before the server wants a key {itself} and none was sent",
            f"export OPENAI_API_KEY=…, or use --profile; {by.where_it_tells} tells which rule asks for it",
        )  # fmt: skip
    return failure(
        "TT831",
        f"{by.name} before the server refused the key from {facts.key_source or 'the settings'} {itself}; the server "
        "behind it was not asked",
        f"use the key that {by.name} asks for, or change its rule; {by.where_it_tells} tells which",
    )


def size_of(facts: Facts) -> str:
    return f"a request of {facts.request_bytes:,} bytes" if facts.request_bytes else "the request"


def absurdly(facts: Facts) -> str:
    """A limit that this request breaks lets no request through."""
    return ", which lets hardly any request through" if 0 < facts.request_bytes < _SMALL_BYTES else ""
