"""From what the user names to samples: runs, passes of runs, trace files, reports, recordings."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tokentrace.compare.sample import Sample, of_pass
from tokentrace.compare.spanless import of_import, of_report
from tokentrace.errors import UsageError
from tokentrace.wording import duration, listed, plural

if TYPE_CHECKING:
    from tokentrace.analyze import Analysis
    from tokentrace.model import Trace

PASSES = ("cold", "warm", "deep", "once")
_IMPORTS = (".json", ".json.gz", ".sqlite", ".sqlite.gz", ".db")
_A_PASS = "RUN:PASS or --passes with one that it has"
_NO_PASS = "a pass can be chosen of runs and of their traces only"

Progress = Callable[[str], None]
#: What the user named, and which pass of it, "" where none was chosen.
Asked = tuple[str, str]
#: What was read already, by file: both sides may be passes of one run, and a run may be asked for another pass.
Read = dict[Path, tuple["Trace", "Analysis"]]
#: Spans of earlier runs that are kept while another is read. More would take gigabytes to spare a second reading.
_KEPT_SPANS = 150_000


def split(given: Sequence[str]) -> list[str]:
    """Each argument may hold several, separated by commas; a comma in the name of a file that exists stays."""
    found = []
    for text in given:
        found += [text] if Path(text).exists() else [part for part in text.split(",") if part.strip()]
    return [part.strip() for part in found]


def load(name: str, pass_name: str = "", progress: Progress | None = None, known: Read | None = None) -> Sample:
    """The sample that `name` stands for. `pass_name` chooses a pass, as `name:pass` does; `known` is read and added to.

    A run is read whole, with the detail that was kept beside it. Raises UsageError: no such run or pass, a file that
    is neither a trace, a report nor a recording.
    """
    name, chosen = _with_pass(name)
    chosen = pass_name or chosen
    if progress is not None:
        progress(f"reading {name}")
    path = Path(name)
    if path.is_file() and path.name.lower().endswith(_IMPORTS):
        return _of_json(path, name, chosen)
    from tokentrace import runs

    if path.is_dir() and not runs.is_place(path):
        return _imported(path, name, chosen)
    return _of_trace(runs.find(name), name, chosen, {} if known is None else known)


def alike(
    base: Sequence[str], new: Sequence[str], base_pass: str, new_pass: str, progress: Progress | None = None
) -> list[list[Sample]]:
    """Both sides, and where one has only passes that looked inside the model, the other's deep ones beside them.

    A pass that the user chose stays. Raises as `load` does.
    """
    known: Read = {}
    asked = [[_asked(name, base_pass) for name in base], [_asked(name, new_pass) for name in new]]
    sides = _read_all(asked, progress, known)
    _same_call(sides, asked, progress, known)
    if len({sample.looks_inside for side in sides for sample in side if sample.kind != "import"}) < 2:
        return sides
    changed: dict[tuple[str, str], list[Sample]] = {}
    for side, names in zip(sides, asked, strict=True):
        for number, ((name, chosen), light) in enumerate(zip(names, side, strict=True)):
            if light.looks_inside or not light.deep_pass or chosen:
                continue
            side[number] = _named(name, light.deep_pass, progress, known)
            changed.setdefault((light.deep_pass, light.pass_name), []).append(side[number])
    for (deep, plain), samples in changed.items():
        samples[0].notes.append(
            f"of {listed([sample.label.rpartition(':')[0] for sample in samples])} the {deep} pass is compared and not "
            f"the {plain} one, since the other side was watched inside the model in every pass it has; a run with "
            "--once may also have paid what only a first request pays"
        )
    return sides


def _read_all(asked: Sequence[Sequence[Asked]], progress: Progress | None, known: Read) -> list[list[Sample]]:
    """Both sides in their order; two passes of one run are taken from one reading of it."""
    places: dict[str, list[tuple[int, int]]] = {}
    for side, names in enumerate(asked):
        for number, (name, _) in enumerate(names):
            places.setdefault(name, []).append((side, number))
    found: dict[tuple[int, int], Sample] = {}
    for side, number in (place for group in places.values() for place in group):
        found[side, number] = _named(*asked[side][number], progress, known)
    return [[found[side, number] for number in range(len(names))] for side, names in enumerate(asked)]


def _same_call(
    sides: list[list[Sample]], asked: Sequence[Sequence[Asked]], progress: Progress | None, known: Read
) -> None:
    """Of programs of several calls the longest call speaks, which may be another one on the other side."""
    base, new = sides
    if not all(sample.program_ns for side in sides for sample in side):
        return
    call = base[0].pass_name
    for side, names in zip(sides, asked, strict=True):
        for number, ((name, chosen), sample) in enumerate(zip(names, side, strict=True)):
            if not chosen and sample.pass_name != call:
                with contextlib.suppress(UsageError):  # it has no call of that name: a note tells the names
                    side[number] = _named(name, call, progress, known)
    wholes = [duration(median(sample.program_ns for sample in side)) for side in sides]
    which = f", {call}" if all(sample.pass_name == call for sample in (*base, *new)) else ""
    base[0].notes.append(
        f"of the programs one call is compared{which}; as a whole they took {wholes[0]} in the base and {wholes[1]} on "
        "the new side (--passes NAME NAME for another call)"
    )


def _named(name: str, chosen: str, progress: Progress | None, known: Read) -> Sample:
    sample = load(name, chosen, progress, known)
    sample.given = name, chosen
    return sample


def _asked(name: str, chosen: str) -> Asked:
    bare, of_name = _with_pass(name)
    return bare, chosen or of_name


def _with_pass(name: str) -> tuple[str, str]:
    head, colon, tail = name.rpartition(":")
    if not colon or not head or Path(name).exists():
        return name, ""
    if tail in PASSES:
        return head, tail
    # Another word after a colon: of a run that is there, it is the name of a pass that is not.
    return (head, tail) if tail.isidentifier() and _is_there(head) else (name, "")


def _is_there(name: str) -> bool:
    from tokentrace import runs

    try:
        return Path(name).exists() or runs.find(name).is_file()
    except UsageError:
        return False


def _of_trace(path: Path, name: str, chosen: str, known: Read) -> Sample:
    from tokentrace import runs

    detail = path.with_name(runs.DETAIL)
    whole = path.name == runs.TRACE and detail.is_file()
    if path not in known:
        while known and sum(len(trace) for trace, _ in known.values()) > _KEPT_SPANS:
            del known[next(iter(known))]
        known[path] = _read(detail if whole else path)
    trace, found = known[path]
    label = path.parent.name if path.name == runs.TRACE else name
    wanted = chosen or found.main.name
    if wanted not in found.passes:
        raise UsageError(f"{label} has no {wanted} pass; it has {listed(list(found.passes))}", fix=_A_PASS)
    sample = of_pass(trace, found, wanted, f"{label}:{chosen}" if chosen else label)
    sample.source = str(path.resolve())
    if len(found.passes) > 1 and wanted not in PASSES:
        sample.program_ns = trace.end_ns[0] - trace.start_ns[0]
    if sample.wall_ns <= 0:
        raise UsageError(f"{label} holds no request that took time", fix="give a run of tokentrace run")
    if found.passes[wanted].view.exchange.get("error"):
        sample.notes.append(f"the request of {sample.label} failed; what was seen until then is compared")
    if trace.meta.get("lost"):
        count, reason = plural(int(trace.meta["lost"]), "span"), trace.meta.get("lost_reason")
        sample.lost = f"{label} is not whole: {reason or 'some cannot be read'} (at least {count} lost)"
    return sample


def _read(path: Path) -> tuple[Trace, Analysis]:
    from tokentrace import emit
    from tokentrace.analyze import analyze
    from tokentrace.carried import restore

    trace = emit.load(path)
    found = analyze(trace)
    restore(trace, found)
    return trace, found


@contextlib.contextmanager
def no_garbage() -> Iterator[None]:
    """Hundreds of thousands of small objects that all stay: looking for garbage among them doubles the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _of_json(path: Path, name: str, chosen: str) -> Sample:
    """A saved report, else a recording."""
    import orjson

    from tokentrace.report import SCHEMA, Report

    if path.suffix.lower() == ".json" and SCHEMA.encode() in _head(path):
        try:
            report = Report.from_json(orjson.loads(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} is no report that can be read: {error}", fix="give the run itself") from error
        wanted = chosen or report.headline_pass
        if wanted not in report.passes:
            has = listed(list(report.passes)) or "none"
            raise UsageError(f"{name} has no {wanted} pass; it has {has}", fix=_A_PASS)
        return of_report(report, f"{name}:{chosen}" if chosen else name, wanted)
    return _imported(path, name, chosen)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4096)


def _imported(path: Path, name: str, chosen: str) -> Sample:
    from tokentrace import importers

    if chosen:
        raise UsageError(f"{name} is a recording and has no passes", fix=_NO_PASS)
    found = importers.load(path)
    sample = of_import(found, name)
    if sample.wall_ns <= 0:
        raise UsageError(f"{name} holds nothing that took time", fix="record it again")
    if found.lost["events"] or found.lost["reason"]:
        count, reason = found.lost["events"], found.lost["reason"]
        at_least = f" (at least {plural(count, 'event')} lost)" if count else ""
        sample.lost = f"{name} is not whole: {reason or 'events are missing'}{at_least}"
    return sample
