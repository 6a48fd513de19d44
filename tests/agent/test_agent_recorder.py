"""The queue of records: nothing is lost between threads, and it does not grow without end."""

from __future__ import annotations

import sys
import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tokentrace.agent import control
from tokentrace.agent.core import PIECE, Recorder
from tokentrace.agent.wrap import Hook


class Host:
    def method(self, n: int) -> int:
        return n


def test_no_record_of_many_threads_is_lost_or_doubled_while_another_takes_them() -> None:
    recorder, taken, stop = Recorder(), [], threading.Event()
    emit = recorder.emitter("g")

    def after(start: int, end: int, args: Any, kwargs: Any, result: Any, error: Any, context: Any) -> None:
        emit("method", start, end, threading.get_native_id(), {"n": args[0]})

    def take() -> None:
        while not stop.is_set() or len(recorder):
            taken.extend(recorder.take(100))

    host, count, each = Host(), 6, 3000
    hook = Hook("method", after, owner=host)
    hook.install()
    reader = threading.Thread(target=take)
    workers = [
        threading.Thread(target=lambda base=base: [host.method(base * each + i) for i in range(each)])
        for base in range(count)
    ]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in (reader, *workers):
            thread.start()
        for thread in workers:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
        stop.set()
        reader.join()
        hook.restore()
    assert sorted(row[5]["n"] for row in taken) == list(range(count * each))


def test_the_buffer_is_bounded_and_counts_what_it_refused() -> None:
    recorder = Recorder(limit=5)
    emit = recorder.emitter("g")
    for n in range(8):
        emit("x", n, n, 0, {})
    assert [row[2] for row in recorder.take(100)] == [0, 1, 2, 3, 4] and recorder.dropped == 3
    emit("x", 9, 9, 0, {})
    assert len(recorder) == 1, "room was made by taking"


def test_many_writers_at_the_bound_do_not_make_it_grow() -> None:
    recorder, each, count = Recorder(limit=100), 500, 4
    start = threading.Barrier(count)

    def write() -> None:
        emit = recorder.emitter("g")
        start.wait()
        for n in range(each):
            emit("x", n, n, 0, {})

    threads = [threading.Thread(target=write) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Each of them may have looked just before another one took the last place.
    assert 100 <= len(recorder) < 100 + count
    assert 0 < recorder.dropped <= each * count - len(recorder)


def test_forgetting_ends_also_when_somebody_goes_on_writing() -> None:
    recorder = Recorder()
    emit, stop = recorder.emitter("g"), threading.Event()
    for n in range(2 * PIECE + 5):
        emit("x", n, n, 0, {})

    def write() -> None:
        while not stop.wait(0.0001):
            emit("late", 1, 1, 0, {})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert recorder.clear() >= 2 * PIECE + 5
    finally:
        stop.set()
        thread.join()
    assert {row[1] for row in recorder.take(10**6)} <= {"late"}


@given(sizes=st.lists(st.one_of(st.none(), st.integers(0, 5000)), max_size=control.CHUNK))
def test_no_piece_of_json_has_more_than_one_prompts_ids_too_many(sizes: list[int | None]) -> None:
    """One call makes the JSON of a piece, and holds the interpreter for as long."""
    ids = list(range(5000))
    rows = [("g", str(n), n, n, 0, {} if size is None else {"ids": ids[:size]}) for n, size in enumerate(sizes)]
    pieces = list(control.pieces(rows))
    assert [row for piece in pieces for row in piece] == rows
    for piece in pieces:
        *before, _ = (len(row[5].get("ids", ())) for row in piece)
        assert sum(before) < control.IDS
