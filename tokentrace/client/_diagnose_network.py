"""Causes below HTTP: names, connections, TLS, proxies, time."""

from __future__ import annotations

import errno
import socket
import ssl

from tokentrace.client import protocols
from tokentrace.client._diagnose_gateway import proxy_answered
from tokentrace.client.causes import failure, one_line
from tokentrace.client.facts import Facts
from tokentrace.client.urls import is_loopback
from tokentrace.errors import EndpointError
from tokentrace.wording import listed, plural


def network_failure(facts: Facts) -> EndpointError:
    """What the exception that ended the exchange means, from where it happened and what lies beneath it."""
    wire, error = facts.wire, facts.error
    assert error is not None
    chain = _chain(error, wire.fault)
    if wire.stage in ("stream", "done") or facts.status:
        return broken_stream(facts)
    if any(type(e).__name__ == "ProxyError" for e in chain):
        return _proxy_refused(facts, str(error))
    if wire.limit:
        return timed_out(facts)
    if gai := next((e for e in chain if isinstance(e, socket.gaierror)), None):
        return _no_name(facts, gai)
    if tls := next((e for e in chain if isinstance(e, ssl.SSLError)), None):
        return _tls(facts, tls)
    if wire.stage in ("dns", "connect"):
        return _no_connection(facts, next((e for e in chain if isinstance(e, OSError)), None))
    return _no_answer(facts, chain)


def timed_out(facts: Facts) -> EndpointError:
    """A limit ran out before the answer was whole."""
    wire, seconds = facts.wire, f"{facts.timeout_s:.3g} s"
    if wire.stage == "dns":
        return failure(
            "TT802", f"looking up the name {wire.host} took too long", "check the DNS server of this machine"
        )
    if wire.stage in ("connect", "tls"):
        if wire.proxy:
            return failure("TT820", f"the proxy {wire.proxy} did not answer in time", _proxy_fix(facts))
        if wire.stage == "tls":
            other = protocols.of(facts.plain or b"")
            if other and other not in ("TLS", "plain http"):
                return _other_protocol(facts, other, facts.plain or b"")
            return failure(
                "TT804",
                f"{facts.where} took the connection but did not answer the TLS handshake in time",
                f"if it speaks plain http, use {facts.base_url.replace('https://', 'http://', 1)}",
                _attempts(facts),
            )
        return failure(
            "TT804",
            f"{facts.where} did not answer in time",
            "check host and port; a firewall that drops packets looks like this",
            _attempts(facts),
        )
    if wire.limit == "total" and facts.max_tokens and facts.text_chunks > 2 * facts.max_tokens + 2:
        return failure(
            "TT827",
            f"the server does not keep to max_tokens: {plural(facts.max_tokens, 'token')} asked for, and the reply had "
            f"no end {so_far(facts)}",
            "look for what drops max_tokens on the way: a gateway, or a server that knows max_completion_tokens only",
        )
    if wire.limit == "total" and facts.text_chunks:
        return failure(
            "TT827",
            f"the whole reply did not arrive in time, {so_far(facts)}",
            "raise --timeout, or lower --max-tokens",
        )
    if facts.text_chunks or (wire.body_begun and facts.keepalives == 0 and wire.limit != "total"):
        return failure(
            "TT826",
            f"nothing more came for {seconds} {so_far(facts)}",
            "look at the server's log at that time, or raise --timeout",
        )
    if wire.proxy and not wire.first_read_ns and facts.url.startswith("https://") and not wire.tls_start_ns:
        return failure(
            "TT820", f"the proxy {wire.proxy} took the connection and did not answer in time", _proxy_fix(facts)
        )
    alive = f"; {facts.keepalives} keep-alives came, so it was still at work" if facts.keepalives else ""
    return failure(
        "TT825",
        f"{facts.where} took the request but sent no token within {seconds}{alive}",
        "raise --timeout if the model is slow or busy; the server's /metrics tells busy from stuck",
    )


def broken_stream(facts: Facts) -> EndpointError:
    """The connection ended badly after the headers had come."""
    if facts.wire.limit:
        return timed_out(facts)
    reset = any(isinstance(e, OSError) and e.errno == errno.ECONNRESET for e in _chain(facts.error, facts.wire.fault))
    torn = any("chunk" in str(e).lower() and "illegal" in str(e).lower() for e in _chain(facts.error))
    how = "was reset" if reset else "was closed in the middle of a chunk" if _cut(facts) else "failed"
    how = "lost the marks between its chunks" if torn else how
    return failure(
        "TT860",
        f"the connection broke {so_far(facts)}: it {how} before the reply was whole",
        "look at the log of the server, and of any gateway before it, at that time",
        f"finish_reason: {facts.finish_reason or 'none'}, [DONE]: {'came' if facts.saw_done else 'did not come'}",
    )


def speaks_https(facts: Facts) -> EndpointError:
    return failure(
        "TT814",
        f"{facts.where} speaks https, not plain http",
        f"use {facts.base_url.replace('http://', 'https://', 1)}",
    )


