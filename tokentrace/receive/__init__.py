"""Receive what a server tells of our own request over OTLP, for as long as that request lasts.

    with receive.open(4317) as receiver:            gRPC on 127.0.0.1:4317, HTTP on 127.0.0.1:4318
        receiver.expect(trace_id)                   before: nothing is taken
        ...send the request with that trace id...
        receiver.wait(lambda spans: bool(spans))

No collector: it takes spans of the one trace that it was told to expect (or, to watch, the server's span of each
request), a bounded number of them, and refuses all others without keeping anything. It listens on the loopback only.
"""

from __future__ import annotations

from tokentrace.receive.join import add_account
from tokentrace.receive.receiver import Receiver, open
from tokentrace.receive.spans import ReceivedSpan

__all__ = ["GRPC_PORT", "ReceivedSpan", "Receiver", "add_account", "open"]

#: OTLP's registered port for gRPC, which vLLM's flag uses unless told otherwise; HTTP's is the next one.
GRPC_PORT = 4317
