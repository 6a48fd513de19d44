"""What ninja's log tells of the modules that it built: real builds, and logs of every kind."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from ninja_modules import BELOW, build, build_together, needs_ninja, write_module

from tokentrace.probes._cache_entries import Bounds, ninja

MS = 1_000_000


def log(*lines: str, version: int = 7) -> bytes:
    return "".join([f"# ninja log v{version}\n", *(line + "\n" for line in lines)]).encode()


def took_ms(*lines: str, library: str = "m.so") -> float | None:
    took = ninja.took_ns(ninja.steps_of(log(*lines)), library)
    return None if took is None else took / MS


@needs_ninja
def test_a_built_module_is_told_with_its_name_and_how_long_it_took(tmp_path: Path) -> None:
    begun = time.monotonic_ns()
    library = build(write_module(tmp_path, "batch_decode"))
    wall = time.monotonic_ns() - begun
    found = ninja.read(str(tmp_path / ".cache/flashinfer"), "/told", Bounds())
    assert [(e.key, e.path) for e in found.entries] == [
        ("batch_decode", f"/told/{BELOW.removeprefix('.cache/flashinfer/')}/batch_decode/batch_decode.so")
    ]
    assert found.complete and found.problem == ""
    (entry,) = found.entries
    assert entry.written_ns == library.stat().st_mtime_ns
    # ninja itself is at work a little longer than its commands.
    assert entry.took_ns is not None and 0 < entry.took_ns <= wall


@needs_ninja
def test_a_module_that_was_built_anew_in_part_counts_each_object_once(tmp_path: Path) -> None:
    folder = write_module(tmp_path, "m")
    build(folder)
    first = ninja.steps_of((folder / ".ninja_log").read_bytes())
    (folder / "part1.cc").write_text('extern "C" int again() { return 1; }\n')
    os.utime(folder / "part1.cc", (time.time() + 10, time.time() + 10))
    build(folder)
    steps = ninja.steps_of((folder / ".ninja_log").read_bytes())
    assert len(first) == 3 and len(steps) == 5, "ninja compiled another thing than the object that changed"
    assert {s.run for s in steps[3:]} == {1}, "the second run of ninja was not told apart"
    kept = next(s for s in first if s.output.endswith("part0.o"))
    again, linked = steps[3], steps[4]
    expected = kept.end_ms - kept.start_ms + (again.end_ms - again.start_ms) + (linked.end_ms - linked.start_ms)
    (entry,) = ninja.read(str(folder), str(folder), Bounds()).entries
    assert entry.took_ns == expected * MS


@needs_ninja
def test_modules_that_were_built_together_are_in_the_log_above_them(tmp_path: Path) -> None:
    folders = [write_module(tmp_path, name) for name in ("one", "two")]
    build_together(*folders)
    assert not (folders[0] / ".ninja_log").exists()
    cache = str(tmp_path / ".cache/flashinfer")
    found = {e.key: e.took_ns for e in ninja.read(cache, cache, Bounds()).entries}
    assert set(found) == {"one", "two"}
    steps = ninja.steps_of((folders[0].parent / ".ninja_log").read_bytes())
    every = max(s.end_ms for s in steps) - min(s.start_ms for s in steps)
    assert all(took is not None and 0 < took <= every * MS for took in found.values())


def test_time_is_counted_once_where_commands_run_side_by_side() -> None:
    lines = ("0\t100\t0\ta.o\tf1", "0\t300\t0\tb.o\tf2", "300\t350\t0\tm.so\tf3")
    assert took_ms(*lines) == 350
    # Nothing ran for it between 100 and 250: ninja had other modules' commands to run.
    assert took_ms("0\t100\t0\ta.o\tf1", "250\t300\t0\tb.o\tf2", "300\t350\t0\tm.so\tf3") == 200


def test_an_older_library_of_the_same_folder_does_not_take_the_newer_ones_time() -> None:
    lines = ("0\t100\t0\tmain.o\tf1", "100\t110\t0\tm.so\tf2", "0\t500\t0\tmain.o\tf3", "500\t520\t0\tm_v1.so\tf4")
    assert took_ms(*lines) == 110
    assert took_ms(*lines, library="m_v1.so") == 520


def test_a_log_whose_order_is_lost_tells_no_time() -> None:
    """ninja writes a long log anew in any order: a link above its objects would seem to take no compiling."""
    assert took_ms("90000\t90100\t0\tm.so\tf1", "0\t90000\t0\tmain.o\tf2") is None
    assert took_ms("0\t90000\t0\tmain.o\tf2") is None


def test_lines_that_ninja_did_not_write_are_passed_over() -> None:
    data = log("0\t5\t0\ta.o\tf1", "no line", "9\t5\t0\tb.o\tf1", "-1\t5\t0\tc.o\tf1", "1\t2\t3\t\tf1",
               "1\t99999999999999\t3\td.o\tf1", "٣\t5\t0\te.o\tf1", "5\t8\t0\tm.so\tf2") + b"8\t9\t0\thalf"  # fmt: skip
    assert [s.output for s in ninja.steps_of(data)] == ["a.o", "m.so"]
    assert ninja.steps_of(b"") == ninja.steps_of(b"# ninja log v3\n0\t5\t0\ta.o\tf1\n") == []


@given(st.binary(max_size=400))
def test_any_bytes_are_a_log_of_some_steps_or_none(data: bytes) -> None:
    for found in (ninja.steps_of(data), ninja.steps_of(b"# ninja log v5\n" + data)):
        assert all(0 <= s.start_ms <= s.end_ms for s in found)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from(["a.o", "b.o", "m.so"]))))
def test_no_log_gives_more_time_than_its_commands_took(steps: list[tuple[int, int, str]]) -> None:
    lines = [f"{min(a, b)}\t{max(a, b)}\t0\t{name}\tf" for a, b, name in steps]
    took = took_ms(*lines)
    assert took is None or 0 <= took <= sum(abs(a - b) for a, b, _ in steps)


def test_a_pipe_or_a_link_in_the_logs_place_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("pipe", "link"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "build.ninja").write_text("")
        (folder / f"{name}.so").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe/.ninja_log")
    (tmp_path / "secret").write_bytes(log("0\t5\t0\tlink.so\tf"))
    (tmp_path / "link/.ninja_log").symlink_to(tmp_path / "secret")
    found = {e.key: e.took_ns for e in ninja.read(str(tmp_path), str(tmp_path), Bounds()).entries}
    assert found == {"pipe": None, "link": None}


def test_a_large_cache_is_looked_at_only_so_far_and_modules_come_before_downloads(tmp_path: Path) -> None:
    module = tmp_path / "0.7.4/90a/cached_ops/m"
    module.mkdir(parents=True)
    (module / "build.ninja").write_text("")
    (module / "m.so").write_bytes(b"")
    downloads = tmp_path / "cubins"
    downloads.mkdir()
    for number in range(60):
        (downloads / f"{number}.cubin").write_bytes(b"")
    found = ninja.read(str(tmp_path), str(tmp_path), Bounds(files=40))
    assert [e.key for e in found.entries] == ["m"] and not found.complete
    assert ninja.read(str(tmp_path), str(tmp_path), Bounds()).complete
