"""The columns of records: nothing is lost between threads, and writing makes no room."""

from __future__ import annotations

import sys
import threading
import weakref
from array import array
from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tokentrace.agent import control
from tokentrace.agent.core import Recorder, Records
from tokentrace.agent.stock import PIECE, Stock
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
            taken.extend(recorder.take(100).data)

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
    assert sorted(data["n"] for data in taken) == list(range(count * each))


def test_the_columns_are_made_beforehand_and_what_finds_no_room_is_counted() -> None:
    recorder = Recorder(limit=5)
    emit, sizes = recorder.emitter("g"), [sys.getsizeof(column) for column in recorder._stock.columns]
    for n in range(8):
        emit("x", n, n + 1, 7, {"n": n})
    taken = recorder.take(100)
    assert (taken.groups, taken.names, taken.threads) == (["g"] * 5, ["x"] * 5, [7] * 5)
    assert (taken.start_ns, taken.end_ns) == ([0, 1, 2, 3, 4], [1, 2, 3, 4, 5])
    assert taken.data == [{"n": n} for n in range(5)]
    assert recorder.dropped == 3
    emit("x", 9, 9, 0, {})
    assert recorder.take(100).start_ns == [9], "room was made by taking"
    assert [sys.getsizeof(column) for column in recorder._stock.columns] == sizes, "writing made none"


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
    assert len(recorder) == 100
    # The count itself is not atomic: it may miss one now and then, it never invents one.
    assert 0 < recorder.dropped <= each * count - 100


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
    assert set(recorder.take(10**6).names) <= {"late"}


def test_writers_of_a_recorder_that_is_closed_meanwhile_leave_nothing_and_raise_nothing() -> None:
    recorder, count, raised = Recorder(), 4, []
    under_way = threading.Barrier(count + 1)
    stop = threading.Event()

    def write() -> None:
        emit = recorder.emitter("g")
        under_way.wait()
        try:
            while not stop.is_set():
                emit("x", 1, 1, 0, {})
        except BaseException as error:  # noqa: BLE001 - any at all would have reached the host
            raised.append(error)

    threads = [threading.Thread(target=write) for _ in range(count)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        under_way.wait()
        recorder.close()
    finally:
        sys.setswitchinterval(switch)
        stop.set()
        for thread in threads:
            thread.join()
    assert not raised
    assert len(recorder) == 0 and all(column == [] for column in recorder._stock.columns)


class Kept:
    """What one row of a stock holds."""


class StockAgainstAQueue(RuleBasedStateMachine):
    """A stock does what a bounded queue does, lets go what has left it, and makes room only when it is asked to."""

    @initialize(places=st.integers(0, 6), more=st.integers(0, 5000))
    def begin(self, places: int, more: int) -> None:
        self.stock, self.queue, self.number = Stock(2, places, places + more), deque[int](), 0
        self.seen: dict[int, weakref.ref[Kept]] = {}

    @rule()
    def write(self) -> None:
        kept = Kept()
        self.number += 1
        try:
            at = self.stock.free.pop()
        except IndexError:
            assert len(self.queue) == self.stock.places
            return
        self.stock.columns[0][at] = self.number
        self.stock.columns[1][at] = kept
        self.stock.ready.append(at)
        self.queue.append(self.number)
        self.seen[self.number] = weakref.ref(kept)

    @rule(most=st.integers(1, 9))
    def take(self, most: int) -> None:
        numbers, held = self.stock.take(most)
        expected = [self.queue.popleft() for _ in range(min(most, len(self.queue)))]
        assert numbers == expected and [self.seen[n]() for n in numbers] == held

    @rule()
    def clear(self) -> None:
        assert self.stock.clear() == len(self.queue)
        self.queue.clear()

    @rule()
    def grow(self) -> None:
        before = self.stock.places
        self.stock.grow()
        assert before <= self.stock.places <= self.stock.limit

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "stock"):
            assert len(self.stock) == len(self.queue)
            assert len(self.stock.free) + len(self.queue) == self.stock.places
            assert {number for number, ref in self.seen.items() if ref() is not None} == set(self.queue)


TestStockAgainstAQueue = StockAgainstAQueue.TestCase


@given(sizes=st.lists(st.one_of(st.none(), st.integers(0, 5000)), max_size=control.CHUNK))
def test_no_piece_of_json_has_more_than_one_prompts_ids_too_many(sizes: list[int | None]) -> None:
    """One call makes the JSON of a piece, and holds the interpreter for as long."""
    ids = list(range(5000))
    data = [{"n": n} if size is None else {"n": n, "ids": ids[:size]} for n, size in enumerate(sizes)]
    numbers = list(range(len(data)))
    records = Records(["g"] * len(data), [f"r{n}" for n in numbers], numbers, [n + 1 for n in numbers], numbers, data)
    messages = list(control.messages(records))
    assert [one for header, _ in messages for one in header["data"]] == data
    assert [name for header, _ in messages for name in header["names"]] == records.names
    for header, blob in messages:
        here = [one["n"] for one in header["data"]]
        assert list(array("q", blob)) == [*here, *(n + 1 for n in here), *here]
        *before, _ = (len(one.get("ids", ())) for one in header["data"])
        assert sum(before) < control.IDS
