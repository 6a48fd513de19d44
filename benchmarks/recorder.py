"""What one record costs the process it is made in, for several ways of keeping records, in one run.

    python benchmarks/recorder.py [--rounds 7] [--records 40000] [--heap 2000000] [--json]

    agent       the agent's own recorder (tokentrace.agent.core): preallocated columns that are lists
    tuples      a tuple a record in a bounded deque, nothing preallocated
    rows        preallocated rows of six fields, written in place and used again
    arrays      preallocated columns: array('q') for times and threads, array('h') for names, a list for the rest
    sdk         the OpenTelemetry SDK: a span, BatchSpanProcessor, and an exporter that makes OTLP bytes

All of them write the same record, one token's, with the four facts that the agent writes of it, into a process that has
a heap as large as a serving process's (--heap tracked objects), because the garbage collector passes over it. The forms
take turns in random order; each figure is CPU time of the thread that writes (a machine's other programs do not count)
as a ratio to `agent`, the median of the rounds, with their middle half. Printed are:

    record      the writer's cost with the collector on, records being taken away as the agent takes them
    collector   how much of that was the garbage collector
    full        the same while nobody takes them away: all records of the round stay
    bytes       memory that one kept record takes (and what is taken before the first one)
    followed    objects of one kept record that the garbage collector goes on following: a quarter of the heap's number
                of them brings on a collection of the whole heap (Python up to 3.13)
    hand over   the cost of taking a record away and making bytes of it, on another thread of the same process
    both        record and hand over: what the process pays for a record
    hold        the longest time that it kept the interpreter without letting go, in one piece
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from recorder_forms import FORMS, Form, SdkForm, Write

#: Records that are there when the agent comes to take them: its period, times a busy server's rate.
WAITING = 500
T0 = 1_790_000_000_000_000_000
RATIOS = ("record", "full", "hand over", "both")


class Collections:
    """CPU time that the garbage collector takes on the threads of this process."""

    def __init__(self) -> None:
        self.spent_ns = self._began = 0
        gc.callbacks.append(self._told)

    def _told(self, phase: str, info: Any) -> None:
        if phase == "start":
            self._began = time.thread_time_ns()
        else:
            self.spent_ns += time.thread_time_ns() - self._began


def write_many(write: Write, first: int, count: int) -> None:
    rid = f"chatcmpl-{first:08x}"
    for number in range(first, first + count):
        at = T0 + number
        write("decode", at, at + 20_000, 4711, {"rid": rid, "index": number, "id": 17, "chars": 5})


def cost(form: Form, records: int, collections: Collections, *, taken_away: bool) -> tuple[float, float, list[int]]:
    """(the writer's ns a record, of these the collector's, ns of CPU of each piece handed over)."""
    write = form.writer()
    gc.collect()
    collector = spent = 0
    pieces: list[int] = []
    for first in range(0, records, WAITING):
        in_collector, before = collections.spent_ns, time.thread_time_ns()
        write_many(write, first, WAITING)
        spent += time.thread_time_ns() - before
        collector += collections.spent_ns - in_collector
        if taken_away:
            pieces += handed_over(form)
    form.clear()
    return spent / records, collector / records, pieces


def handed_over(form: Form) -> list[int]:
    """ns of CPU of each piece."""
    if isinstance(form, SdkForm):
        for _ in form.hand_over():
            pass
        spent, form.spent = form.spent, []
        return spent
    pieces = []
    before = time.thread_time_ns()
    for _ in form.hand_over():
        now = time.thread_time_ns()
        pieces.append(now - before)
        before = now
    return [*pieces, time.thread_time_ns() - before]


def memory(make: Callable[[int], Form], records: int) -> tuple[float, float, float]:
    """(bytes of one kept record, bytes taken before the first of them, objects of one kept record that the collector
    goes on following)."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    form = make(records)
    made = tracemalloc.get_traced_memory()[0]
    gc.collect()
    followed = len(gc.get_objects())
    if isinstance(form, SdkForm):
        form.processor.shutdown()  # type: ignore[no-untyped-call]  # nothing is to be taken away meanwhile
        write_kept: list[Any] = []
        begin = form.tracer.start_span
        for number in range(records):
            span = begin("decode", attributes={"rid": "chatcmpl-0", "index": number, "id": 17, "chars": 5})
            span.end()
            write_kept.append(span)
        made = before
    else:
        write_many(form.writer(), 0, records)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    gc.collect(0)
    gc.collect(1)
    return (after - made) / records, float(made - before), (len(gc.get_objects()) - followed) / records


