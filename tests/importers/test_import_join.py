"""Intervals and nesting against the plainest possible reckoning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import recordings
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrace import gpu_events
from tokentrace.importers import join
from tokentrace.importers.columns import Parts

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=20)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([s for s, _ in pairs], np.int64)
    return start, start + np.array([length for _, length in pairs], np.int64)


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for s, length in pairs for t in range(s, s + length)}


@given(INTERVALS)
def test_union(pairs: list[tuple[int, int]]) -> None:
    assert join.union_ns(*arrays(pairs)) == len(points(pairs))


@given(INTERVALS, INTERVALS)
def test_overlap(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    got = join.overlap_ns(join.merged(*arrays(a)), join.merged(*arrays(b)))
    assert got == len(points(a) & points(b))


@given(INTERVALS, st.integers(-5, 90))
def test_covered(pairs: list[tuple[int, int]], point: int) -> None:
    got = join.covered(np.array([point]), *join.merged(*arrays(pairs)))
    assert got.tolist() == [len([t for t in points(pairs) if t < point])]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 2)), max_size=25))
def test_nesting_finds_a_container_on_the_same_thread(rows: list[tuple[int, int, int]]) -> None:
    parts = Parts()
    for _, _, thread in rows:
        parts.tracks[1, thread]
    start, end = arrays([(s, length) for s, length, _ in rows])
    track = np.array([parts.tracks[1, thread] for _, _, thread in rows], np.int32)
    parts.add(gpu_events.OPERATOR, start, end, name=np.zeros(len(rows), np.int32), track=track)
    parts.names["op"]
    events = parts.finish("x")
    ordered, parents = join.nest(events, np.arange(len(rows)))
    seen: set[int] = set()
    for row, parent in zip(ordered.tolist(), parents.tolist(), strict=True):
        if parent >= 0:
            assert parent in seen, "parents come first"
            assert events.track[parent] == events.track[row]
            assert events.start[parent] <= events.start[row] and events.end[row] <= events.end[parent]
        seen.add(row)


def test_properly_nested_threads_give_the_smallest_container(tmp_path: Path) -> None:
    events = [
        recordings.op("outer", 0, 100),
        recordings.op("inner", 10, 20),
        recordings.op("leaf", 12, 5),
        recordings.op("late", 30, 0),
        recordings.op("other", 40, 10),
    ]
    found = recordings.analysed(recordings.trace_file(tmp_path / "t.json", events))
    names = [found.events.names[code] for code in found.events.name]
    parent = {names[row]: names[p] if p >= 0 else "" for row, p in enumerate(found.tree.parent[:-1].tolist())}
    # "late" has no length and stands at the very end of "inner": whole microseconds hide that it lay inside.
    assert parent == {"outer": "", "inner": "outer", "leaf": "inner", "late": "inner", "other": "outer"}


def test_the_first_launch_with_an_id_wins_and_ids_may_be_text(tmp_path: Path) -> None:
    big = 2**63 + 5
    events = [
        recordings.call("cudaLaunchKernel", 5, 2, "11"),
        recordings.call("cudaLaunchKernel", 1, 2, 11),
        recordings.call("cudaLaunchKernel", 6, 1, big),
        recordings.call("cudaLaunchKernel", 7, 1, "abc"),
        recordings.kernel("a", 10, 5, 11),
        recordings.kernel("b", 20, 5, big),
        recordings.kernel("c", 30, 5, str(big)),
        recordings.kernel("d", 40, 5, "abc"),
        recordings.kernel("e", 50, 5, "abd"),
        recordings.kernel("f", 60, 5, None),
    ]
    found = recordings.analysed(recordings.trace_file(tmp_path / "t.json", events))
    launched = [int(found.events.start[row]) if row >= 0 else None for row in found.joined.launch_of.tolist()]
    assert launched == [1000, 6000, 6000, 7000, None, None]
    assert found.figures["orphan_kernels"] == 2


def test_an_external_id_must_prove_itself(tmp_path: Path) -> None:
    events = [
        recordings.op("right", 0, 10, **{"External id": 5}),
        recordings.op("elsewhere", 100, 10, **{"External id": 6}),
        recordings.call("cudaLaunchKernel", 2, 2, 1),
        recordings.call("cudaLaunchKernel", 5, 2, 2),
        recordings.kernel("a", 20, 5, 1, **{"External id": 5}),
        recordings.kernel("b", 30, 5, 2, **{"External id": 6}),
    ]
    found = recordings.analysed(recordings.trace_file(tmp_path / "t.json", events))
    rows = join.by_external_id(found.events, found.joined).tolist()
    assert [found.events.names[found.events.name[row]] if row >= 0 else None for row in rows] == ["right", None]
