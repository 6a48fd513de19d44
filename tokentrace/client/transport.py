"""One HTTP exchange over `network`: proxy, certificates, headers, bounded bodies. No redirect is followed here.

The key goes into the Authorization header and nowhere else. Where a server sends it back, it is hidden before anybody
above reads the body; what can be told from ordinary text only in what the body means is hidden there (`hiding`).
"""

from __future__ import annotations

import os
import re
import ssl
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tokentrace.client import config_files, keys, proxies
from tokentrace.client.hiding import Hider
from tokentrace.client.settings import Endpoint
from tokentrace.client.sse import SseTooLong
from tokentrace.client.urls import bracketed
from tokentrace.client.wire import Timeouts, Wire
from tokentrace.errors import ConfigError

if TYPE_CHECKING:
    import httpcore

MAX_BODY_BYTES = 32 * 2**20
USER_AGENT = "tokentrace"


class BodyTooLong(Exception):
    """An answer that is not a stream is longer than the bound."""


class UnknownCoding(Exception):
    """The body is compressed in a way that was not asked for. The message names it."""


@dataclass(slots=True)
class Response:
    """`chunks` yields the body as it arrives, decompressed; `close` must be called. Header names are in small letters.

    `body_bytes` counts what has arrived of the body, as sent.
    """

    status: int
    headers: dict[str, str]
    http_version: str
    chunks: Iterator[bytes]
    close: Callable[[], None]
    body_bytes: int = 0

    def read(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """The whole body. Raises BodyTooLong."""
        parts: list[bytes] = []
        size = 0
        for data in self.chunks:
            size += len(data)
            if size > limit:
                raise BodyTooLong(f"the answer is longer than {limit:,} bytes")
            parts.append(data)
        return b"".join(parts)


@dataclass(slots=True)
class Outgoing:
    """A request to send. `headers` come on top of the endpoint's own."""

    method: str
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def failures() -> tuple[type[Exception], ...]:
    """What ends an exchange or the reading of its body, beside `network.Stopped`; httpcore is imported only then."""
    import httpcore

    broken = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, httpcore.ProxyError, OSError)
    return (*broken, BodyTooLong, SseTooLong, UnknownCoding, ConfigError)


def prepare(endpoint: Endpoint, environ: Mapping[str, str]) -> None:
    """Import and read what a request needs, so that this is no part of its time. Raises ConfigError."""
    import tokentrace.client.network  # noqa: F401

    if endpoint.base_url.startswith("https://"):
        tls_context(environ.get("SSL_CERT_FILE", ""), environ.get("SSL_CERT_DIR", ""))


