"""The small process that does the tracing, so that nothing that happens to tokentrace leaves a thread stopped.

It ignores the signals that end programs, is in a session of its own, and does one thing: read a request (JSON) from
standard input, inject, write the outcome (JSON) to standard output.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from tokentrace.attach.borrow import BorrowError, run_string


def main() -> None:
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(one, signal.SIG_IGN)
    request: dict[str, Any] = json.load(sys.stdin)
    try:
        done = run_string(
            request["pid"], request["started"], request["executable"], request["code"], request["timeout_s"]
        )
        answer: dict[str, Any] = {
            "ok": True,
            "thread": done.thread,
            "waited_in": done.waited_in,
            "held_ns": done.held_ns,
            "ran_ns": done.ran_ns,
            "left_bytes": done.left_bytes,
        }
    except BorrowError as error:
        answer = {"ok": False, "kind": error.kind, "message": str(error)}
    json.dump(answer, sys.stdout)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