def middle(values: list[float]) -> tuple[float, float, float]:
    low, high = (statistics.quantiles(values, n=4)[i] for i in (0, 2)) if len(values) > 1 else (values[0], values[0])
    return statistics.median(values), low, high


def measure(rounds: int, records: int, heap: int) -> dict[str, dict[str, Any]]:
    memories = {name: memory(make, 10_000) for name, make in FORMS.items()}
    ballast = [[number] for number in range(heap)]  # tracked: a list is
    gc.collect()
    collections = Collections()
    gc.collect()
    whole_ms = collections.spent_ns / 1e6
    forms = {name: make(max(records, 100_000)) for name, make in FORMS.items()}
    found: dict[str, dict[str, list[float]]] = {
        name: {what: [] for what in ("record", "collector", "full", "hand over", "both", "hold")} for name in FORMS
    }
    order = list(FORMS)
    for number in range(-1, rounds):
        random.shuffle(order)
        for name in order:
            form, row = forms[name], found[name]
            spent, collector, pieces = cost(form, records, collections, taken_away=True)
            full = cost(form, records, collections, taken_away=False)[0] if name != "sdk" else float("nan")
            if number < 0:
                continue  # the first round warms up
            row["record"].append(spent)
            row["collector"].append(collector)
            row["full"].append(full)
            row["hand over"].append(sum(pieces) / records)
            row["both"].append(spent + row["hand over"][-1])
            row["hold"].append(max(pieces) / 1e6)
        print(f"round {max(0, number + 1)} of {rounds}", file=sys.stderr)
    del ballast
    told: dict[str, dict[str, Any]] = {}
    for name, row in found.items():
        told[name] = {}
        for what in RATIOS:
            each = [a / b for a, b in zip(row[what], found["agent"][what], strict=True)]
            told[name][what] = middle(each)
        told[name]["collector"] = statistics.median(a / b for a, b in zip(row["collector"], row["record"], strict=True))
        told[name]["hold_ms"] = statistics.median(row["hold"])
        told[name]["ns"] = statistics.median(row["record"])
        told[name]["both_ns"] = statistics.median(row["both"])
        told[name]["bytes"], told[name]["bytes_before"], told[name]["followed"] = memories[name]
        told[name]["whole_collection_ms"] = whole_ms
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--heap", type=int, default=2_000_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    asked = parser.parse_args()
    told = measure(asked.rounds, asked.records, asked.heap)
    if asked.json:
        print(json.dumps(told))
        return
    print(f"Python {sys.version.split()[0]}, {asked.rounds} rounds of {asked.records:,} records, "
          f"{asked.heap:,} tracked objects in the heap\n")  # fmt: skip
    print("          record              collector  full                hand over           both                "
          "hold      bytes (before)    followed")  # fmt: skip
    for name, row in told.items():
        ratios = {what: "{:5.2f} ({:.2f}-{:.2f})".format(*row[what]) for what in RATIOS}
        print(
            f"{name:9} {ratios['record']:19} {row['collector']:7.0%}    {ratios['full']:19} "
            f"{ratios['hand over']:19} {ratios['both']:19} {row['hold_ms']:6.2f} ms {row['bytes']:5.0f} "
            f"({row['bytes_before'] / 1e6:4.1f} MB)   {row['followed']:.1f}"
        )
    print(f"\nagent: record = 1 is {told['agent']['ns']:.0f} ns of CPU on this machine, both = 1 "
          f"{told['agent']['both_ns']:.0f} ns;\n"
          f"one whole collection of this heap {told['agent']['whole_collection_ms']:.0f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
