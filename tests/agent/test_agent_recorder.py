"""The list of records: nothing is lost between threads, and it does not grow without end."""

from __future__ import annotations

import sys
import threading
from typing import Any

from tokentrace.agent.core import Recorder
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
