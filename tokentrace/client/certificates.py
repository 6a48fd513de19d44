"""What certificate a server showed, for the message when it was not accepted.

Nothing is sent but a handshake: no request, no key. The certificate is read only to name its issuer and dates; it is
not trusted. Structure: RFC 5280, in DER.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

_NAMES = {b"\x55\x04\x03": "CN", b"\x55\x04\x0a": "O"}
_ALTERNATIVE_NAMES = b"\x55\x1d\x11"


@dataclass(frozen=True, slots=True)
class Certificate:
    """`not_before` and `not_after` as YYYY-MM-DD; texts are empty where the certificate has none.

    `names`: the DNS names and addresses of subjectAltName, the only ones that a client compares (RFC 9525).
    """

    subject: str = ""
    issuer: str = ""
    not_before: str = ""
    not_after: str = ""
    names: tuple[str, ...] = ()

    @property
    def self_signed(self) -> bool:
        return bool(self.subject) and self.subject == self.issuer


def presented(host: str, port: int, timeout_s: float = 2.0, address: str = "") -> Certificate | None:
    """The certificate that the server at host:port shows, or None when it shows none in time. Never raises.

    `address`, where it is known already, saves looking up the name, which has no limit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((address or host, port), timeout=timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            der = secure.getpeercert(binary_form=True)
        return parse(der) if der else None
    except (OSError, ValueError):
        return None


def parse(der: bytes) -> Certificate:
    """Raises ValueError for what is no certificate."""
    try:
        (outer,) = _children(der)
        certificate = list(_children(outer[1]))
        fields = list(_children(certificate[0][1]))
        if fields[0][0] == 0xA0:  # the version, which is optional
            fields = fields[1:]
        _serial, _algorithm, issuer, validity, subject = fields[:5]
        before, after = list(_children(validity[1]))[:2]
        extensions = next((value for tag, value in fields[5:] if tag == 0xA3), b"")
        return Certificate(
            _name(subject[1]), _name(issuer[1]), _date(*before), _date(*after), tuple(_alternatives(extensions))
        )
    except (IndexError, ValueError, UnicodeDecodeError):
        raise ValueError("not a certificate in DER") from None


def _children(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            length, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + length > len(data):
            raise ValueError("cut")
        yield tag, data[at : at + length]
        at += length


def _name(data: bytes) -> str:
    found: dict[str, str] = {}
    for _, group in _children(data):
        for _, pair in _children(group):
            (_, oid), (tag, value) = list(_children(pair))[:2]
            if oid in _NAMES:
                text = value.decode("utf-16-be" if tag == 0x1E else "utf-8", "replace")
                found[_NAMES[oid]] = "".join(c for c in text if c.isprintable())[:100]
    return found.get("CN") or found.get("O") or ""


def _alternatives(data: bytes) -> Iterator[str]:
    """dNSName and iPAddress of subjectAltName, from the extensions (RFC 5280, 4.2.1.6)."""
    for _, extensions in _children(data):
        for _, extension in _children(extensions):
            (_, oid), *_, (_, value) = list(_children(extension))
            for _, names in _children(value) if oid == _ALTERNATIVE_NAMES else ():
                for kind, name in _children(names):
                    if kind == 0x82:
                        yield "".join(c for c in name.decode("ascii", "replace") if c.isprintable())[:100]
                    elif kind == 0x87 and len(name) in (4, 16):
                        yield str(ipaddress.ip_address(name))


def _date(tag: int, data: bytes) -> str:
    text = data.decode("ascii")
    if tag == 0x17:  # UTCTime: two digits of the year, 50 and above is 19xx
        text = ("19" if text[:2] >= "50" else "20") + text
    return f"{text[:4]}-{text[4:6]}-{text[6:8]}"
