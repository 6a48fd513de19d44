"""Whose answer is it: the server's, or one that a gateway before the server wrote itself?

A Server header alone does not tell: nginx writes its own name over that of the server behind it. The body does.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Gateway:
    """`log` is its own error log; `routes`, `size` and `wait` are its words for where requests go, and for limits."""

    name: str
    log: str = ""
    routes: str = ""
    size: str = ""
    wait: str = ""

    @property
    def where_it_tells(self) -> str:
        return self.log or f"the error log of {self.name}"


_NGINX = ("location and proxy_pass", "client_max_body_size", "proxy_read_timeout")
_KNOWN = {
    "nginx": Gateway("nginx", "nginx's error log (/var/log/nginx/error.log)", *_NGINX),
    "openresty": Gateway(
        "openresty", "openresty's error log (/usr/local/openresty/nginx/logs/error.log)", *_NGINX
    ),
    "tengine": Gateway("Tengine", "", *_NGINX),
    "angie": Gateway("Angie", "Angie's error log (/var/log/angie/error.log)", *_NGINX),
    "microsoft-azure-application-gateway": Gateway("Azure Application Gateway"),
    "cloudflare": Gateway("Cloudflare"),
    "envoy": Gateway("Envoy", "Envoy's access log", "its routes and clusters", "", "the route's timeout"),
    "istio": Gateway("Istio", "the access log of its proxy", "its VirtualService", "", "its VirtualService's timeout"),
    "awselb": Gateway("the AWS load balancer", "its access log", "its listener rules", "", "its idle timeout"),
    "caddy": Gateway("Caddy", "Caddy's log (journalctl -u caddy)", "reverse_proxy", "request_body max_size",
                     "response_header_timeout"),
    "traefik": Gateway("Traefik", "Traefik's log", "its routers and services", "maxRequestBodyBytes",
                       "respondingTimeouts"),
    "haproxy": Gateway("HAProxy", "HAProxy's log", "its backends", "", "timeout server"),
    "apache": Gateway("Apache", "Apache's error log (/var/log/apache2/error.log)", "ProxyPass", "LimitRequestBody",
                      "ProxyTimeout"),
    "squid": Gateway("Squid", "Squid's log (/var/log/squid/cache.log)", "http_access", "request_body_max_size",
                     "read_timeout"),
    "varnish": Gateway("Varnish", "varnishlog", "its backends", "", "first_byte_timeout"),
    "kong": Gateway("Kong", "Kong's error log (/usr/local/kong/logs/error.log)", "its routes and services",
                    "client_max_body_size", "the service's read_timeout"),
    "akamai": Gateway("Akamai"),
    "google frontend": Gateway("Google's front end"),
    "litellm": Gateway("LiteLLM"),
}  # fmt: skip
#: The form that nginx gives its pages, and that its descendants kept: the last line names the program.
_PAGE = re.compile(rb"<center>([A-Za-z-]+)(?:/[^<]{1,60})?</center>\s*(?:</body>|$)", re.IGNORECASE)
#: Other programs' own words: in their error pages, or all that they answer.
_WORDS = (
    (re.compile(rb"<address>Apache", re.IGNORECASE), "apache"),
    (re.compile(rb"<p>Varnish cache server</p>|Guru Meditation", re.IGNORECASE), "varnish"),
    (re.compile(rb"^\s*(upstream connect error or disconnect|no healthy upstream|upstream (request|response) timeout|"
                rb"RBAC: access denied)"), "envoy"),
    (re.compile(rb"(No server is available to handle this request|The server returned an invalid or incomplete "
                rb"response|The server didn't respond in time|Request forbidden by administrative rules)\.\s*</body>"),
     "haproxy"),
    (re.compile(rb"^\s*error code: \d{3,4}\s*$"), "cloudflare"),
)  # fmt: skip
#: Headers that only the answer of this very program has.
_MARKS = {
    "x-squid-error": "squid",
    "x-kong-response-latency": "kong",
    "x-litellm-version": "litellm",
    "x-litellm-call-id": "litellm",
}
_TITLE = re.compile(r"<title>([^<]{1,120})</title>|<h1>([^<]{1,120})</h1>", re.IGNORECASE)


def wrote(status: int, headers: Mapping[str, str], body: bytes, value: Any) -> Gateway | None:
    """The gateway that wrote this answer itself; None when the server did, as far as can be told.

    `value` is the body as JSON, None when it is none.
    """
    for header, key in _MARKS.items():
        if header in headers:
            return _KNOWN[key]
    if any(name.startswith("x-litellm-") for name in headers):
        return _KNOWN["litellm"]
    named = passed(headers)
    if isinstance(value, dict):
        # An API's own error, which gateways pass on unchanged. Kong speaks JSON, and names itself only then.
        return named if named is _KNOWN["kong"] else None
    start = body[:4096] if len(body) <= 4096 else body[:2048] + body[-2048:]
    if (page := _PAGE.search(start)) is not None:
        key = page[1].decode("ascii").lower()
        if key in _KNOWN:
            return _KNOWN[key]
    for words, key in _WORDS:
        if words.search(start):
            return _KNOWN[key]
    if named is None:
        return None
    if named is _KNOWN["envoy"]:
        # The header is Envoy's on every answer; this one it adds when the server behind it has answered.
        return None if "x-envoy-upstream-service-time" in headers else named
    if status in (502, 503, 504) or not body.strip():
        return named
    return named if re.search(rb"<html|<!doctype", start, re.IGNORECASE) else None


def passed(headers: Mapping[str, str]) -> Gateway | None:
    """The gateway that an answer has passed, by its own name in the headers; it need not have written it."""
    server = headers.get("server", "").lower()
    return next((gateway for word, gateway in _KNOWN.items() if word in server), _cloudflare(headers))


def _cloudflare(headers: Mapping[str, str]) -> Gateway | None:
    return _KNOWN["cloudflare"] if "cf-ray" in headers else None


def title(body: str) -> str:
    """The heading of an error page without its status, such as "Not Found"; "" when it has none."""
    match = _TITLE.search(body[:65_536])
    text = html.unescape((match[1] or match[2]) if match else "")
    return re.sub(r"^\s*\d{3}\s*|^ERROR:\s*", "", text).strip()
