"""What went wrong with a request, in one sentence with its fix: pure functions from what was seen."""

from __future__ import annotations

import difflib
import re
import ssl
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from tokentrace.client import sse
from tokentrace.client.settings import Endpoint
from tokentrace.errors import EndpointError
from tokentrace.exchange import Exchange


def unknown_host(host: str, error: BaseException) -> EndpointError:
    return EndpointError(f"the name {host} has no address", fix="check the spelling of the host in --url", layer=8)


def proxy_variable(url: str) -> str:
    """The proxy that the environment sets for this URL; "" for none. Without user and password."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    proxy = urllib.request.getproxies().get(parts.scheme, "") or urllib.request.getproxies().get("all", "")
    return re.sub(r"//[^@/]*@", "//", proxy)


def broken(error: BaseException, endpoint: Endpoint, x: Exchange) -> EndpointError:
    """The connection did not come about, or broke."""
    import httpx

    where = f"{x.server_address}:{x.server_port}"
    tokens = len(x.token_times_ns)
    since = (x.end_ns or x.start_ns) - x.start_ns
    proxy = proxy_variable(endpoint.base_url)
    via = f" through the proxy {proxy} that the environment sets" if proxy and x.server_address != "localhost" else ""
    cause = error.__cause__ or error.__context__ or error
    text = f"{error} {cause}".lower()
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return EndpointError(f"{endpoint.base_url} is no usable URL", fix="check --url", layer=8)
    if isinstance(error, httpx.ConnectTimeout):
        return EndpointError(
            f"{where} did not accept the connection in time{via}",
            layer=8,
            fix="check host, port and firewall, or raise --timeout",
        )
    if isinstance(error, httpx.ConnectError | httpx.ProxyError):
        return _no_connection(text, where, via, endpoint)
    if isinstance(error, httpx.TimeoutException):
        if x.status_code and tokens:
            return EndpointError(
                f"the stream stopped: nothing for {endpoint.timeout_s:g} s after {tokens} tokens",
                fix="look at the server's log, or raise --timeout",
                layer=6,
            )
        return EndpointError(
            f"{where} took the request and did not answer within {endpoint.timeout_s:g} s",
            fix="see whether the engine is busy or stuck (its /metrics), or raise --timeout",
            layer=6,
        )
    if x.status_code:
        return EndpointError(
            f"the connection broke after {tokens} token{'s' * (tokens != 1)}, {_seconds(since)}",
            fix="look at the log of the server and of any proxy before it",
            layer=8,
        )
    return EndpointError(
        f"{where} closed the connection without an answer{via}",
        layer=8,
        fix="check that an HTTP server listens there and look at its log",
    )


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.1f} s"


def _no_connection(text: str, where: str, via: str, endpoint: Endpoint) -> EndpointError:
    if "certificate" in text or isinstance(text, ssl.SSLError):
        reason = "has expired" if "expired" in text else "is self-signed" if "self" in text else "is not trusted"
        if "hostname" in text or "doesn't match" in text or "not valid for" in text:
            reason = "is for another name"
        return EndpointError(
            f"the certificate of {where} {reason}",
            layer=8,
            fix="renew it, use its right name, or set SSL_CERT_FILE to the CA that signed it",
        )
    if "wrong version number" in text or "wrong_version_number" in text or "record layer" in text:
        return EndpointError(
            f"{where} does not speak TLS", layer=8, fix=f"--url {endpoint.base_url.replace('https://', 'http://', 1)}"
        )
    if "refused" in text:
        return EndpointError(
            f"nothing listens on {where}{via}", layer=8, fix="start the server, or check host and port in --url"
        )
    return EndpointError(f"{where} cannot be reached{via}", fix="check host, port and network", layer=8)


def refused(x: Exchange, endpoint: Endpoint, body: bytes) -> EndpointError:
    """A status other than 200: what it means and whose answer it is."""
    code = x.status_code
    text = body.decode("utf-8", "replace")
    value = sse.parse_json(text)
    message = _message(value) or ("a web page" if _is_html(x, text) else _short(text))
    by = whose(x, value)
    detail = message[:600]
    said = f": {message}" if message and message != "a web page" else ""
    low = message.lower()

    def error(sentence: str, fix: str, layer: int = 8) -> EndpointError:
        return EndpointError(_short(sentence, 300), fix=fix, layer=layer, detail=detail)

    if "chat template" in low:
        return error(
            f"the model has no chat template{said}", "use /v1/completions, or start the server with --chat-template", 7
        )
    if code == 400 and re.search(r"context|max_model_len|too long|maximum.*tokens|reduce the length", low):
        return error(
            f"the prompt and max_tokens do not fit the context{said}", "shorten the prompt or lower --max-tokens", 6
        )
    if code == 401:
        if endpoint.api_key:
            return error(
                f"{by} did not accept the key (401){said}",
                "check that the key belongs to this server and is not revoked",
            )
        return error(f"{by} wants a key (401) and none was sent", "export OPENAI_API_KEY=…, or use --profile")
    if code == 403:
        return error(
            f"{by} refuses this key or address (403){said}",
            "check what the key may do, and any IP rule before the server",
        )
    if code == 404:
        return _not_found(x, endpoint, message, error)
    if code in (301, 302, 303, 307, 308):
        return error(
            f"{by} redirects to {x.response_headers.get('location', 'elsewhere')}",
            "give that address as --url, if you trust it",
        )
    if code == 405:
        return error(
            f"{by} takes no POST on {urlsplit(x.url).path} (405)",
            f"check the path; often {_with_v1(endpoint)} is right",
        )
    if code == 413:
        return error(f"{by} finds the request too large (413)", "shorten the prompt or raise the proxy's body limit")
    if code == 429:
        wait = x.response_headers.get("retry-after")
        return error(
            f"{by} limits the rate (429){said}", f"wait {wait} s" if wait else "wait, or ask for a higher limit"
        )
    if code in (502, 503, 504):
        return error(
            f"{by} answers {code}: the server behind it does not serve{said}",
            "look at the server behind the gateway; it may still be loading",
            8,
        )
    if code >= 500:
        return error(f"{by} failed ({code}){said}", "look at the server's log", 6)
    return error(f"{by} refused the request ({code}){said}", "mend what it names")


def _not_found(x: Exchange, endpoint: Endpoint, message: str, error: Any) -> EndpointError:
    if "model" in message.lower() and endpoint.model:
        near = difflib.get_close_matches(endpoint.model, re.findall(r"[\w./:-]+", message), 1, 0.6)
        hint = "see /v1/models for the right one" if not near or near[0] == endpoint.model else f"--model {near[0]}"
        result: EndpointError = error(f"the server does not know the model {endpoint.model}", hint)
        return result
    result = error(f"{x.url} is not there (404)", f"--url {_with_v1(endpoint)}")
    return result


def _with_v1(endpoint: Endpoint) -> str:
    base = endpoint.base_url
    parts = urlsplit(base)
    return base if parts.path.endswith("/v1") else f"{parts.scheme}://{parts.netloc}/v1"


def whose(x: Exchange, value: Any) -> str:
    """Who answered: the server itself, or something before it."""
    server = x.response_headers.get("server", "").lower()
    for name in ("cloudflare", "nginx", "envoy", "traefik", "caddy", "haproxy", "squid", "apache"):
        if name in server and not isinstance(value, dict):
            return f"{name} before the server"
    return "the server"


def not_the_api(x: Exchange, endpoint: Endpoint, body: bytes, value: Any) -> EndpointError:
    """Status 200, but no chat completion."""
    text = body.decode("utf-8", "replace")
    if _is_html(x, text):
        return EndpointError(
            f"{x.url} answers with a web page (status 200, HTML), not with the API",
            fix=f"--url {_with_v1(endpoint)}",
            layer=8,
        )
    if isinstance(value, dict):
        keys = ", ".join(list(value)[:8]) or "none"
        return EndpointError(
            f"{x.url} answers with JSON without choices (its keys: {_short(keys, 120)})",
            fix=f"--url {_with_v1(endpoint)}",
            layer=8,
        )
    return EndpointError(
        f"{x.url} answers with {x.content_type or 'no content type'}, which is no chat completion",
        fix=f"--url {_with_v1(endpoint)}",
        layer=8,
    )


def error_inside(x: Exchange, text: str) -> EndpointError:
    tokens = len(x.token_times_ns)
    return EndpointError(
        f"the server sent an error after {tokens} tokens: {_short(text, 200)}",
        fix="look at the server's log",
        layer=6,
        detail=text[:600],
    )


def unfinished(x: Exchange, endpoint: Endpoint, body: bytes) -> EndpointError | None:
    """A stream that ended: was it whole? None when it was; notes say what is odd about it."""
    tokens = len(x.token_times_ns)
    if not x.chunks:
        return (
            not_the_api(x, endpoint, body, None)
            if body
            else EndpointError("the server sent an empty stream", fix="look at the server's log", layer=8)
        )
    if not x.finish_reason and not x.saw_done:
        return EndpointError(
            f"the stream ended after {tokens} tokens without finish_reason and [DONE]: it was cut",
            fix="look at the log of the server and of any proxy before it",
            layer=8,
        )
    if not tokens and not x.finish_reason:
        return EndpointError("the stream held no content", fix="look at the server's log", layer=8)
    if not x.saw_done:
        x.notes.append("the stream ended without [DONE]; it had a finish_reason, so it counts as whole")
    if not x.finish_reason:
        x.notes.append("the stream ended without a finish_reason")
    if x.usage is None:
        x.notes.append("the server sent no usage: token counts are not known")
    return None


def _is_html(x: Exchange, text: str) -> bool:
    return "text/html" in x.content_type or text.lstrip()[:15].lower().startswith(("<!doctype", "<html"))


def _message(value: Any) -> str:
    if isinstance(value, dict):
        for key in ("error", "message", "detail"):
            if value.get(key):
                return _short(sse.error_text(value[key]), 500)
    return ""


def _short(text: str, limit: int = 200) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
