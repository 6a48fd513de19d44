"""How far the server's clock is from this one, by the Date of its answer (RFC 9110, 6.6.1: whole seconds)."""

from __future__ import annotations

import email.utils

from tokentrace.doctor.check import Situation


def skew_s(s: Situation) -> tuple[float, float] | None:
    """(seconds that the server is ahead, how far that may be off); None without a usable Date."""
    x = s.live.first if s.live is not None else None
    if x is None or not x.status_code or "date" not in x.response_headers or "age" in x.response_headers:
        return None
    try:
        told = email.utils.parsedate_to_datetime(x.response_headers["date"])
        seconds = told.timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    # The answer was dated some time between the request and its end.
    middle = (x.start_ns + x.end_ns) / 2e9
    return seconds - middle, (x.end_ns - x.start_ns) / 2e9 + 1.0
