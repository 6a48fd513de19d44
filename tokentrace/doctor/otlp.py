"""The plumbing: will a trace arrive where it is sent? Proven by a test span and the receiver's answer."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tokentrace.doctor.check import Check, Result, Situation, fail, ok, skip, warn
from tokentrace.emit.otlp_target import OtlpTarget, configured, mentioned
from tokentrace.errors import ConfigError
from tokentrace.model import IdSource, Trace
from tokentrace.probes._caches import PSEUDO, filesystem_of
from tokentrace.wording import listed

_SECONDS = 6.0


def _target(s: Situation) -> OtlpTarget | None:
    """Raises ConfigError."""
    return OtlpTarget.from_env("", s.environ) if configured(s.environ) else None


def _settings(s: Situation) -> Iterable[Result]:
    try:
        target = _target(s)
    except ConfigError as error:
        yield fail("TT001", str(error), error.fix)
        return
    if target is None:
        yield _without_endpoint(s)
        return
    told = f"traces go to {target.shown} over {target.protocol}"
    if target.disabled:
        yield warn("TT001", f"{told}, but nothing is sent: {target.disabled}", "unset that variable")
    for remark in target.remarks:
        yield warn("TT001", remark.message, remark.fix, told)
    if target.ratio < 1:
        yield warn("TT001", f"{told}, but only {target.ratio:.0%} of all traces (sampler)", "unset OTEL_TRACES_SAMPLER")
    if not (target.disabled or target.remarks or target.ratio < 1):
        yield ok("TT001", told)


def _without_endpoint(s: Situation) -> Result:
    """No receiver is set; other variables of it may still trip a command that is given one (--otlp)."""
    others = mentioned(s.environ)
    none = "no OTLP receiver is set (OTEL_EXPORTER_OTLP_ENDPOINT)"
    if not others:
        return skip("TT001", none)
    try:
        remarks = OtlpTarget.from_env("", s.environ).remarks
    except ConfigError as error:
        return warn("TT001", f"{none}, and with --otlp it would not work: {error}", error.fix)
    if remarks:
        return warn("TT001", f"{none}; with --otlp: {remarks[0].message}", remarks[0].fix, *map(str, remarks[1:]))
    return skip("TT001", f"{none}, although {listed(others)} {'is' if len(others) == 1 else 'are'}")


def _delivery(s: Situation) -> Iterable[Result]:
    looked = time.monotonic()
    from tokentrace.emit.otlp_send import send

    try:
        target = _target(s)
    except ConfigError:
        yield skip("TT002", "the receiver's settings cannot be used")
        return
    if target is None or target.disabled:
        yield skip("TT002", "no OTLP receiver is set" if target is None else f"nothing may be sent: {target.disabled}")
        return
    spent = time.monotonic() - looked  # a busy machine has spent it on the imports
    seconds = max(0.5, min(_SECONDS - 2.0, _SECONDS - 1.0 - spent, s.left_s))
    patient = replace(
        target, timeout_s=min(target.timeout_s, seconds), patience_s=min(1.0, seconds), total_s=seconds, ratio=1.0
    )
    began = time.monotonic()
    delivery = send(_test_trace(), patient, environ=s.environ)
    took = time.monotonic() - began
    if delivery.ok and not delivery.message:
        yield ok("TT002", f"the receiver at {target.shown} took a test span in {took:.2f} s and said so")
    elif delivery.ok:
        yield warn("TT002", delivery.message, delivery.fix)
    else:
        yield fail("TT002", _said(delivery.message), delivery.fix)


def _said(message: str) -> str:
    return message.replace("0 of 1 spans arrived: ", "a test span did not arrive: ", 1)


def _test_trace() -> Trace:
    trace = Trace(IdSource().trace_id())
    now = time.time_ns()
    trace.add("tokentrace doctor test span", 0, now, now + 1_000, -1, {"tokentrace.doctor": True})
    return trace


def _store(s: Situation) -> Iterable[Result]:
    """Can runs be kept? Only looked at; nothing is made."""
    from tokentrace import runs

    folder = runs.folder(s.environ)
    at = folder
    while not at.exists() and at != at.parent:
        at = at.parent
    made_up = filesystem_of(at)
    if made_up in PSEUDO:
        yield warn(
            "TT003",
            f"runs cannot be kept in {folder}: {at} lies on {made_up}, where no file can be made",
            "set TOKENTRACE_DATA_DIR to a folder on a disk",
        )
    elif at.is_dir() and os.access(at, os.W_OK | os.X_OK):
        yield ok("TT003", f"runs are kept in {folder}")
    elif not Path(at).is_dir():
        yield warn("TT003", f"runs cannot be kept in {folder}: {at} is no folder", "set TOKENTRACE_DATA_DIR")
    else:
        yield warn("TT003", f"runs cannot be kept in {folder}: no right to write in {at}", "set TOKENTRACE_DATA_DIR")


def _joined(s: Situation) -> Iterable[Result]:
    parent = s.environ.get("TRACEPARENT", "")
    if not parent.strip():
        yield skip("TT004", "TRACEPARENT is not set")
    elif why := _malformed(parent):
        yield warn(
            "TT004",
            f"TRACEPARENT is set and is no traceparent ({why}): programs that read it begin a trace of their own",
            "unset TRACEPARENT, or set it to 00-, 32 digits of the trace, -, 16 of the span, -01 (all lower-case hex)",
        )
    elif int(parent.split("-")[3], 16) & 1:
        yield ok("TT004", "TRACEPARENT is set, and its trace is sampled")
    else:
        yield warn(
            "TT004",
            "TRACEPARENT says that its trace is not sampled: services after it will drop their spans",
            "unset TRACEPARENT, or set its last two digits to 01",
        )


_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def _malformed(parent: str) -> str:
    """Why it is no traceparent as W3C Trace Context defines it (3.2.2), "" when it is one."""
    found = _PARENT.fullmatch(parent)
    if found is None:
        if _PARENT.fullmatch(parent.strip()):
            return "it has spaces around it"
        return "it has capital letters" if _PARENT.fullmatch(parent.lower()) else "it has another form"
    version, trace, span, _, more = found.groups()
    if version == "ff" or (version == "00" and more):
        return "its version is ff" if version == "ff" else "it is longer than version 00 has it"
    return "its ids are zeros" if not trace.strip("0") or not span.strip("0") else ""


CHECKS = (
    Check(
        "TT001",
        "OTLP settings",
        "The variables that name the OTLP receiver can be used and fit together: endpoint, protocol, port, path, "
        "headers, times, sampler. A command that sends a trace says the same of them.",
        "OTEL_EXPORTER_OTLP_*, OTEL_SDK_DISABLED, OTEL_TRACES_SAMPLER; no value of a header is shown",
        "Port 4318 with /v1/traces for http/protobuf, port 4317 without a path for grpc.",
        _settings,
    ),
    Check(
        "TT002",
        "OTLP delivery",
        "A receiver takes traces at that address with that protocol. Libraries that send them report success for a "
        "wrong path, a closed port and the wrong protocol; the receiver's own answer does not.",
        "the answer to one test span (named: tokentrace doctor test span), where a receiver is set",
        "Start the receiver, or correct OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_PROTOCOL.",
        _delivery,
        network=True,
        seconds=_SECONDS,
    ),
    Check(
        "TT003",
        "store of runs",
        "Runs can be kept in the user's data folder. Without it a run still works and is not saved.",
        "the rights of the folder or of the nearest one above it; nothing is written",
        "Set TOKENTRACE_DATA_DIR to a folder that can be written.",
        _store,
    ),
    Check(
        "TT004",
        "inherited trace",
        "A TRACEPARENT in the environment has the form that others read, and does not say that its trace is dropped.",
        "TRACEPARENT: its form, its ids and its last two digits",
        "Unset TRACEPARENT.",
        _joined,
    ),
)
