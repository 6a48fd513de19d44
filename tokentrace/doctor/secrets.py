"""Keeps keys out of everything the doctor says, whatever a server, a log or an error put into a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from tokentrace.client import keys
from tokentrace.client.hiding import Hider
from tokentrace.client.settings import Endpoint

_NAME = re.compile(r"key|token|secret|passw|credential|authorization|cookie|_pat$|headers$", re.IGNORECASE)
#: Names that hold counts or switches although they read like a key's.
_NO_SECRET = re.compile(r"max|num|count|limit|parallelism|path|file|dir$|_url$", re.IGNORECASE)
_USERINFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/@\s\"']+@", re.IGNORECASE)
_SHORTEST = 6


class Scrub:
    """Replaces known secrets in texts, and what looks like one."""

    def __init__(self, values: Iterable[str], sent: Iterable[str] = ()) -> None:
        """`values` may be secrets, and are taken for one where they look like it; what is `sent` as a key is one."""
        self._hider = Hider([*sent, *(part for value in values for part in _parts(value))])

    @classmethod
    def of(cls, endpoint: Endpoint | None, *environs: Mapping[str, str] | None) -> Scrub:
        """Everything secret that the endpoint's settings and these environments hold."""
        values: list[str] = []
        sent: list[str] = []
        if endpoint is not None:
            sent += keys.secrets({"Authorization": endpoint.api_key}) + keys.secrets(endpoint.headers, endpoint.query)
            values += [v for n, v in endpoint.headers.items() if _NAME.search(n)]
            values += [v for n, v in parse_qsl(endpoint.query.lstrip("?")) if _NAME.search(n) or n == "sig"]
        for environ in environs:
            for name, value in (environ or {}).items():
                if name == "KEY" or name in keys.KEY_VARIABLES:
                    sent += keys.secrets({"Authorization": value})
                if _NAME.search(name) and not _NO_SECRET.search(name):
                    values += [pair.partition("=")[2] or pair for pair in value.split(",")]
                    values.append(value)
                elif "://" in value and "@" in value:
                    values += _userinfo(value)
        return cls(values, sent)

    def text(self, text: str) -> str:
        return self._hider.text(_USERINFO.sub(r"\1", text))


def _parts(value: str) -> Iterable[str]:
    value = value.strip().strip("\"'")
    for one in (value, value.rpartition(" ")[2], unquote(value)):
        if len(one) >= _SHORTEST and not one.isdecimal() and one.lower() not in _WORDS:
            yield one


#: Words that people set where no key is wanted; hiding them would hide ordinary text.
_WORDS = frozenset(
    (
        "no-key",
        "no_key",
        "not-needed",
        "none-needed",
        "undefined",
        "bearer",
        "changeme",
        "localhost",
        "disabled",
        "enabled",
    )
)


def _userinfo(value: str) -> list[str]:
    try:
        parts = urlsplit(value.strip())
    except ValueError:
        return []
    return [p for p in (parts.password or "",) if p]
