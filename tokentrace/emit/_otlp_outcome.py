"""What came of sending one batch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

#: accepted: the receiver took it, but for `rejected` spans.  retry: try the same again.  split: too large.
#: refused: this batch is lost, others may pass.  stop: no batch will pass.
ACCEPTED, RETRY, SPLIT, REFUSED, STOP = "accepted", "retry", "split", "refused", "stop"

#: A receiver that is not there is waited for this long: one that is just starting comes up within it.
ABSENT_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """`message` completes the sentence "the receiver …"; `patience_s` shortens the waiting where it helps little."""

    kind: str
    message: str = ""
    fix: str = ""
    rejected: int = 0
    retry_after_s: float | None = None
    patience_s: float | None = None


class Unusable(Exception):
    """The sending cannot even begin: `str()` completes "nothing was sent, because …"."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


def bad_certificate(error: Exception) -> Unusable:
    return Unusable(
        f"a certificate file cannot be used ({short(str(error))})",
        "correct OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE or _CLIENT_KEY",
    )


def proxy_variable(url: str, names: Iterable[str]) -> str:
    """The variable whose proxy stands between here and the URL; empty when there is none."""
    from urllib.request import proxy_bypass

    host = urlsplit(url).hostname or ""
    if proxy_bypass(host):
        return ""
    return next((name for name in names if os.environ.get(name)), "")


def proxy_fix(name: str) -> str:
    return f"correct {name}, or name the receiver's host in NO_PROXY"


class Transport:
    """Sends serialised requests to one receiver. Nothing that a receiver does makes `send` raise."""

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def from_response(response: Any) -> Outcome:
    """An ExportTraceServiceResponse: its partial_success says how many spans were rejected."""
    partial = response.partial_success
    if partial.rejected_spans > 0:
        return Outcome(
            ACCEPTED,
            f"rejected some spans{_said(partial.error_message)}",
            fix="see the receiver's log for its reason",
            rejected=partial.rejected_spans,
        )
    return Outcome(ACCEPTED, f"warned{_said(partial.error_message)}" if partial.error_message else "")


def _said(text: str) -> str:
    return f" ({short(text)})" if text else ""


def seconds(value: float) -> str:
    """For sentences: 10 s, 4.9 s, 0.05 s."""
    return f"{value:.0f} s" if value >= 10 else f"{round(value, 1 if value >= 1 else 2):g} s"


def short(text: str, limit: int = 200) -> str:
    """One printable line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
