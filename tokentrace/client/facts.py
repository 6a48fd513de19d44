"""What is known about a request when it has ended, well or badly: the input of the diagnosis, all plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tokentrace.client import gateways, private
from tokentrace.client.causes import one_line
from tokentrace.client.certificates import Certificate
from tokentrace.client.chunks import error_in, error_message, parse_json
from tokentrace.client.gateways import Gateway
from tokentrace.client.hiding import Hider
from tokentrace.client.urls import bracketed
from tokentrace.client.wire import Wire

#: Of a body, this much of its beginning is kept for the diagnosis.
KEPT_BYTES = 65_536


@dataclass(slots=True)
class Facts:
    """`error` is the exception that ended it, if one did. Nothing here holds a key's value."""

    url: str
    base_url: str
    wire: Wire = field(default_factory=Wire)
    error: BaseException | None = None
    model: str = ""
    private: tuple[str, ...] = field(default=(), repr=False)  # what the user wrote, not to be repeated
    hider: Hider = field(default_factory=Hider, repr=False)  # of the request's keys
    timeout_s: float = 0.0
    request_bytes: int = 0
    max_tokens: int = 0  # as the request asked; 0: it did not
    key_sent: bool = False
    key_source: str = ""
    key_problem: str = ""
    key_hint: str = ""
    key_service: str = ""  # the service that issued the key, when the request went elsewhere
    key_near: str = ""  # a variable that is set and nobody reads, with nearly the name of one that is
    key_variables: tuple[str, ...] = ()
    #: For the shell: makes requests to this host go past a proxy that the environment names.
    past_proxy: str = ""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""  # its beginning, where it was no stream of events
    # The reply, when it was one.
    events: int = 0
    text_chunks: int = 0
    counted: int | None = None  # tokens of the reply, as the server told
    elapsed_ns: int = 0
    keepalives: int = 0
    has_choices: bool = False
    finish_reason: str = ""
    saw_done: bool = False
    malformed: str = ""  # the beginning of an event that is not JSON
    malformed_count: int = 0
    unfinished_event: bool = False
    strange: str = ""  # what stood where a reply should, and was none
    shape: str = ""
    keys: tuple[str, ...] = ()
    reply_error: Mapping[str, Any] | None = None
    # What looking around found, when it was worth asking.
    models: tuple[str, ...] | None = None
    better_base: str = ""
    certificate: Certificate | None = None
    listener: str = ""  # a base URL of this machine on which something listens, when nothing does on the given one
    plain: bytes | None = None  # what the port says to a plain connection, where TLS failed; None: not asked
    #: The same words are asked for again and again, and to hide a long prompt in them takes time.
    _shown: dict[tuple[tuple[str, ...], str], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def where(self) -> str:
        """The server, as host:port."""
        parts = urlsplit(self.url)
        return f"{bracketed(parts.hostname or '')}:{parts.port or (443 if parts.scheme == 'https' else 80)}"

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    @property
    def text(self) -> str:
        """The body without the request's keys."""
        return self._keyless(self.body.decode("utf-8", "replace"))

    @property
    def is_html(self) -> bool:
        start = self.text.lstrip("\ufeff \t\r\n")[:15].lower()
        return start.startswith(("<!doctype", "<html", "<head", "<body")) or (
            "text/html" in self.content_type.lower() and not start.startswith(("{", "data:"))
        )

    @property
    def value(self) -> Any:
        """The body as JSON without the request's keys, or None."""
        try:
            return self.hider.value(parse_json(self.body))
        except (ValueError, RecursionError):
            return None

    @property
    def broken(self) -> bool:
        """Is the body, by its type and its beginning, what was asked for, and yet cannot be read?"""
        kind, start = self.content_type.lower(), self.text.lstrip("\ufeff \t\r\n")[:6]
        if "text/event-stream" in kind:
            return bool(start)
        return "json" in kind and start.startswith(("{", "[")) and self.value is None

    @property
    def said(self) -> str:
        """The server's own error message without what it repeats of the prompt, "" when it gave none."""
        return self.shown(self._said())

    def shown(self, text: str) -> str:
        """A text of the server, fit to be printed."""
        key = (self.private, text)
        if key not in self._shown:
            self._shown[key] = private.without(self.hider.text(text), self.private)
        return self._shown[key]

    def _keyless(self, text: str) -> str:
        key = ((), text)
        if key not in self._shown:
            self._shown[key] = self.hider.text(text)
        return self._shown[key]

    def _said(self) -> str:
        if self.reply_error is not None:
            return error_message(self.hider.value(dict(self.reply_error)))
        value = self.value
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, dict):
            error = error_in(value)
            return error_message(error) if error else ""
        if self.is_html or isinstance(value, (int, float)):
            return ""
        return self.text.strip()[:500] if self.status >= 400 else ""

    @property
    def error_code(self) -> str:
        """The machine-readable part of the error: its code and type, in one text to search in."""
        error: Mapping[str, Any] | None = self.reply_error
        if error is None and isinstance(self.value, dict):
            error = error_in(self.value)
        return " ".join(str(error.get(k) or "") for k in ("code", "type", "param")) if error else ""

    @property
    def writer(self) -> Gateway | None:
        """What stands before the server and wrote this answer; None when the server did, as far as can be told."""
        return gateways.wrote(self.status, self.headers, self.body, self.value)

    @property
    def proxy_variable(self) -> str:
        """The variable that named the proxy on the way, "" without one."""
        return self.wire.proxy.rpartition("(")[2].rstrip(")")

    @property
    def wait(self) -> str:
        """How long the answer asks to wait before the next request, such as "30 s"; "" when it does not."""
        seconds = self.headers.get("retry-after", "")
        return f"{one_line(seconds, 30)} s" if seconds.isdigit() else ""

    @property
    def gateway(self) -> str:
        """The writer's name, "" when the server itself wrote the answer."""
        writer = self.writer
        return writer.name if writer is not None else ""

    @property
    def passed(self) -> str:
        """The gateway that passed the server's own answer on, "" when none is seen."""
        seen = gateways.passed(self.headers) if self.writer is None else None
        return seen.name if seen is not None else ""

    @property
    def who(self) -> str:
        """Whose answer it is, to begin a sentence with."""
        return f"{self.gateway} before the server" if self.gateway else "the server"
