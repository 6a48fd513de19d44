"""The receiver: two doors on the loopback, and what came in by them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tokentrace.receive._ports import free_pair
from tokentrace.receive.spans import ReceivedSpan, read

#: Spans kept of one trace; one request of vLLM's has one.
MAX_SPANS = 1_000
#: One message, as gRPC's own limit.
MAX_BYTES = 4 * 2**20
#: OpenTelemetry's SDK sends every 5 s (OTEL_BSP_SCHEDULE_DELAY), and once more a second or two later when it found
#: nobody there at first.
PATIENCE_S = 12.0
REFUSAL = "tokentrace takes spans of the one request it has sent, and keeps no others"


class Receiver:
    """Takes spans of one trace, or of requests, by gRPC and by HTTP. A context manager; it listens from the beginning.

    `messages`: that came, readable or not. `refused`: spans of other traces, or beyond the bound. `unreadable`:
    messages that are no OTLP protobuf. `patience_s`: how long a request's spans are waited for. Made by `open`.
    """

    def __init__(self, *, grpc_port: int, http_port: int) -> None:
        self.messages = self.refused = self.unreadable = 0
        self.patience_s = PATIENCE_S
        self._wanted: int | None = 0
        self._spans: dict[int, ReceivedSpan] = {}
        self._changed = threading.Condition()
        self._stack = ExitStack()
        from tokentrace.receive._grpc import grpc_door
        from tokentrace.receive._http import http_door

        try:
            self.grpc_port = self._stack.enter_context(grpc_door(self.take, grpc_port, MAX_BYTES))
            self.http_port = self._stack.enter_context(http_door(self.take, self.unread, http_port, MAX_BYTES))
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening. What was received stays. Safe to call twice."""
        self._stack.close()

    @property
    def where(self) -> str:
        """Where it listens, for a sentence."""
        return f"127.0.0.1:{self.grpc_port} (gRPC) and :{self.http_port} (HTTP)"

    def expect(self, trace_id: int) -> None:
        """From now on take spans of this trace, and of no other; forget what came before."""
        self._expect(trace_id)

    def expect_requests(self) -> None:
        """From now on take the server's span of each request, whoever sent it, and no other; fetch them by `drain`."""
        self._expect(None)

    def _expect(self, wanted: int | None) -> None:
        with self._changed:
            self._wanted = wanted
            self._spans.clear()
            self.messages = self.refused = self.unreadable = 0

    def drain(self) -> list[ReceivedSpan]:
        """What was received since the last call, by end, and makes room for more."""
        with self._changed:
            found = sorted(self._spans.values(), key=lambda span: span.end_ns)
            self._spans.clear()
        return found

    def spans(self) -> list[ReceivedSpan]:
        """What was received so far, by start."""
        with self._changed:
            return sorted(self._spans.values(), key=lambda span: (span.start_ns, -span.end_ns))

    def take(self, body: bytes) -> int:
        """Called by the doors, on their threads: keep what is wanted, give the number that was refused.

        Raises ValueError when the message cannot be read.
        """
        with self._changed:
            wanted, room = self._wanted, MAX_SPANS - len(self._spans)
        try:
            found = read(body, wanted, room)
        except ValueError:
            self.unread()
            raise
        with self._changed:
            self.messages += 1
            if self._wanted != wanted:  # another trace is expected by now
                found.others += len(found.spans)
                found.spans = []
            for span in found.spans:
                self._spans.setdefault(span.span_id, span)  # a sender that heard no answer sends again
            self.refused += found.others
            self._changed.notify_all()
        return found.others

    def unread(self) -> None:
        """Called by the doors: a message came that cannot be read."""
        with self._changed:
            self.messages += 1
            self.unreadable += 1
            self._changed.notify_all()

    def wait(self, enough: Callable[[Sequence[ReceivedSpan]], bool], timeout_s: float, settle_s: float = 0.25) -> bool:
        """Until `enough(spans)` and then `settle_s` more, or for `timeout_s`; says whether it was enough."""
        deadline = time.monotonic() + timeout_s
        while not enough(self.spans()):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with self._changed:
                self._changed.wait(min(left, 1.0))
        time.sleep(settle_s)
        return True


def open(port: int) -> Receiver:
    """Listen on `port` of 127.0.0.1 for gRPC and on the next one for HTTP; 0: on any two.

    Raises UsageError when one of them is taken, with who has it and what to do then.
    """
    if port == 0:
        return Receiver(grpc_port=0, http_port=0)
    free_pair(port)
    return Receiver(grpc_port=port, http_port=port + 1)