def proxy_wants_password(facts: Facts) -> EndpointError:
    variable = facts.proxy_variable or "http_proxy"
    return failure(
        "TT821",
        f"the proxy {facts.wire.proxy or 'on the way'} wants a user name and password (407); the server was not asked",
        f"put them into its URL: {variable}=http://user:password@host:port"
        + (f"; or go past it: {facts.past_proxy}" if facts.past_proxy else ""),
    )


def so_far(facts: Facts) -> str:
    """How much of the reply had come, to end a sentence with."""
    # Not tokens: a chunk usually holds one, but may hold several.
    came = plural(facts.text_chunks, "chunk with text", "chunks with text")
    return f"after {came}, {facts.elapsed_ns / 1e9:.2f} s"


def _no_name(facts: Facts, error: socket.gaierror) -> EndpointError:
    wire = facts.wire
    if wire.proxy:
        return failure("TT820", f"the name of the proxy {wire.proxy} has no address", _proxy_fix(facts))
    if error.errno == socket.EAI_AGAIN:
        return failure(
            "TT802",
            f"the name {wire.host} could not be looked up now",
            "check that this machine has a network and a DNS server",
        )
    return failure("TT802", f"the name {wire.host} has no address", "check its spelling in the base URL")


def _no_connection(facts: Facts, error: OSError | None) -> EndpointError:
    wire = facts.wire
    code = error.errno if error is not None else None
    if wire.proxy:
        return failure("TT820", f"the proxy {wire.proxy} cannot be reached", _proxy_fix(facts), _attempts(facts))
    if code == errno.ECONNREFUSED:
        if facts.listener:
            there = facts.listener.partition("://")[2].partition("/")[0]
            wide = "" if is_loopback(wire.host) else ", or have the server listen on all addresses (--host 0.0.0.0)"
            return failure(
                "TT806",
                f"nothing listens on {facts.where}{_led(facts)}, but something does on {there}: the server listens on "
                "that address only",
                f"use {facts.listener}{wide}",
                _attempts(facts),
            )
        return failure(
            "TT803",
            f"nothing listens on {facts.where}",
            "start the server, or check host and port in the base URL",
            _attempts(facts),
        )
    if code in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        six = bool(wire.attempts) and all(":" in a.address for a in wire.attempts)
        return failure(
            "TT805",
            f"there is no way from here to {facts.where}",
            "the host has only IPv6 addresses and this machine lacks IPv6: use one with an IPv4 address"
            if six
            else "check the network, VPN and firewall",
            _attempts(facts),
        )
    if code in (errno.EACCES, errno.EPERM):
        return failure(
            "TT805",
            f"this machine does not allow a connection to {facts.where}",
            "check the firewall here",
            _attempts(facts),
        )
    said = f": {error.strerror}" if error is not None and error.strerror else ""
    return failure("TT805", f"{facts.where} cannot be reached{said}", "check host, port and network", _attempts(facts))


#: X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT (also _LOCALLY), _DEPTH_ZERO_SELF_SIGNED_CERT, _SELF_SIGNED_CERT_IN_CHAIN and
#: _UNABLE_TO_VERIFY_LEAF_SIGNATURE of openssl/x509_vfy.h: the chain leads to nobody who is known here.
_NO_ISSUER = (2, 18, 19, 20, 21)


def _led(facts: Facts) -> str:
    """Where a name led, for a reader who did not know that it has one of two kinds of address."""
    tried = [a.address for a in facts.wire.attempts]
    return f" ({facts.wire.host} is {listed(tried, 3)} here)" if tried and facts.wire.host not in tried else ""


