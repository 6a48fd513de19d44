"""What happened on the network during one HTTP exchange: plain facts, filled in by `network`, read by all others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from tokentrace.exchange import Phase


@dataclass(slots=True)
class Timeouts:
    """Limits in seconds; may be changed while the exchange runs.

    `first_byte_s` is for the whole head of the answer, up to the body's first byte; `between_s` runs from one read to
    the next once the body has begun; `total_s` None: none.
    """

    connect_s: float = 10.0
    first_byte_s: float = 120.0
    between_s: float = 120.0
    total_s: float | None = None

    @classmethod
    def of(cls, seconds: float) -> Timeouts:
        """As `--timeout` means it: the longest silence to bear; connecting never gets more than 10 s."""
        return cls(min(10.0, seconds), seconds, seconds)


@dataclass(slots=True)
class Attempt:
    """One try to connect to one address. `error` is "" when it succeeded."""

    address: str
    start_ns: int
    end_ns: int = 0
    error: str = ""

    def describe(self) -> str:
        took = f"{max(0, self.end_ns - self.start_ns) / 1e6:.1f} ms"
        return f"{self.address} {self.error or 'connected'} after {took}"


@dataclass(slots=True)
class Wire:
    """Times in ns since the epoch, 0 where it did not happen. `stage` is where the exchange is, or where it failed."""

    host: str = ""  # what was connected to: the server, or the proxy before it
    port: int = 0
    proxy: str = ""
    stage: str = "dns"
    fault: OSError | None = None  # what the operating system or TLS said; httpcore does not keep it
    limit: str = ""  # the limit that ran out: "connect", "first byte", "between", "total"
    dns_start_ns: int = 0
    dns_end_ns: int = 0
    addresses: list[str] = field(default_factory=list)
    connect_start_ns: int = 0
    connect_end_ns: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    tls_start_ns: int = 0
    tls_end_ns: int = 0
    tls_version: str = ""
    tls_cipher: str = ""
    ca: str = ""
    send_start_ns: int = 0
    send_end_ns: int = 0
    first_read_ns: int = 0
    last_read_ns: int = 0
    first_bytes: bytes = b""
    body_begun: bool = False

    @property
    def peer(self) -> str:
        """The address that accepted the connection; "" when none did."""
        return next((a.address for a in self.attempts if a.end_ns and not a.error), "")

    def phases(self, end_ns: int, wait_end_ns: int, tokens: bool = False, failed: str = "") -> list[Phase]:
        """The phases of this exchange, in order and without overlap; one that did not come to its end ends at `end_ns`.

        `wait` ends at `wait_end_ns`; what follows until the last byte is `stream`, also when it took no time but
        `tokens` came. `failed` says in a word why the last phase broke off.
        """
        found: list[Phase] = []
        if self.dns_start_ns:
            attributes = {"tokentrace.dns.addresses": list(self.addresses)} if self.addresses else {}
            self._add(found, "dns", self.dns_start_ns, self.dns_end_ns or end_ns, attributes)
        if self.connect_start_ns:
            tried = [a.describe() for a in self.attempts]
            self._add(
                found,
                "connect",
                self.connect_start_ns,
                self.connect_end_ns or end_ns,
                {"tokentrace.connect.attempts": tried, "network.peer.address": self.peer}
                | ({"tokentrace.proxy": self.proxy} if self.proxy else {}),
            )
        if self.tls_start_ns:
            self._add(
                found,
                "tls",
                self.tls_start_ns,
                self.tls_end_ns or end_ns,
                {"tls.protocol.version": self.tls_version, "tls.cipher": self.tls_cipher} if self.tls_version else {},
            )
        if self.send_start_ns:
            self._add(found, "send", self.send_start_ns, self.send_end_ns or end_ns, {})
        if self.send_end_ns:
            self._add(found, "wait", self.send_end_ns, wait_end_ns, {})
            if self.first_read_ns and (wait_end_ns < end_ns or tokens):
                self._add(found, "stream", wait_end_ns, end_ns, {})
        if found and failed:
            found[-1].attributes["error.type"] = failed
        return found

    @staticmethod
    def _add(found: list[Phase], name: str, start: int, end: int, attributes: Mapping[str, object]) -> None:
        start = max(start, found[-1].end_ns) if found else start
        found.append(Phase(name, start, max(start, end), dict(attributes)))


def now_ns() -> int:
    return time.time_ns()
