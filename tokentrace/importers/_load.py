"""Files, folders and their options in, one Imported out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import tzinfo
from pathlib import Path

import numpy as np

from tokentrace import gpu_events
from tokentrace.errors import UsageError
from tokentrace.importers import (
    _source,
    _spanning,
    chrome,
    columns,
    figures,
    host,
    join,
    measures,
    nsys,
    rocprof,
    spans,
    steps,
)
from tokentrace.importers._analysis import RECORDING, STEP, WINDOW, Analysis
from tokentrace.importers._collect import Collected, Imported
from tokentrace.importers._companions import SHARE, Companions
from tokentrace.importers.columns import Array, Events
from tokentrace.wording import plural

_SUFFIXES = (
    ".json",
    ".json.gz",
    ".sqlite",
    ".sqlite.gz",
    ".db",
    ".log",
    ".log.gz",
    ".ndjson",
    ".ndjson.gz",
    ".csv",
    ".xml",
)
_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_MAX_FILES = 1024
#: Sums of integers of 64 bits hold below it (146 years).
_LONGEST_NS = 2**62


def load(
    paths: str | Path | Sequence[str | Path],
    *,
    window: tuple[int, int] | None = None,
    step: int | None = None,
    rank: int | None = None,
    zone: tzinfo | None = None,
    progress: Callable[[int], None] | None = None,
) -> Imported:
    """Import recordings: torch.profiler/Kineto JSON (.json, .json.gz), nsys sqlite, rocprofv3 JSON, a folder of ranks.

    Compile logs (TORCH_TRACE, Triton) and power dumps (nvidia-smi, rocm-smi, amd-smi with times) among the files are
    joined to the recordings by time.

    `window`: (start, end) in ns from the first event of each file; `step`: only the step with this number; `rank`: only
    this rank's file; `zone`: of power dumps whose times have none (default UTC); `progress` is told the bytes read so
    far of the file at hand, unpacked (of an sqlite file's tables each counts for an equal share). Raises UsageError
    when nothing can be imported; damage that leaves something readable is counted in `lost` and told in a finding.
    """
    if window is not None:
        if not 0 <= window[0] < window[1]:
            raise UsageError("the window must be START-END with START before END", fix="for example --window 100-250")
        window = (min(window[0], _LONGEST_NS // 2), min(window[1], _LONGEST_NS // 2))
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    files, from_folder = _files([Path(path) for path in given])
    refused: list[str] = []
    beside = Companions(zone)
    recordings = []
    for file in files:
        with _skipping(refused, from_folder):
            if not beside.take(file):
                recordings.append(file)
    whole = STEP if step is not None else WINDOW if window is not None else RECORDING
    collected = Collected(whole)
    builder = spans.Builder(
        len(recordings) if rank is None else 1,
        columns.clean("/".join(file.name for file in files)),
        SHARE if len(beside) else 0,
    )
    for file in recordings:
        with _skipping(refused, from_folder):
            events, kind = _read(file, window, progress)
            if rank is not None and _rank(file, events) != rank:
                collected.other_ranks.append(_rank(file, events))
                continue
            found = analyse(events, step, whole)
            label = _label(file, events, collected.labels)
            builder.add(label, found)
            collected.add(label, found, kind)
    if not collected.labels and (recordings or not len(beside)):
        raise _nothing(files, rank, refused, collected.other_ranks)
    beside.join(builder, collected)
    for text in refused:
        collected.lost.add(0, text)
    return collected.finish(builder)


@contextlib.contextmanager
def _skipping(refused: list[str], from_folder: bool) -> Iterator[None]:
    """A file that came out of a folder may be strange: why it was passed over is added to `refused`."""
    try:
        yield
    except UsageError as error:
        if not from_folder:
            raise
        refused.append(str(error))


def analyse(events: Events, step: int | None = None, whole: str = RECORDING) -> Analysis:
    """Join, measure and count one recording; with `step`, that step alone. `whole`: what the findings call it. Raises
    UsageError for an unknown step."""
    steps.tell_annotations(events)
    joined = join.join(events)
    found = steps.find(events, joined)
    if step is not None:
        _only_step(events, joined, found, step)
        joined = join.join(events)
        found = steps.find(events, joined)
    tree = host.build(events)
    measured = measures.measure(events, joined, tree)
    layer = _spanning.classify(events, joined, found, measured)
    per_step = figures.step_figures(events, joined, found)
    for entry, more in zip(per_step, measures.per_step(events, joined, found, measured), strict=True):
        entry.update(more)
    return Analysis(
        events=events,
        joined=joined,
        tree=tree,
        steps=found,
        measures=measured,
        figures=figures.figures(events, joined),
        step_figures=per_step,
        operators=host.operators(events, joined, tree, layer > 0),
        layer=layer,
        whole=whole,
    )


def _files(paths: Iterable[Path]) -> tuple[list[Path], bool]:
    """Files to read, and whether they came out of a folder (where a strange file is skipped, not refused)."""
    result: list[Path] = []
    folder = False
    for path in paths:
        if path.is_dir():
            folder = True
            try:
                inside = sorted(p for p in path.iterdir() if p.is_file() and p.name.lower().endswith(_SUFFIXES))
            except OSError as error:
                raise _source.unreadable(path, error) from error
            if not inside:
                raise UsageError(f"there is no recording in {path}", fix=f"expected files {', '.join(_SUFFIXES)}")
            result += inside
        else:
            result.append(path)
    if not result:
        raise UsageError("no file was given", fix="tokentrace import FILE")
    if len(result) > _MAX_FILES:
        raise UsageError(f"{len(result):,} files are too many for one trace", fix="choose ranks with --rank")
    return sorted(
        result, key=lambda p: (_file_rank(p) is None, _file_rank(p) or 0, p.name)
    ) if folder else result, folder


def _file_rank(path: Path) -> int | None:
    found = _RANK.search(path.name)
    return int(found[1][:9]) if found else None


def _rank(path: Path, events: Events) -> int | None:
    rank = events.facts.get("rank")
    return rank if isinstance(rank, int) else _file_rank(path)


def _label(path: Path, events: Events, taken: Sequence[str]) -> str:
    rank = _rank(path, events)
    name = label = f"rank {rank}" if rank is not None else columns.clean(path.name, 100)
    number = 2
    while label in taken:
        label = f"{name} ({number})"
        number += 1
    return label


def _nothing(files: list[Path], rank: int | None, refused: list[str], others: list[int | None]) -> UsageError:
    known = sorted({r for r in others if r is not None})
    if rank is not None and others:
        have = f"there are ranks {', '.join(map(str, known))}" if known else "none of them names its rank"
        return UsageError(f"rank {rank} is not among the recordings", fix=have)
    if refused:
        return UsageError(
            f"none of {len(files)} files could be imported: {refused[0]}",
            fix="give torch.profiler traces, nsys .sqlite exports or rocprofv3 JSON results",
        )
    return UsageError("nothing could be imported", fix="tokentrace import FILE")


def _read(path: Path, window: tuple[int, int] | None, progress: Callable[[int], None] | None) -> tuple[Events, str]:
    head = _source.head(path)
    if head.startswith(nsys.MAGIC):
        kind = "nsys"
        events = nsys.read(path, window_ns=window, progress=progress)
        if window is not None:
            _prune_calls(events, events.window_begin)
            events.cut(events.window_begin, events.window_begin + window[1] - window[0])
    elif rocprof.KEY in head:
        kind = "rocprofv3"
        events = rocprof.read(path, progress=progress)
        if window is not None and len(events):
            first = int(events.start.min())
            _keep_window(events, first + window[0], first + window[1])
    else:
        kind = "kineto"
        events = _read_chrome(path, window, progress)
    if not len(events):
        raise _empty(path, events, window)
    events.source = columns.clean(events.source, 200)
    _only_times_that_can_be(events)
    if not len(events):
        raise _empty(path, events, None)
    return events, kind


def _only_times_that_can_be(events: Events) -> None:
    """Drop what lies outside a clock's range, and let a clock of unknown origin begin no earlier than at 0: unix times
    of spans are never negative. Raises UsageError when the sum of all durations is beyond an integer of 64 bits."""
    base = events.base_ns
    if base is not None and not 0 <= base < _LONGEST_NS:
        events.lost.add(0, "the time at which the recording says it began cannot be")
        base = events.base_ns = None
    least = -_LONGEST_NS if base is None else -base
    believed = (events.start >= least) & (events.end >= events.start) & (events.end < _LONGEST_NS)
    strange = len(events) - int(believed.sum())
    if strange:
        events.lost.add(strange, f"{plural(strange, 'event')} with times that cannot be")
        events.select(np.flatnonzero(believed))
    if not len(events):
        return
    first = int(events.start.min())
    lengths = (events.end - events.start).astype(np.float64)
    if max(float(lengths.sum()), float(events.end.max()) - first) >= _LONGEST_NS:
        raise UsageError(
            f"{events.source} holds times that cannot be: its events last longer than a century", fix="record it again"
        )
    if base is None and first < 0:
        events.start -= first
        events.end -= first
        events.window_begin = max(events.window_begin, -_LONGEST_NS) - first


def _read_chrome(path: Path, window: tuple[int, int] | None, progress: Callable[[int], None] | None) -> Events:
    if window is None:
        return chrome.read(path, progress=progress)
    first: list[int] = []

    def earliest(start: Array, end: Array, kind: Array) -> Array:
        inner = start[kind != gpu_events.ENVELOPE]
        if len(inner):
            first.append(int(inner.min()))
        return np.zeros(len(start), np.bool_)

    # Two passes: events are not in order of time, so the first is known only at the end.
    chrome.read(path, keep=earliest, progress=progress)
    begin = min(first, default=0) + window[0]
    end_of = min(first, default=0) + window[1]

    def keep(start: Array, end: Array, kind: Array) -> Array:
        inside = (start >= begin) & (start < end_of) & (kind != gpu_events.ENVELOPE)
        call = (kind == gpu_events.RUNTIME) & (start >= begin - columns.LOOK_BACK_NS) & (start < begin)
        wanted: Array = inside | call
        return wanted

    events = chrome.read(path, keep=keep, progress=progress)
    _prune_calls(events, begin)
    events.cut(begin, end_of)
    return events


def _keep_window(events: Events, begin: int, end: int) -> None:
    inside = (events.start >= begin) & (events.start < end)
    call = (events.kind == gpu_events.RUNTIME) & (events.start < begin)
    events.select(np.flatnonzero(inside | call))
    _prune_calls(events, begin)
    events.cut(begin, end)


def _prune_calls(events: Events, begin: int) -> None:
    """Drop calls before the window unless something in the window came out of them."""
    joined = join.join(events)
    used = np.concatenate((joined.call_of, joined.launch_of, joined.copy_call))
    keep = np.ones(len(events), np.bool_)
    early = joined.runtime[events.start[joined.runtime] < begin]
    keep[early] = False
    keep[used[used >= 0]] = True
    events.select(np.flatnonzero(keep))


def _only_step(events: Events, joined: join.Joined, found: steps.Steps, wanted: int) -> None:
    number = next((n for n, step in enumerate(found.steps) if step.index == wanted), None)
    if number is None:
        known = ", ".join(str(step.index) for step in found.steps[:12]) + (" …" if len(found.steps) > 12 else "")
        raise UsageError(
            f"there is no step {wanted} in {events.source}",
            fix=f"steps are {known}" if known else "the recording has no marked steps; use --window",
        )
    step = found.steps[number]
    keep = (events.start >= step.start_ns) & (events.start <= step.host_end_ns) & (events.kind != gpu_events.ENVELOPE)
    keep &= events.kind >= gpu_events.GPU_KINDS
    keep[joined.kernels[found.of_kernel == number]] = True
    keep[joined.copies[found.of_copy == number]] = True
    calls = np.concatenate((joined.call_of[found.of_kernel == number], joined.copy_call[found.of_copy == number]))
    keep[calls[calls >= 0]] = True
    for other in found.steps:  # of overlapping steps on other threads only this one stays a step
        if other is not step and keep[other.row]:
            keep[other.row] = False
    events.select(np.flatnonzero(keep))


def _empty(path: Path, events: Events, window: tuple[int, int] | None) -> UsageError:
    if window is not None:
        return UsageError(
            f"there are no events in this window of {path.name}",
            fix="the window counts milliseconds from the first event",
        )
    if events.lost.events or events.lost.reasons:
        return UsageError(
            f"{path.name} is too damaged: {'; '.join(events.lost.reasons[:2])[:200]}", fix="record it again"
        )
    if events.total_events:
        return UsageError(
            f"{path.name} is JSON, but none of its {events.total_events:,} entries is a timed profiler event",
            fix="give a torch.profiler trace, an nsys .sqlite export or a rocprofv3 JSON result",
        )
    return UsageError(f"{path.name} holds no events", fix="check that the profiler was active while the model ran")
