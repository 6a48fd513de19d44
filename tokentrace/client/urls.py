"""Every form in which people write a base URL, brought to one: scheme://host[:port]/path, without a slash at the end.

`/v1` is never added by itself: not every service uses it. It is suggested where an answer shows that it is missing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

from tokentrace.errors import ConfigError

#: Routes that users copy along with the root, longest first.
_ROUTES = ("/chat/completions", "/completions", "/responses", "/embeddings", "/models", "/messages", "/chat")
_VERSION = re.compile(r"v\d+[a-z0-9]*", re.IGNORECASE)
_Wrong = Callable[[str, str], ConfigError]
_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*)://")


#: What programs and shells write where an address is missing.
_NOTHING = frozenset(("none", "null", "undefined", "nil", "false", "true", "nan"))
_VARIABLE = re.compile(r"\$\{?\w+\}?|%\w+%|\{\{.*\}\}")
#: What was to be replaced in the part with the host.
_HOLE = re.compile(r"\$\{?\w+\}?|\{+\w+\}+|<[\w. -]+>")
#: What keys of well-known services begin with.
_KEY = re.compile(r"(sk-|gsk_|hf_|nvapi-|xai-|AIza|eyJ|gh[opsu]_)[A-Za-z0-9_.-]{8,}$")


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """`url` is the root that routes are appended to, `query` what follows each of them ("" or "?api-version=…")."""

    url: str
    scheme: str
    host: str  # without brackets, ASCII
    port: int
    query: str = ""
    notes: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        return _origin(self.scheme, self.host, self.port)


def normalise(text: str, source: str = "") -> BaseUrl:
    """The root behind whatever form was given. `source` names where it came from, for messages.

    Raises ConfigError (layer 8) when it is no URL, has an unusable scheme, port or user name, or a doubled path.
    """
    notes: list[str] = []
    said = f" (from {source})" if source else ""

    def wrong(problem: str, fix: str) -> ConfigError:
        return ConfigError(f"the base URL {_shown(text)!r}{said} {problem}", fix=fix, layer=8)

    raw = text.strip().strip("\"'").strip()
    if raw != text:
        notes.append(f"quotes or spaces around the base URL{said} were dropped")
    if not raw:
        raise wrong("is empty", "give one like http://127.0.0.1:8000/v1")
    if _KEY.match(raw):  # not shown, because it probably is one
        fix = f"put it into OPENAI_API_KEY, and the server's address into {source or '--url'}"
        raise ConfigError(f"the base URL{said} looks like a key, not like an address", fix=fix, layer=8)
    if raw.lower() in _NOTHING or _VARIABLE.fullmatch(raw):
        raise wrong("is no address", f"set {source or '--url'} to one like http://127.0.0.1:8000/v1, or unset it")
    if hole := _HOLE.search(_SCHEME.sub("", raw).partition("/")[0].rpartition("@")[2]):
        raise wrong(f"still holds {hole[0]}, which nothing replaced", f"set {source or '--url'} to the address itself")
    if (bad := next((c for c in raw if c == "\\" or not c.isprintable() or c.isspace()), "")) != "":
        what = "a backslash" if bad == "\\" else "a space" if bad == " " else f"the character U+{ord(bad):04X}"
        raise wrong(f"contains {what}, which no address has", "write it like http://127.0.0.1:8000/v1")
    match = _SCHEME.match(raw)
    if match is None:
        if re.match(r"^https?:", raw, re.IGNORECASE):
            mended = re.sub(r"^(https?):/*", r"\1://", raw, flags=re.IGNORECASE)
            raise wrong("lacks a slash after the colon", f"write {_shown(mended)}")
        scheme = "http" if _looks_local(raw) else "https"
        raw = f"{scheme}://{raw}"
        notes.append(f"the base URL has no scheme; {scheme}:// was taken")
    elif match[1].lower() not in ("http", "https"):
        raise wrong(f"begins with {match[1]}://", "the API is spoken over http:// or https://")
    try:
        parts = urlsplit(raw)
        port = parts.port
    except ValueError:
        raise wrong("has no usable host or port", "write it like http://127.0.0.1:8000/v1") from None
    if "@" in parts.netloc:
        raise wrong("contains a user name or key", "take it out and put the key in OPENAI_API_KEY")
    host = parts.hostname or ""
    if not host or host in ("http", "https"):
        raise wrong("has no host", "write it like http://127.0.0.1:8000/v1")
    scheme = parts.scheme.lower()
    host = _ascii_host(host, wrong)
    if host in ("0.0.0.0", "::"):
        notes.append(f"{host} is an address to listen on; to connect, 127.0.0.1 is the usual one")
    if port == 0:
        raise wrong("has port 0, on which nothing can listen", "give the port that the server listens on")
    port = port or (443 if scheme == "https" else 80)
    path = _path(parts.path, notes, _origin(scheme, host, port), wrong)
    query = f"?{parts.query}" if parts.query else ""
    return BaseUrl(_origin(scheme, host, port) + path, scheme, host, port, query, tuple(notes))


def is_loopback(host: str) -> bool:
    """True for this machine's own addresses and names: they never go through a proxy."""
    host = host.strip("[]").lower().rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def server_root(base_url: str) -> str:
    """The base URL without its version: where a server keeps /metrics, /tokenize, /version."""
    head, _, last = base_url.rpartition("/")
    return head if _VERSION.fullmatch(last) and not head.endswith("/") else base_url


