"""The proxy that the environment asks for, named so that a message can point at the variable.

HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in small letters first as curl reads them. This machine's own addresses
never go through a proxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from tokentrace.client.urls import bracketed, is_loopback
from tokentrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ProxyChoice:
    """`variable` names where it was set. `repr` and `shown` hold no user name and no password."""

    scheme: str
    host: str
    port: int
    variable: str
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        return f"{bracketed(self.host)}:{self.port} ({self.variable})"


def choose(scheme: str, host: str, port: int, env: Mapping[str, str]) -> ProxyChoice | None:
    """The proxy for one server, or None. Raises ConfigError (layer 8) for a variable that holds no proxy URL."""
    if is_loopback(host):
        return None
    for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY"):
        if env.get(name):
            if excepted(host, port, exception(env)[1]):
                return None
            return _parse(env[name].strip(), name)
    return None


def exception(env: Mapping[str, str]) -> tuple[str, str]:
    """(variable, value) that decides what goes past the proxies: where both are set, the one in small letters."""
    name = "no_proxy" if env.get("no_proxy") else "NO_PROXY"
    return name, env.get(name, "")


def past(env: Mapping[str, str], *hosts: str) -> str:
    """What to type so that requests to these hosts go past the proxies."""
    name, value = exception(env)
    return f"export {name}={','.join([*filter(None, (e.strip() for e in value.split(','))), *hosts])}"


def _parse(text: str, variable: str) -> ProxyChoice:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https", "socks5", "socks5h") or not parts.hostname:
        raise ConfigError(
            f"{variable} does not hold a proxy's URL",
            fix=f"unset {variable}, or set it to something like http://127.0.0.1:3128",
            layer=8,
        )
    default = {"http": 80, "https": 443}.get(parts.scheme, 1080)
    return ProxyChoice(
        parts.scheme,
        parts.hostname,
        port or default,
        variable,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
    )


def excepted(host: str, port: int, no_proxy: str) -> bool:
    """NO_PROXY: names match themselves and their subdomains; also host:port, addresses, networks like 10.0.0.0/8, *."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        address = None
    for entry in (e.strip().lower() for e in no_proxy.split(",")):
        if not entry:
            continue
        if entry == "*":
            return True
        if address is not None and "/" in entry:
            try:
                if address in ipaddress.ip_network(entry, strict=False):
                    return True
            except ValueError:
                pass
            continue
        name, colon, wanted = entry.rpartition(":")
        if colon and wanted.isdecimal() and (":" not in name or name.startswith("[")):
            if int(wanted) != port:
                continue
            entry = name
        entry = entry.strip("[]").removeprefix("*").lstrip(".")
        if host.lower() == entry or (address is None and host.lower().endswith("." + entry)):
            return True
    return False
