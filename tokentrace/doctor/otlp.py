"""The plumbing: will a trace arrive where it is sent? Proven by a test span and the receiver's answer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from tokentrace.doctor.check import Check, Result, Situation, fail, ok, skip, unknown, warn
from tokentrace.emit.otlp_target import GRPC, HTTP, PATH, OtlpTarget, configured
from tokentrace.errors import ConfigError
from tokentrace.model import IdSource, Trace

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
        yield skip("TT001", "no OTLP receiver is set (OTEL_EXPORTER_OTLP_ENDPOINT)")
        return
    told = f"traces go to {target.shown} over {target.protocol}"
    port = urlsplit(target.endpoint).port
    if target.disabled:
        yield warn("TT001", f"{told}, but nothing is sent: {target.disabled}", "unset that variable")
    elif target.protocol == HTTP and port == 4317:
        yield warn(
            "TT001",
            f"{told}, and 4317 is the usual port of gRPC",
            "use port 4318 for http/protobuf, or set OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
        )
    elif target.protocol == GRPC and port == 4318:
        yield warn(
            "TT001",
            f"{told}, and 4318 is the usual port of HTTP",
            "use port 4317 for grpc, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
        )
    elif target.protocol == HTTP and not urlsplit(target.endpoint).path.rstrip("/").endswith(PATH):
        yield warn(
            "TT001",
            f"{told}, whose path does not end in {PATH}",
            f"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is used as it is: end it in {PATH}",
        )
    elif target.ratio < 1:
        yield warn("TT001", f"{told}, but only {target.ratio:.0%} of all traces (sampler)", "unset OTEL_TRACES_SAMPLER")
    else:
        yield ok("TT001", told)


def _delivery(s: Situation) -> Iterable[Result]:
    from tokentrace.emit.otlp_send import send

    try:
        target = _target(s)
    except ConfigError:
        yield skip("TT002", "the receiver's settings cannot be used")
        return
    if target is None or target.disabled:
        yield skip("TT002", "no OTLP receiver is set" if target is None else f"nothing may be sent: {target.disabled}")
        return
    seconds = max(0.5, min(_SECONDS - 1.0, s.left_s))
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
    if at.is_dir() and os.access(at, os.W_OK | os.X_OK):
        yield ok("TT003", f"runs are kept in {folder}")
    elif not Path(at).is_dir():
        yield warn("TT003", f"runs cannot be kept in {folder}: {at} is no folder", "set TOKENTRACE_DATA_DIR")
    else:
        yield warn("TT003", f"runs cannot be kept in {folder}: no right to write in {at}", "set TOKENTRACE_DATA_DIR")


def _joined(s: Situation) -> Iterable[Result]:
    parent = s.environ.get("TRACEPARENT", "").strip()
    if not parent:
        yield skip("TT004", "TRACEPARENT is not set")
    elif parent.count("-") == 3 and len(parent) == 55:
        sampled = parent.endswith(("1", "3", "5", "7", "9", "b", "d", "f"))
        if sampled:
            yield ok("TT004", "TRACEPARENT is set, and its trace is sampled")
        else:
            yield warn(
                "TT004",
                "TRACEPARENT says that its trace is not sampled: services after it will drop their spans",
                "unset TRACEPARENT, or set its last two digits to 01",
            )
    else:
        yield unknown("TT004", "TRACEPARENT is set and has no known form", "unset it")


CHECKS = (
    Check(
        "TT001",
        "OTLP settings",
        "The variables that name the OTLP receiver fit together: endpoint, protocol, port, path, sampler.",
        "OTEL_EXPORTER_OTLP_*, OTEL_SDK_DISABLED, OTEL_TRACES_SAMPLER; headers by name only",
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
        "A TRACEPARENT in the environment does not say that its trace is dropped.",
        "the last two digits of TRACEPARENT",
        "Unset TRACEPARENT.",
        _joined,
    ),
)
