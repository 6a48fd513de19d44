"""Files and folders of a run whose spans were folded: they say what the run said, whatever is left of them."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from support.records import three_passes

from tokentrace import emit, runs, session, workflow
from tokentrace.cli import cli
from tokentrace.compare.diff import Diff, compare
from tokentrace.errors import ExportError
from tokentrace.fold import fold
from tokentrace.model import Trace
from tokentrace.report import Report, build
from tokentrace.tracing import result


def big() -> Trace:
    """More than the 10,000 spans that viewers take."""
    return three_passes(steps=6, modules=40, operators=40)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[workflow.Run]:
    """A run that was kept, and written to a file as `-o` does."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENTRACE_DATA_DIR", str(folder))
        yield workflow.conclude(session.Outcome(big(), {}), workflow.Settings(output=folder / "hi.jsonl"))


@pytest.fixture
def run(made: workflow.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of that run, to be damaged, and the file beside the folder of runs."""
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    assert made.folder is not None and made.folded is not made.trace
    mine = tmp_path / "runs" / made.folder.name
    mine.mkdir(parents=True)
    for one in made.folder.iterdir():
        (mine / one.name).hardlink_to(one)
    (tmp_path / "hi.jsonl").hardlink_to(made.folder.parent.parent / "hi.jsonl")
    return mine


def without_report(path: Path) -> Path:
    """The file as versions wrote it that left nothing in it beside the spans."""
    trace = emit.load(path)
    for key in ("report", "trees"):
        trace.meta.pop(key, None)
    path.unlink()
    emit.save(trace, path)
    return path


def told(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["show", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return orjson.loads(done.stdout)


def of_the_run(found: dict[str, Any] | Report) -> dict[str, Any]:
    """All that is said of the run, and not of the file it was read from."""
    values = found.to_json() if isinstance(found, Report) else found
    return {key: value for key, value in values.items() if key not in ("files", "spans")}


def test_the_file_says_what_the_run_says(run: Path, made: workflow.Run) -> None:
    whole = of_the_run(build(made.trace))
    found = told(str(run.parent.parent / "hi.jsonl"))
    assert of_the_run(found) == whole == of_the_run(told(run.name))
    assert found["spans"]["produced"] == len(made.folded) and found["spans"]["recorded"] == len(made.trace)
    assert found["operators"] and found["files"] == [str(run.parent.parent / "hi.jsonl")]


def test_the_page_of_the_file_says_it_too(run: Path, made: workflow.Run, tmp_path: Path) -> None:
    page = tmp_path / "hi.html"
    done = CliRunner().invoke(cli, ["export", str(tmp_path / "hi.jsonl"), "--to", "html", "-o", str(page)])
    assert done.exit_code == 0, done.output
    # The lines for a browser without scripts hold the slowest thing and each layer's own time.
    plain = page.read_text()
    assert build(made.trace).slowest.removesuffix(".") in plain.replace("&#x27;", "'")


def test_a_file_written_again_still_says_it(run: Path, made: workflow.Run, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl.gz"
    done = CliRunner().invoke(cli, ["export", str(tmp_path / "hi.jsonl"), "--to", "otlp-file", "-o", str(again)])
    assert done.exit_code == 0, done.output
    assert of_the_run(told(str(again))) == of_the_run(build(made.trace))


@pytest.mark.parametrize("damage", ["gone", "cut", "another version"])
@pytest.mark.parametrize("older", [False, True])
def test_without_its_report_a_run_says_the_same(run: Path, made: workflow.Run, damage: str, older: bool) -> None:
    """`older`: nothing is carried in the folded trace, and the whole one is read."""
    report = (run / runs.REPORT).read_bytes()
    (run / runs.REPORT).unlink()
    if damage == "cut":
        (run / runs.REPORT).write_bytes(report[: len(report) // 2])
    elif damage == "another version":
        (run / runs.REPORT).write_bytes(report.replace(b"tokentrace.report/1", b"tokentrace.report/99"))
    if older:
        without_report(run / runs.TRACE)
    assert of_the_run(told(run.name)) == of_the_run(build(made.trace))


def test_a_run_of_which_only_the_folded_spans_are_left_knows_no_more_than_they_tell(run: Path) -> None:
    for name in (runs.REPORT, runs.DETAIL):
        (run / name).unlink()
    without_report(run / runs.TRACE)
    found = told(run.name)
    layers = {row["layer"]: row for row in found["layers"]}
    assert all(layers[number]["own_ns_down"] is None and layers[number]["evidence"] is None for number in (5, 4, 3))
    assert layers[8]["own_ns_down"] and layers[6]["own_ns_down"] and found["operators"] == []
    assert any("folded" in note and "tokentrace list" in note for note in found["notes"])
    shown = CliRunner().invoke(cli, ["show", run.name])
    assert "own times, operators and what rests on them are not known" in " ".join(shown.stdout.split())


def test_a_whole_trace_that_is_cut_short_is_not_taken_for_one(run: Path) -> None:
    (run / runs.REPORT).unlink()
    without_report(run / runs.TRACE)
    detail = (run / runs.DETAIL).read_bytes()
    (run / runs.DETAIL).unlink()
    (run / runs.DETAIL).write_bytes(detail[: len(detail) // 2])
    found = told(run.name)
    assert found["operators"] == [] and any("folded" in note for note in found["notes"])


def rows_of(found: Diff) -> dict[str, list[dict[str, Any]]]:
    return {level: [row.as_dict() for row in rows] for level, rows in found.levels.items()}


@pytest.mark.parametrize("chosen", ["", "deep"])
@pytest.mark.parametrize("way", ["-o", "export"])
def test_a_file_is_compared_as_its_run_is(run: Path, tmp_path: Path, chosen: str, way: str) -> None:
    file = tmp_path / "hi.jsonl"
    if way == "export":
        file.unlink()
        done = CliRunner().invoke(cli, ["export", run.name, "--to", "otlp-file", "-o", str(file)])
        assert done.exit_code == 0, done.output
    found = compare([str(file)], [run.name], base_pass=chosen, new_pass=chosen)
    itself = compare([run.name], [str(run / runs.TRACE)], base_pass=chosen, new_pass=chosen)
    every = [row for rows in found.levels.values() for row in rows]
    assert every and all(row.difference_ns == 0 and not row.only_in for row in every)
    assert "No difference at all" in found.verdict.sentence
    # Of one run's deep pass on both sides modules and operators are left out; of different files they are not.
    for level in ("layers", "spans", "steps", "modules", "operators"):
        assert found.levels[level], level
    same = {"layers", "spans", "steps"}
    assert {k: v for k, v in rows_of(found).items() if k in same} == {
        k: v for k, v in rows_of(itself).items() if k in same
    }


@pytest.mark.parametrize("chosen", ["", "deep"])
def test_a_file_without_its_trees_knows_layers_and_steps(run: Path, tmp_path: Path, chosen: str) -> None:
    """One that was cut short has lost its last line first."""
    file = tmp_path / "hi.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    assert orjson.loads(lines[-1])["resourceSpans"] == []
    file.unlink()
    file.write_bytes(b"".join(lines[:-1]))
    found = compare([str(file)], [run.name], base_pass=chosen, new_pass=chosen)
    every = [row for rows in found.levels.values() for row in rows]
    assert found.levels["layers"] and found.levels["steps"] and not found.lost
    assert all(row.difference_ns == 0 and not row.only_in for row in every)
    for level in ("modules", "operators"):
        assert not found.levels[level] and "give the run's folder" in found.missing[level]


@pytest.mark.parametrize("chosen", ["", "deep"])
def test_a_file_of_an_older_version_does_not_differ_from_its_run(run: Path, tmp_path: Path, chosen: str) -> None:
    without_report(tmp_path / "hi.jsonl")
    found = compare([str(tmp_path / "hi.jsonl")], [run.name], base_pass=chosen, new_pass=chosen)
    every = [row for rows in found.levels.values() for row in rows]
    assert every and all(row.difference_ns == 0 and not row.only_in for row in every)
    assert found.verdict.status == "same" and bool(found.levels["layers"]) is (chosen == "")
    for level in ("modules", "operators"):
        assert not found.levels[level] and "give the run's folder" in found.missing[level]


@pytest.mark.parametrize("damage", ["text", "bytes", "words", "another type"])
def test_damaged_trees_are_none(run: Path, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "hi.jsonl"
    trace = emit.load(file)
    packed = trace.meta["trees"]["deep"]
    bad = {
        "text": "§",
        "bytes": packed[: len(packed) // 8 * 4],
        "words": base64.b64encode(zlib.compress(b"{}")).decode(),
    }
    trace.meta["trees"]["deep"] = bad.get(damage, 7)
    file.unlink()
    emit.save(trace, file)
    found = compare([str(file)], [run.name], base_pass="deep", new_pass="deep")
    assert found.levels["layers"] and "folded" in found.missing["modules"]


def test_a_program_s_file_says_what_its_trace_says(tmp_path: Path) -> None:
    trace = result.Trace(big())
    trace.save(tmp_path / "chain.jsonl")
    assert len(emit.load(tmp_path / "chain.jsonl")) < len(trace)
    assert of_the_run(runs.report_of(tmp_path / "chain.jsonl")) == of_the_run(trace.report)
    trace.save(tmp_path / "chain.html")
    assert trace.report.slowest.removesuffix(".") in (tmp_path / "chain.html").read_text().replace("&#x27;", "'")


def test_power_joined_to_a_folded_file_keeps_what_the_run_said(run: Path, made: workflow.Run, tmp_path: Path) -> None:
    first = made.trace.start_ns[0]
    seconds = [first / 1e9 + 0.01 * number for number in range(400)]
    lines = ["timestamp, index, power.draw [W]"]
    for at in seconds:
        stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}"
        lines.append(f"{stamp}, 0, 100.00 W")
    (tmp_path / "power.csv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "joined.jsonl"
    done = CliRunner().invoke(cli, ["import", str(tmp_path / "hi.jsonl"), str(tmp_path / "power.csv"), "-o", str(out)])
    assert done.exit_code == 0, done.output
    found, whole = of_the_run(told(str(out))), of_the_run(build(made.trace))
    assert [row for row in found["layers"] if row["layer"] > 1] == [row for row in whole["layers"] if row["layer"] > 1]
    assert found["operators"] == whole["operators"] and len(found["findings"]) > len(whole["findings"])


def test_nobody_sees_half_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each file that is written: what a reader finds then is the run as it is in the end, or nothing."""
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    trace = big()
    report = build(trace)
    folded = fold(trace)
    wanted = of_the_run(report)
    seen: list[bool] = []
    save = emit.save

    def looking(*arguments: Any, **more: Any) -> None:
        for moment in ("before", "after"):
            names = [name for name, _ in runs.listing()]
            found = runs.folder()
            there = found.is_dir() and runs.is_place(found)
            seen.append(there)
            assert bool(names) is there
            if there:
                assert of_the_run(runs.report_of(runs.find(None))) == wanted
            if moment == "before":
                save(*arguments, **more)

    monkeypatch.setattr(emit, "save", looking)
    run = runs.save(trace, folded, report)
    assert seen == [False, False, True, True]
    assert {one.name for one in run.iterdir()} == {runs.TRACE, runs.DETAIL, runs.REPORT}
    assert [one.name for one in run.parent.iterdir()] == [run.name]
    saved = orjson.loads((run / runs.REPORT).read_bytes())
    assert saved["files"] == [str(run / runs.TRACE), str(run / runs.DETAIL)]


@pytest.mark.parametrize("error", [ExportError("the disk is full"), KeyboardInterrupt()])
def test_a_saving_that_fails_leaves_nothing_half_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def failing(*arguments: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr(emit, "save", failing)
    trace = three_passes()
    with pytest.raises(type(error)):
        runs.save(trace, trace, build(trace), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_stays_where_there_is_no_room_for_its_whole_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody says that it is not saved."""
    resource = pytest.importorskip("resource")
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    small, whole = three_passes(), big()
    save, limits = emit.save, resource.getrlimit(resource.RLIMIT_FSIZE)

    def without_room(trace: Trace, path: Path, *more: Any, **words: Any) -> None:
        if path.name == runs.DETAIL:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        try:
            save(trace, path, *more, **words)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(emit, "save", without_room)
    run = runs.save(whole, small, build(whole))
    assert {one.name for one in run.iterdir()} == {runs.TRACE, runs.REPORT}
    ((name, report),) = runs.listing()
    assert name == run.name and report is not None and report.files == [str(run / runs.TRACE)]
    assert [note for note in report.notes if note.startswith("the whole trace is not beside the folded one: ")]


def test_two_runs_of_one_second_get_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20261130-120000")
    trace = three_passes()
    made = [runs.save(trace, trace, build(trace), tmp_path) for _ in range(3)]
    assert [re.sub(r".*-[0-9a-f]{8}", "", run.name) for run in made] == ["", "-2", "-3"]
    assert [Path(orjson.loads((run / runs.REPORT).read_bytes())["files"][0]).parent for run in made] == made


_ENDED = """
import os, signal, sys
from support.records import three_passes
from tokentrace import emit, session, workflow
save = emit.save
def ended(trace, path, *more, **words):
    if path.name == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    save(trace, path, *more, **words)
emit.save = ended
workflow.conclude(session.Outcome(three_passes(steps=6, modules=40, operators=40), {}), workflow.Settings())
"""


@pytest.mark.parametrize(("at", "left"), [("detail.jsonl.gz", True), ("trace.jsonl", False)])
def test_a_run_whose_saving_was_killed_is_whole_or_not_there(tmp_path: Path, at: str, left: bool) -> None:
    environ = {**os.environ, "TOKENTRACE_DATA_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", _ENDED, at], env=environ, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    command = [sys.executable, "-c", "from tokentrace.cli import main; main()"]
    shown = subprocess.run([*command, "show", "--json"], env=environ, capture_output=True, text=True, check=False)
    listed = subprocess.run([*command, "list", "--json"], env=environ, capture_output=True, text=True, check=False)
    names = json.loads(listed.stdout)
    assert len(names["runs"]) == left and names["unreadable"] == []
    if left:
        found = json.loads(shown.stdout)
        assert found["operators"] and found["operators"][0]["calls"] > 1_000
        again = told_by(tmp_path)
        assert again["layers"] == found["layers"]
    else:
        assert shown.returncode == 2 and "no saved run" in shown.stderr


def told_by(data: Path) -> dict[str, Any]:
    """The trace alone, without the report beside it."""
    (trace,) = data.glob("runs/*/trace.jsonl")
    (trace.parent / runs.REPORT).unlink()
    return runs.report_of(trace).to_json()
