"""Compile logs written by others, TORCH_TRACE and Triton's structured trace: which it is, its events, what it tells."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timezone, tzinfo
from pathlib import Path

from tokentrace.errors import UsageError
from tokentrace.importers import _source, _torch_trace, _triton_trace
from tokentrace.importers._jit_events import JitEvent, JitLog
from tokentrace.importers.columns import Lost
from tokentrace.probe import Finding
from tokentrace.wording import duration, listed, plural

_LONGEST_LINE = 64 << 20


def kind_of(head: bytes) -> str:
    """'torch_trace', 'triton' or '' by the first bytes of a file."""
    first = head.lstrip().split(b"\n", 1)[0]
    if _torch_trace.LINE.match(first):
        return "torch_trace"
    return "triton" if _triton_trace.HEAD.match(head[:4096]) else ""


def read(path: Path, zone: tzinfo | None = None) -> JitLog:
    """Read a compile log. Raises UsageError when it is none, or holds no compile event.

    `zone`: of a Triton log, whose times are local ones though a Z stands behind them (it writes them with
    `logging.Formatter.formatTime`); without it they are read as UTC, and `notes` says so.
    """
    kind = kind_of(_source.head(path))
    lost = Lost()
    notes = []
    lines = _lines(_source.chunks(path, lost), lost)
    if kind == "torch_trace":
        events = _torch_trace.events(lines, lost)
    elif kind == "triton":
        events = _triton_trace.events(lines, lost, zone or timezone.utc)
        notes.append(f"its times have no zone that holds and were read as {zone or 'UTC'}")
    else:
        raise UsageError(f"{path.name} is no compile log", fix="give a TORCH_TRACE log or a Triton structured trace")
    if not events:
        raise UsageError(
            f"{path.name} is a compile log, but no compile event is in it",
            fix="record it while something is compiled (TORCH_TRACE=FOLDER, TRITON_TRACE=FOLDER)",
        )
    return JitLog(path.name, kind, events, lost, notes)


def _lines(pieces: Iterator[bytes], lost: Lost) -> Iterator[bytes]:
    rest = b""
    skipping = False
    for piece in pieces:
        parts = (rest + piece).split(b"\n")
        rest = parts.pop()
        if skipping and parts:
            parts.pop(0)
            skipping = False
        yield from parts
        if len(rest) > _LONGEST_LINE:
            lost.add(1, "a line was too long and was skipped")
            rest, skipping = b"", True
    if rest and not skipping:
        yield rest


def findings(log: JitLog) -> list[Finding]:
    """What the log tells: time compiling, caches hit and missed, the reason of a bypass."""
    result = []
    outer = [event for event in log.events if event.parent < 0 and not (event.result and log.kind == "torch_trace")]
    if outer:
        total = sum(event.end_ns - event.start_ns for event in outer)
        slowest = max(outer, key=lambda event: event.end_ns - event.start_ns)
        compiled = [event for event in outer if event.result != "hit"]
        cached = f", from the cache: {len(outer) - len(compiled):,}" if len(outer) > len(compiled) else ""
        good = [event for event in compiled if not event.failure]
        result.append(
            Finding(
                2,
                f"{log.source} shows {duration(total)} of compiling."
                if compiled
                else f"{log.source} shows {duration(total)} in the compiler; all it was asked for came from the cache.",
                f"compiles: {len(compiled):,}{cached}; slowest: {slowest.name} {slowest.compile_id}".rstrip()
                + "; ".join([f" {duration(slowest.end_ns - slowest.start_ns)}", *log.notes]),
                "keep the compile cache folders between starts" if good else "",
            )
        )
    result += _failed([event for event in log.events if event.failure], len(outer))
    for compiler in sorted({event.compiler for event in log.events if event.result}):
        looked = [event for event in log.events if event.result and event.compiler == compiler]
        counts = {kind: sum(event.result == kind for event in looked) for kind in ("hit", "miss", "bypass")}
        saved = sum(event.saved_ns for event in looked)
        again = _compiled_again(looked)
        reasons = sorted({event.reason for event in looked if event.reason})
        result.append(
            Finding(
                2,
                f"The {compiler} cache: hits {counts['hit']}, misses {counts['miss']}, bypassed {counts['bypass']}.",
                (f"hits saved {duration(saved)}; " if saved else "")
                + plural(len({event.key for event in looked if event.key}), "key")
                + (f"; bypassed because: {reasons[0]}" if reasons else ""),
                "the same key was missed again: the cache folder is not kept or not shared" if again else "",
                "warn" if again or counts["bypass"] > counts["hit"] + counts["miss"] else "ok",
            )
        )  # fmt: skip
    failed = [event for event in log.events if event.unfinished]
    if failed:
        names = ", ".join(sorted({event.name for event in failed})[:5])
        sentence = f"Compile phases without an end: {len(failed):,}; they failed, or the log was cut."
        result.append(Finding(2, sentence, names, "look at the log's end", "warn"))
    return result


def _failed(failed: list[JitEvent], compiles: int) -> Iterator[Finding]:
    """Compiles that ended with an error: what they were to compile runs uncompiled, if errors are suppressed."""
    if not failed:
        return
    kinds = sorted({event.failure for event in failed})
    yield Finding(
        2,
        f"{len(failed):,} of {plural(compiles, 'compile')} failed: {listed(kinds)}. What was to be compiled ran "
        "uncompiled, or not at all.",
        "; ".join(f"{event.name} {event.compile_id}: {event.failure} after {duration(event.end_ns - event.start_ns)}"
                  for event in failed[:3]),
        "run it with TORCH_LOGS=+dynamo to see why",
        "warn",
    )  # fmt: skip


def _compiled_again(looked: list[JitEvent]) -> bool:
    missed = [event.key for event in looked if event.result == "miss" and event.key]
    return len(missed) != len(set(missed))