def redirected(url: str, location: str) -> str:
    """Where a redirect from `url` leads; "" when no request could go there."""
    try:
        target = urljoin(url, location)
        usable = urlsplit(target).port != 0  # reading it checks it
    except ValueError:
        return ""
    return target if usable and target.isascii() and target.isprintable() and " " not in target else ""


def bracketed(host: str) -> str:
    """The host as it stands in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def _path(path: str, notes: list[str], origin: str, wrong: _Wrong) -> str:
    segments = [s for s in path.split("/") if s]
    if "//" in path.strip("/"):
        notes.append("doubled slashes in the base URL were dropped")
    whole = "/".join(["", *segments])
    stripped = _strip_route(whole)
    if stripped != whole:
        notes.append(f"the base URL names a route; {origin + stripped} is taken as its root")
    again = _strip_route(stripped)
    if again != stripped:
        raise wrong("has a doubled path", f"use {origin + _undouble(again)}")
    if (root := _undouble(stripped)) != stripped:
        raise wrong("has a doubled path", f"use {origin + root}")
    return quote(stripped, safe="/:@!$&'()*+,;=~-._%")


def _strip_route(path: str) -> str:
    for route in _ROUTES:
        if path.lower().endswith(route):
            return path[: -len(route)]
    return path


def _undouble(path: str) -> str:
    """/v1/v1 -> /v1 and /openai/v1/openai/v1 -> /openai/v1; other repetitions may be meant."""
    path = _strip_route(path)
    if "/chat/completions" in path:
        return _undouble(path.partition("/chat/completions")[0])
    segments = path.split("/")[1:] if path else []
    for length in range(len(segments) // 2, 0, -1):
        for at in range(len(segments) - 2 * length + 1):
            part = segments[at : at + length]
            if part == segments[at + length : at + 2 * length] and _VERSION.fullmatch(part[-1]):
                return _undouble("/".join(["", *segments[:at], *segments[at + length :]]))
    return path


def _looks_local(raw: str) -> bool:
    host = re.split(r"[/?#]", raw, maxsplit=1)[0]
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    if is_loopback(host) or "." not in host:
        return True
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host.endswith((".local", ".internal", ".lan"))


def _ascii_host(host: str, wrong: _Wrong) -> str:
    try:
        plain = host if host.isascii() else host.encode("idna").decode()
        if ":" in plain:
            plain = re.sub("%25(?=.)", "%", plain, count=1)  # before a zone, as RFC 6874 writes it
            ipaddress.ip_address(plain)
        elif not re.fullmatch(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?", plain):
            raise ValueError(plain)
    except ValueError:
        raise wrong("has a host name that is not valid", "check its spelling") from None
    return plain


def _origin(scheme: str, host: str, port: int) -> str:
    shown = f"{scheme}://{bracketed(host)}"
    return shown if port == (443 if scheme == "https" else 80) else f"{shown}:{port}"


def _shown(text: str) -> str:
    """For messages: without user name and password, and without what follows the path. Each may hold a key."""
    text = re.sub(r"[?#].*", "?…", text, flags=re.DOTALL)
    return re.sub(r"^(\s*[\"']*(?:[a-zA-Z][a-zA-Z0-9+.-]*:/+)?).*@", r"\1…@", text, flags=re.DOTALL)[:200]
