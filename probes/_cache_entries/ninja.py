"""Caches that ninja builds: FlashInfer's modules and torch's extensions.

A module is a folder with build.ninja and one library. ninja notes each command in .ninja_log, in the folder it was
started in: the module's own, or the one above (FlashInfer until 0.2, and its builds of many modules at once).

.ninja_log, versions 5 to 7: a line for each output, "start end mtime output hash" with tabs between them; start and
end are ms since that run of ninja began, the last line of an output holds. Runs are not marked: commands are noted as
they end, so an end before the one above it begins a new run. What mtime means differs between versions; it is not used.
"""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass

from tokentrace.probes._cache_entries import Bounds, Entries, Entry, head, is_folder, listing, shown, written_ns

LOG = ".ninja_log"
#: A log of a thousand modules has some 200 kB.
MAX_LOG_BYTES = 8 * 2**20
MAX_STEPS = 50_000
#: flashinfer/<version>/<architectures>/cached_ops/<module>; torch_extensions/<python_accelerator>/<name>.
_DEEPEST = 4
#: Beside FlashInfer's modules: sources that it generates and kernels that it downloads, thousands of files. Last.
_HEAVY = ("cubins", "generated")
_SIGNATURE = re.compile(rb"# ninja log v([4-9])\r?\n")
#: Longer than any build, shorter than what an int of ninja's holds: 12 days.
_LONGEST_MS = 10**9
#: A library is linked as soon as its last object is there, unless other modules' commands take all of ninja's jobs.
_GAP_MS = 1_000


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a build. `run` counts the runs of ninja in the log; times are ms since that run began."""

    output: str
    run: int
    start_ms: int
    end_ms: int


def steps_of(data: bytes) -> list[Step]:
    """The commands a log tells, oldest first; what is no line of a log is passed over. Never raises."""
    signature = _SIGNATURE.match(data)
    if signature is None:
        return []
    steps: list[Step] = []
    run, last_end = 0, 0
    whole, _, _ = data[signature.end() :].rpartition(b"\n")  # the last line may be half written
    for line in whole.split(b"\n"):
        fields = line.rstrip(b"\r").split(b"\t")
        if len(fields) != 5 or not fields[3] or len(steps) >= MAX_STEPS:
            continue
        if not all(text.isdigit() and len(text) <= 10 for text in fields[:2]):
            continue
        start, end = int(fields[0]), int(fields[1])
        if not start <= end <= _LONGEST_MS:
            continue
        if end < last_end:
            run += 1
        last_end = end
        steps.append(Step(fields[3].decode("utf-8", "surrogateescape"), run, start, end))
    return steps


def took_ns(steps: list[Step], library: str) -> int | None:
    """How long ninja was at work for a library, by its file name; None when the log does not have it.

    Counted is the time in which one of its commands or more ran, and of each object the last one before the library
    was linked: those may be from an earlier run.
    """
    link = next((n for n in range(len(steps) - 1, -1, -1) if _name(steps[n]) == library), None)
    if link is None:
        return None
    latest: dict[str, Step] = {}
    for step in steps[: link + 1]:
        if _name(step) == library or not step.output.endswith(".so"):
            latest[step.output] = step
    linked = steps[link]
    ends = [step.end_ms for step in latest.values() if step.run == linked.run and step is not linked]
    if linked.start_ms - max(ends, default=0) > _GAP_MS:
        return None  # what it waited for is not above it: the log was written anew, in another order
    total_ms, run, reached = 0, -1, 0
    for step in sorted(latest.values(), key=lambda one: (one.run, one.start_ms)):
        if step.run != run:
            run, reached = step.run, 0
        total_ms += max(0, step.end_ms - max(step.start_ms, reached))
        reached = max(reached, step.end_ms)
    return total_ms * 1_000_000


def _name(step: Step) -> str:
    return os.path.basename(step.output)  # noqa: PTH119 - a thousand of them


def read(folder: str, told: str, bounds: Bounds) -> Entries:
    """The libraries below the folder, which the serving process names `told`. Never raises."""
    found = Entries()
    waiting: list[tuple[str, str, list[Step], int]] = [(folder, told, [], 0)]
    while waiting and not bounds.over():
        here, name, logged_above, depth = waiting.pop()
        below, steps = _look(here, name, logged_above, found, bounds)
        if depth < _DEEPEST:
            below.sort(key=lambda one: one not in _HEAVY)
            waiting += [(f"{here}/{one}", f"{name}/{one}", steps, depth + 1) for one in below]
    found.complete = found.complete and not waiting
    return found


def _look(
    here: str, told: str, logged_above: list[Step], found: Entries, bounds: Bounds
) -> tuple[list[str], list[Step]]:
    """Adds the libraries that lie here; gives the folders below that may hold others, and what is logged here."""
    libraries: dict[str, int] = {}
    folders: list[str] = []
    names: set[str] = set()
    for entry in listing(here, found, bounds):
        if is_folder(entry):
            folders.append(entry.name)
            continue
        names.add(entry.name)
        if entry.name.endswith(".so") and (made := written_ns(entry)) is not None:
            libraries[entry.name] = made
    steps = steps_of(head(f"{here}/{LOG}", MAX_LOG_BYTES)) if LOG in names else []
    if "build.ninja" in names:
        module = os.path.basename(told)  # noqa: PTH119
        above = [step for step in logged_above if _folder(step) == module]
        for library, made in libraries.items():
            # One log is newer than the other; an own one that has the library is by the build of this module alone.
            spent = took_ns(steps, library)
            spent = took_ns(above, library) if spent is None else spent
            found.entries.append(Entry(shown(library.removesuffix(".so")), f"{told}/{library}", made, spent))
        return [], []
    return folders, steps


def _folder(step: Step) -> str:
    return os.path.basename(os.path.dirname(step.output))  # noqa: PTH119, PTH120