def _tls(facts: Facts, error: ssl.SSLError) -> EndpointError:
    wire, shown = facts.wire, facts.certificate
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code in (9, 10):  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
            when = f" (valid {shown.not_before} to {shown.not_after})" if shown else ""
            what = "has expired" if code == 10 else "is not valid yet"
            return failure(
                "TT810",
                f"the certificate of {facts.where} {what}{when}",
                "renew it on the server; if it looks valid, check this machine's clock",
            )
        if code in (62, 64):  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
            name = ""
            if shown and shown.names:
                name = f"; it is for {listed(list(shown.names), 6)}"
            elif shown:
                name = "; it holds no subjectAltName, and nothing else counts as its name"
            return failure(
                "TT812",
                f"the certificate of {facts.where} is for another name{name}",
                "use the name that the certificate is for in the base URL",
            )
        if code not in _NO_ISSUER and error.verify_message:
            return failure(
                "TT811",
                f"the certificate of {facts.where} is refused here: {error.verify_message}",
                "have it issued anew without that; if only Python 3.13 and later refuse it: they insist on what "
                "RFC 5280 asks of an authority's certificate, earlier versions do not",
            )
        if shown and shown.self_signed:
            who = "is self-signed"
        elif shown and shown.issuer:
            who = f"was issued by {shown.issuer}, which is not trusted here"
        else:
            who = "was issued by an authority that is not trusted here"
        return failure(
            "TT811",
            f"the certificate of {facts.where} {who}",
            "set SSL_CERT_FILE (and REQUESTS_CA_BUNDLE for other tools) to a PEM file with the authority's certificate",
            f"trusted here: {wire.ca}" if wire.ca else "",
        )
    text = str(error).upper().replace(" ", "_")
    other = protocols.of(facts.plain or b"")
    if other and other not in ("TLS", "plain http"):
        return _other_protocol(facts, other, facts.plain or b"")
    no_tls = any(word in text for word in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH", "RECORD_LAYER"))
    if other == "plain http" or (no_tls and facts.plain is None):
        return failure(
            "TT813",
            f"{facts.where} speaks plain http, not https",
            f"use {facts.base_url.replace('https://', 'http://', 1)}",
        )
    if no_tls:
        return failure(
            "TT829",
            f"what listens on {facts.where} speaks neither https nor http",
            "check the port",
            _seen(facts.plain or b""),
        )
    if "CERTIFICATE_REQUIRED" in text:
        return failure(
            "TT815",
            f"{facts.where} wants a certificate of the client (mutual TLS)",
            "tokentrace sends none: use an address without that demand, or a gateway that has the certificate",
        )
    if "HANDSHAKE_FAILURE" in text or "BAD_CERTIFICATE" in text:
        return failure(
            "TT815",
            f"{facts.where} refused the TLS handshake: {getattr(error, 'reason', '') or error}",
            "it may want a certificate of the client (mutual TLS), which tokentrace does not send, or versions and "
            "ciphers of its own: the server's log tells which",
        )
    return failure(
        "TT815",
        f"the TLS handshake with {facts.where} failed: {getattr(error, 'reason', '') or error}",
        "check that the server speaks TLS 1.2 or later on this port",
    )


def _no_answer(facts: Facts, chain: list[BaseException]) -> EndpointError:
    wire = facts.wire
    start = wire.first_bytes
    if start[:1] == b"\x15" and start[1:2] == b"\x03":  # a TLS alert
        return speaks_https(facts)
    if start and not start.startswith(b"HTTP/"):
        if other := protocols.of(start):
            return _other_protocol(facts, other, start)
        return failure("TT829", f"what listens on {facts.where} does not speak HTTP", "check the port", _seen(start))
    if any("Receive buffer too long" in str(e) for e in chain):
        return failure(
            "TT829",
            f"the headers of the answer from {facts.where} are longer than 100 KiB, which no client reads",
            "look at what sets them: cookies, or a gateway's own headers",
        )
    if facts.certificate is not None and facts.base_url.startswith("http://"):
        return speaks_https(facts)
    if wire.stage == "tls" or any(isinstance(e, ConnectionError) for e in chain) or not start:
        kind = "was reset" if any(isinstance(e, ConnectionResetError) for e in chain) else "was closed"
        secure = facts.base_url.startswith("https://")
        other = "http" if secure else "https"
        by = f"; the request went through the proxy {wire.proxy}" if wire.proxy else ""
        return failure(
            "TT828",
            f"the connection to {facts.where} {kind} without an answer{by}",
            f"look at the server's log; if it speaks {other}, begin the base URL with {other}://",
        )
    return failure(
        "TT829",
        f"the answer of {facts.where} is not valid HTTP",
        "check the port and any proxy before it",
        str(facts.error)[:200],
    )


def _other_protocol(facts: Facts, other: str, start: bytes) -> EndpointError:
    return failure(
        "TT829",
        f"what listens on {facts.where} speaks {other}, and no HTTP",
        "check the port: another program listens there",
        _seen(start),
    )


def _seen(start: bytes) -> str:
    seen = "".join(chr(b) if 32 <= b < 127 else "." for b in start[:40])
    return f"it began with: {seen}" if seen else "it said nothing"


def _proxy_refused(facts: Facts, said: str) -> EndpointError:
    """It did not open the tunnel; `said` is its status and reason."""
    if said.startswith("407"):
        return proxy_wants_password(facts)
    return proxy_answered(facts, one_line(said, 80), said[:1] == "5")


def _proxy_fix(facts: Facts) -> str:
    past = f", or go past it: {facts.past_proxy}" if facts.past_proxy else ""
    return f"start that proxy, or unset {facts.proxy_variable}{past}"


def _attempts(facts: Facts) -> str:
    return "\n".join(a.describe() for a in facts.wire.attempts[:6])


def _cut(facts: Facts) -> bool:
    return any("incomplete" in str(e) or "peer closed" in str(e) for e in _chain(facts.error, facts.wire.fault))


def _chain(*errors: BaseException | None) -> list[BaseException]:
    """The exceptions and what lies beneath them."""
    found: list[BaseException] = []
    for error in errors:
        while error is not None and error not in found and len(found) < 20:
            found.append(error)
            error = error.__cause__ or error.__context__
    return found