def exchange(
    endpoint: Endpoint,
    request: Outgoing,
    wire: Wire,
    timeouts: Timeouts,
    should_stop: Callable[[], bool] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Response:
    """Send and read up to the headers. `wire` is filled in as it goes.

    Raises what `failures` lists (ConfigError for a proxy, CA variable or header that cannot be used), network.Stopped.
    """
    import httpcore

    from tokentrace.client.network import Backend

    environ = os.environ if environ is None else environ
    target = urlsplit(request.url)
    port = target.port or (443 if target.scheme == "https" else 80)
    proxy = proxies.choose(target.scheme, target.hostname or "", port, environ)
    context: ssl.SSLContext | None = None
    if target.scheme == "https":
        context, wire.ca = tls_context(environ.get("SSL_CERT_FILE", ""), environ.get("SSL_CERT_DIR", ""))
    wire.proxy = proxy.shown if proxy else ""
    pool = _pool(Backend(wire, timeouts, should_stop), proxy, context)
    headers = {
        "Host": _authority(request.url),
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",
        "User-Agent": USER_AGENT,
        "Connection": "close",
        **({"Content-Type": "application/json", "Content-Length": str(len(request.body))} if request.body else {}),
        **({"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}),
    }
    headers = merge(merge(headers, endpoint.headers), request.headers)
    raw = [_header(name, value) for name, value in headers.items()]
    hider = Hider(keys.secrets(headers, target.query))
    asked = httpcore.Request(request.method, request.url, headers=raw, content=request.body or None)
    try:
        response = pool.handle_request(asked)
    except BaseException:
        pool.close()
        raise
    answered = {n.decode("latin-1").lower(): hider.raw_text(v.decode("latin-1")) for n, v in response.headers}
    version = bytes(response.extensions.get("http_version", b"HTTP/1.1")).decode("ascii", "replace")
    done = Response(response.status, answered, version.removeprefix("HTTP/"), iter(()), lambda: _close(response, pool))
    done.chunks = hider.raw(_decoded(_counted(response, wire, done), answered.get("content-encoding", "")))
    return done


def _pool(
    backend: object, proxy: proxies.ProxyChoice | None, context: ssl.SSLContext | None
) -> httpcore.ConnectionPool:
    import httpcore

    more: dict[str, Any] = {"ssl_context": context, "network_backend": backend}
    if proxy is None:
        return httpcore.ConnectionPool(**more)
    host = bracketed(proxy.host)
    auth = (proxy.username, proxy.password) if proxy.username else None
    if proxy.scheme.startswith("socks"):
        try:
            return httpcore.SOCKSProxy(f"socks5://{host}:{proxy.port}", proxy_auth=auth, **more)
        except (ImportError, RuntimeError):
            raise ConfigError(
                f"{proxy.variable} names a SOCKS proxy, which needs the package socksio",
                fix=f"pip install socksio, or set NO_PROXY, or unset {proxy.variable}",
                layer=8,
            ) from None
    if proxy.scheme == "https" and context is not None:
        raise ConfigError(
            f"{proxy.variable} names a proxy that itself speaks https, which is not supported for https servers",
            fix="use an http:// proxy, or set NO_PROXY for this server",
            layer=8,
        )
    return httpcore.HTTPProxy(f"{proxy.scheme}://{host}:{proxy.port}", proxy_auth=auth, **more)


@lru_cache(maxsize=4)
def tls_context(cert_file: str, cert_dir: str) -> tuple[ssl.SSLContext, str]:
    """Verifies always. SSL_CERT_FILE and SSL_CERT_DIR where set, else the system's authorities and certifi's.

    Returns the context and in words which authorities it trusts. Raises ConfigError for a file that cannot be used.
    """
    for variable, name in (("SSL_CERT_FILE", cert_file), ("SSL_CERT_DIR", cert_dir)):
        if name and not Path(name).exists():
            raise ConfigError(
                f"{variable} names {name}, which does not exist", fix=f"mend or unset {variable}", layer=8
            )
    if cert_file or cert_dir:
        try:
            context = ssl.create_default_context(cafile=cert_file or None, capath=cert_dir or None)
        except (ssl.SSLError, OSError):
            raise ConfigError(
                f"SSL_CERT_FILE={cert_file} holds no certificates", fix="it must be a PEM file", layer=8
            ) from None
        return context, " and ".join(
            f"{n}={v}" for n, v in (("SSL_CERT_FILE", cert_file), ("SSL_CERT_DIR", cert_dir)) if v
        )
    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(cafile=certifi.where())
    return context, f"the system's certificates and {certifi.where()}"


def _authority(url: str) -> str:
    """For the Host header, in which the zone of an address of this link has no place (RFC 6874, section 1)."""
    return re.sub(r"%[^]]*\]", "]", url.partition("://")[2].partition("/")[0].partition("?")[0])


def merge(headers: dict[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Headers with `more` in place of those of the same name, however it is written."""
    replaced = {name.lower() for name in more}
    return {**{n: v for n, v in headers.items() if n.lower() not in replaced}, **more}


def _header(name: str, value: str) -> tuple[bytes, bytes]:
    if not config_files.sendable(name, value):
        raise ConfigError(f"the header {name[:60]!r} cannot be sent", fix="mend its name or its value", layer=8)
    return name.encode("ascii"), value.encode("latin-1")


def _counted(response: httpcore.Response, wire: Wire, done: Response) -> Iterator[bytes]:
    for data in response.iter_stream():
        wire.body_begun = True
        wire.stage = "stream"
        done.body_bytes += len(data)
        yield data
    wire.stage = "done"


def _decoded(chunks: Iterator[bytes], coding: str) -> Iterator[bytes]:
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        yield from chunks
        return
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise UnknownCoding(coding)
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)
    for data in chunks:
        try:
            if plain := decoder.decompress(data):
                yield plain
        except zlib.error:
            raise UnknownCoding(f"{coding}, but damaged") from None
    if plain := decoder.flush():
        yield plain


def _close(response: httpcore.Response, pool: httpcore.ConnectionPool) -> None:
    try:
        response.close()
    finally:
        pool.close()
