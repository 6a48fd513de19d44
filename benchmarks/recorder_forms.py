"""The ways of keeping records that recorder.py measures against each other."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tokentrace.agent import control, core

Write = Callable[[str, int, int, int, dict[str, Any]], None]


class Form(Protocol):
    """One way of keeping records."""

    def writer(self) -> Write:
        """What the hooks call."""

    def hand_over(self) -> Iterator[int]:
        """Make bytes of all records; gives the bytes of each piece. Between two pieces the interpreter is let go."""

    def clear(self) -> None: ...


def message(rows: Any) -> int:
    return len(control.packed({"push": "records", "rows": rows}))


class AgentForm:
    """The agent's own: preallocated columns that are lists. Times and threads leave as bytes, the rest as JSON."""

    def __init__(self, limit: int) -> None:
        self.recorder = core.Recorder(limit)

    def writer(self) -> Write:
        return self.recorder.emitter("tokenizer")

    def hand_over(self) -> Iterator[int]:
        while (records := self.recorder.take(control.CHUNK)).data:
            for header, blob in control.messages(records):
                yield len(control.packed(header)) + len(blob)

    def clear(self) -> None:
        self.recorder.clear()


class TuplesForm:
    """One tuple a record in a bounded deque; nothing is made beforehand."""

    def __init__(self, limit: int) -> None:
        self.limit, self.dropped = limit, 0
        self.rows: deque[Any] = deque()

    def writer(self) -> Write:
        rows, append = self.rows, self.rows.append

        def write(name: str, start_ns: int, end_ns: int, thread: int, data: dict[str, Any]) -> None:
            if len(rows) < self.limit:
                append(("tokenizer", name, start_ns, end_ns, thread, data))
            else:
                self.dropped += 1

        return write

    def hand_over(self) -> Iterator[int]:
        take = self.rows.popleft
        while rows := [take() for _ in range(min(control.CHUNK, len(self.rows)))]:
            yield message(rows)

    def clear(self) -> None:
        self.rows.clear()


class RowsForm:
    """A stock of rows; popping one and appending it to the ready ones are atomic, so no lock is needed."""

    def __init__(self, limit: int) -> None:
        self.free: list[list[Any]] = [[None] * 6 for _ in range(limit)]
        self.ready: list[list[Any]] = []
        self.dropped = 0

    def writer(self) -> Write:
        take, done = self.free.pop, self.ready.append

        def write(name: str, start_ns: int, end_ns: int, thread: int, data: dict[str, Any]) -> None:
            try:
                row = take()
            except IndexError:
                self.dropped += 1
                return
            row[0] = "tokenizer"
            row[1] = name
            row[2] = start_ns
            row[3] = end_ns
            row[4] = thread
            row[5] = data
            done(row)

        return write

    def hand_over(self) -> Iterator[int]:
        while rows := self.ready[: control.CHUNK]:
            del self.ready[: len(rows)]
            yield message(rows)
            for row in rows:
                row[5] = None
            self.free.extend(rows)

    def clear(self) -> None:
        for row in self.ready:
            row[5] = None
        self.free.extend(self.ready)
        self.ready.clear()


class ArraysForm:
    """The same with columns instead of rows, numbers in an `array`."""

    def __init__(self, limit: int) -> None:
        self.start, self.end, self.thread = (array("q", bytes(8 * limit)) for _ in range(3))
        self.name = array("h", bytes(2 * limit))
        self.data: list[Any] = [None] * limit
        self.free = list(range(limit))
        self.ready: list[int] = []
        self.names: dict[str, int] = {}
        self.dropped = 0

    def writer(self) -> Write:
        take, done = self.free.pop, self.ready.append
        start, end, threads, names, kept, codes = self.start, self.end, self.thread, self.name, self.data, self.names

        def write(name: str, start_ns: int, end_ns: int, thread: int, data: dict[str, Any]) -> None:
            try:
                at = take()
            except IndexError:
                self.dropped += 1
                return
            start[at] = start_ns
            end[at] = end_ns
            threads[at] = thread
            if name not in codes:
                codes[name] = len(codes)
            names[at] = codes[name]
            kept[at] = data
            done(at)

        return write

    def hand_over(self) -> Iterator[int]:
        while places := self.ready[: control.CHUNK]:
            del self.ready[: len(places)]
            numbers = [
                array("q", map(one.__getitem__, places)).tobytes() for one in (self.start, self.end, self.thread)
            ]
            names = array("h", map(self.name.__getitem__, places)).tobytes()
            yield message(list(map(self.data.__getitem__, places))) + len(b"".join((*numbers, names)))
            for at in places:
                self.data[at] = None
            self.free.extend(places)

    def clear(self) -> None:
        for at in self.ready:
            self.data[at] = None
        self.free.extend(self.ready)
        self.ready.clear()


class SdkForm:
    """What a program does that traces with the SDK. Its exporter runs on the processor's own thread; `hand_over` waits
    for it, and what that thread spent is counted by the exporter."""

    def __init__(self, limit: int) -> None:
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

        form = self
        self.spent: list[int] = []  # ns of CPU for each batch
        self.sizes: list[int] = []

        class Exporter(SpanExporter):
            def export(self, spans: Any) -> SpanExportResult:
                before = time.thread_time_ns()
                size = len(encode_spans(spans).SerializeToString())
                form.spent.append(time.thread_time_ns() - before)
                form.sizes.append(size)
                return SpanExportResult.SUCCESS

        self.provider = TracerProvider(shutdown_on_exit=False)
        # Batches of the usual size; none leaves by the clock here.
        self.processor = BatchSpanProcessor(
            Exporter(), max_queue_size=limit, schedule_delay_millis=1e7, max_export_batch_size=512
        )
        self.provider.add_span_processor(self.processor)
        self.tracer = self.provider.get_tracer("benchmark")

    def writer(self) -> Write:
        begin = self.tracer.start_span

        def write(name: str, start_ns: int, end_ns: int, thread: int, data: dict[str, Any]) -> None:
            begin(name, attributes=data, start_time=start_ns).end(end_ns)

        return write

    def hand_over(self) -> Iterator[int]:
        self.processor.force_flush()
        sizes, self.sizes = self.sizes, []
        yield from sizes

    def clear(self) -> None:
        self.processor.force_flush()
        self.spent.clear()
        self.sizes.clear()


FORMS: dict[str, Callable[[int], Form]] = {
    "agent": AgentForm,
    "tuples": TuplesForm,
    "rows": RowsForm,
    "arrays": ArraysForm,
    "sdk": SdkForm,
}
