"""What does this port speak? By the first bytes that came from it."""

from __future__ import annotations

import re
import socket

#: Who speaks first waits for nobody.
_GREETING_S = 0.7
_ANSWER_S = 1.0
_BYTES = 256
_BEGINNINGS = (
    (re.compile(rb"SSH-\d"), "SSH"),
    (re.compile(rb"HTTP/\d"), "plain http"),
    (re.compile(rb"220[ -][^\r\n]*(SMTP|Postfix|Exim|mail)", re.IGNORECASE), "SMTP"),
    (re.compile(rb"220[ -]"), "SMTP or FTP"),
    (re.compile(rb"\+OK"), "POP3"),
    (re.compile(rb"\* (OK|PREAUTH|BYE)"), "IMAP"),
    (re.compile(rb"RFB \d{3}\."), "VNC"),
    (re.compile(rb"-ERR|-DENIED|-NOAUTH"), "Redis"),
    (re.compile(rb"AMQP"), "AMQP"),
    (re.compile(rb".{3}\x00\x0a\d+\.\d+\.", re.DOTALL), "MySQL"),
    (
        re.compile(rb"\x00\x00.\x04[\x00\x01]\x00\x00\x00\x00", re.DOTALL),
        "HTTP/2 without HTTP/1.1 (gRPC, for instance)",
    ),
    (re.compile(rb"[\x14-\x17]\x03[\x00-\x04]"), "TLS"),
)


def of(first_bytes: bytes) -> str:
    """The protocol's name; "" when these bytes tell none."""
    return next((name for beginning, name in _BEGINNINGS if beginning.match(first_bytes)), "")


def heard(host: str, port: int, timeout_s: float) -> bytes:
    """What it says to a plain connection: a greeting, or its answer to a request without a key. Never raises."""
    try:
        with socket.create_connection((host, port), timeout=min(_ANSWER_S, timeout_s)) as connection:
            connection.settimeout(min(_GREETING_S, timeout_s / 2))
            try:
                return connection.recv(_BYTES)
            except TimeoutError:
                connection.settimeout(min(_ANSWER_S, timeout_s / 2))
            connection.sendall(
                b"GET / HTTP/1.1\r\nHost: " + host.encode("ascii", "ignore") + b"\r\nConnection: close\r\n\r\n"
            )
            return connection.recv(_BYTES)
    except (OSError, ValueError):
        return b""
