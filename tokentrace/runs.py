"""Where runs are kept: one folder a run in the user's data folder, newest last by name."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tokentrace.errors import ExportError, UsageError

if TYPE_CHECKING:
    from tokentrace.model import Trace
    from tokentrace.report import Report

TRACE, DETAIL, REPORT = "trace.jsonl", "detail.jsonl.gz", "report.json"
#: How the name of what is being written ends; with a dot before it nobody takes it for a run.
_PART = ".part"


def folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of all runs; TOKENTRACE_DATA_DIR overrides the user's data folder."""
    chosen = (os.environ if environ is None else environ).get("TOKENTRACE_DATA_DIR")
    if chosen:
        return Path(chosen) / "runs"
    import platformdirs

    return Path(platformdirs.user_data_dir("tokentrace")) / "runs"


def save(trace: Trace, folded: Trace, report: Report, out: Path | None = None) -> Path:
    """Write a run and give its folder. The whole trace goes beside the folded one when they differ.

    The folder appears with its trace and its report in it, so that nobody reads a run without what was worked out of
    it; what takes longest, the whole trace, comes after that, and where there is no room for it the run stays and a
    note of the report says so. Raises UsageError when the folder cannot be written, ExportError when the disk is full.
    """
    from tokentrace import emit

    name = time.strftime("%Y%m%d-%H%M%S") + "-" + trace.trace_id_hex[:8]
    run = (out or folder()) / name
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=_PART, dir=run.parent))
        try:
            report.files = [str(run / TRACE)]
            save_report(report, made)
            emit.save(folded, made / TRACE)
            run = _in_place(made, run)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        report.files = [str(run / TRACE)]
    except OSError as error:
        raise _unwritable(run, error) from error
    if folded is not trace:
        try:
            emit.save(trace, run / DETAIL)
            report.files.append(str(run / DETAIL))
        except (ExportError, UsageError, OSError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            report.notes.append(f"the whole trace is not beside the folded one: {said}")
    with contextlib.suppress(UsageError):  # an earlier one lies there, which lacks only these lines
        save_report(report, run)
    return run


def _in_place(made: Path, run: Path) -> Path:
    """Give the folder its name, or one with a number behind it: two requests of one caller's trace may end in the same
    second. What has something in it is never replaced."""
    for number in itertools.count(1):
        named = run if number == 1 else run.with_name(f"{run.name}-{number}")
        if named.exists():
            continue
        try:
            return made.rename(named)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
    raise AssertionError("unreachable")


def check_out(out: Path) -> None:
    """Make the folder that runs are to be kept in. Raises UsageError when that, or writing there, cannot be done."""
    try:
        out.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise _unwritable(out, error) from error


def save_report(report: Report, run: Path) -> None:
    """Write the report of a run, or write it again. Raises UsageError when the folder cannot be written."""
    import orjson

    part = run / f".{REPORT}{_PART}"
    try:
        part.write_bytes(orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2))
        part.replace(run / REPORT)
    except OSError as error:
        raise _unwritable(run, error) from error


def _unwritable(run: Path, error: OSError) -> UsageError:
    return UsageError(f"{run} cannot be written: {error.strerror}", fix="give another folder with --out")


def shown(run: Path) -> str:
    """How a shell names a run that was saved here: by its name where `find` finds it by that, else by its path."""
    return run.name if run.parent.absolute() == folder().absolute() else shlex.quote(str(run))


def listing() -> list[tuple[str, Report | None]]:
    """(name, report) of everything in the folder of runs, oldest first; None for a report that cannot be read."""
    import orjson

    from tokentrace.report import Report

    found: list[tuple[str, Report | None]] = []
    root = folder()
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if _is_part(path):
            continue
        try:
            found.append((path.name, Report.from_json(orjson.loads((path / REPORT).read_bytes()))))
        except (OSError, ValueError):
            found.append((path.name, None))
    return found


def find(name: str | None) -> Path:
    """The trace file of a run: by its name or a part of it, a path to a file or to a folder with one run in it, or None
    for the newest.

    Raises UsageError when there is no such run or several.
    """
    if name:
        given = Path(name)
        if given.is_file():
            return given
        if (given / TRACE).is_file():
            return given / TRACE
        inside = _names(given)
        if len(inside) == 1:  # what --out was given
            return given / inside[0] / TRACE
        if inside:
            newest = shlex.quote(str(given / inside[-1]))
            raise UsageError(
                f"there are {len(inside)} runs in {given}", fix=f"name one of them, the newest is {newest}"
            )
        if "/" in name:
            raise UsageError(
                f"there is no run at {given}", fix="see tokentrace list, or name the .jsonl file of a trace"
            )
    root = folder()
    names = _names(root)
    if not names:
        raise UsageError("there is no saved run", fix='make one: tokentrace run "Hi"')
    if not name:
        return root / names[-1] / TRACE
    # The end of a name is its trace id's beginning, which is what people copy.
    ends = [one for one in names if one.startswith(name) or one.endswith(name)]
    fitting = [one for one in names if one == name] or ends or [one for one in names if name in one]
    if len(fitting) != 1:
        if fitting:
            raise UsageError(f"{len(fitting)} runs are called {name!r}", fix="give more of the name: tokentrace list")
        raise UsageError(f"no run is called {name!r}", fix="see tokentrace list")
    return root / fitting[0] / TRACE


def is_place(path: Path) -> bool:
    """A run's folder, or one with runs in it: a folder that `find` takes."""
    try:
        return (path / TRACE).is_file() or bool(_names(path))
    except OSError:
        return False


def _names(place: Path) -> list[str]:
    """Of the runs in a folder, oldest first."""
    if not place.is_dir():
        return []
    return sorted(path.name for path in place.iterdir() if not _is_part(path) and (path / TRACE).is_file())


def _is_part(path: Path) -> bool:
    """A run that is being saved, or one whose saving was ended from outside."""
    return path.name.startswith(".") and path.name.endswith(_PART)


def report_of(path: Path) -> Report:
    """The report of the trace at `path`: the one saved beside it, else the one that the trace carries, else what the
    spans say; those of the whole trace, where a run has kept that beside a folded one."""
    import orjson

    from tokentrace import emit
    from tokentrace.carried import carried
    from tokentrace.report import KEPT, Report, build

    if path.name == TRACE:
        try:
            return Report.from_json(orjson.loads(path.with_name(REPORT).read_bytes()))
        except (OSError, ValueError):
            pass  # a damaged one, or one of another version
    trace = emit.load(path)
    if trace.attributes(0).get(KEPT):
        from tokentrace.importers.report import of_trace

        return of_trace(trace, [str(path)])
    report = carried(trace)
    if report is None:
        whole = detail_of(path)
        report = _of_detail(whole) if whole is not None else None
    report = report or build(trace)
    report.files = [str(one) for one in (path, detail_of(path)) if one is not None]
    return report


def detail_of(path: Path) -> Path | None:
    """Where the whole trace of a run lies, when `path` is its folded one."""
    detail = path.with_name(DETAIL)
    return detail if path.name == TRACE and detail.is_file() else None


def _of_detail(path: Path) -> Report | None:
    """What the whole trace of a run says; None where it cannot be read to its end."""
    from tokentrace import emit
    from tokentrace.report import build

    try:
        trace = emit.load(path)
    except UsageError:
        return None
    return None if trace.meta.get("lost") else build(trace)
