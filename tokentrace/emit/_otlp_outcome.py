"""What came of sending one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


def short(text: str, limit: int = 200) -> str:
    """One printable line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
