"""A program that knows nothing of tokentrace, for tests that look into it: python live_program.py MODE

Prints "ready", works until it gets SIGTERM, then prints one line of JSON: what it computed and what it found changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import signal
import sys
import threading
import time
from typing import Any

stop = threading.Event()
rounds = wrong = 0
checksum: float | None = None


def compute() -> None:
    """The same sum again and again, in registers most of the time: any difference is a register that was not kept."""
    global rounds, wrong, checksum
    while not stop.is_set():
        total = 0.0
        for number in range(1, 5000):
            total += math.sin(number) * 1.000001 / number
        if checksum is None:
            checksum = total
        rounds += 1
        wrong += total != checksum


def tensors() -> None:
    import torch

    global rounds, wrong
    left = torch.linspace(-1, 1, 128 * 128).reshape(128, 128)
    first = (left @ left).sin().sum().item()
    while not stop.is_set():
        rounds += 1
        wrong += (left @ left).sin().sum().item() != first


def in_extension() -> None:
    """Long calls that have released the interpreter's lock."""
    global rounds, wrong
    first = hashlib.pbkdf2_hmac("sha256", b"a", b"b", 20000)
    while not stop.is_set():
        rounds += 1
        wrong += hashlib.pbkdf2_hmac("sha256", b"a", b"b", 20000) != first


def stalled() -> None:
    """Holds the interpreter's lock for more than a second at a time: one call that never looks up."""
    global rounds
    length, took = 10**6, 0.0
    while took < 1.0:  # how long a call takes so long is the machine's own
        length *= 2
        before = time.perf_counter()
        sum(range(length))
        took = time.perf_counter() - before
    rounds += 1
    while not stop.is_set():
        sum(range(length))
        time.sleep(0.2)


def reading() -> None:
    """Waits for input that never comes."""
    os.read(os.pipe()[0], 1)


async def serve() -> None:
    """An event loop with a timer: how late the timer comes is what a pause would show."""
    global rounds
    while not stop.is_set():
        await asyncio.sleep(0.02)
        rounds += 1


def sleep() -> None:
    global rounds
    while not stop.is_set():
        time.sleep(0.02)
        rounds += 1


WORK: dict[str, list[Any]] = {
    "computing": [compute, compute],
    "tensors": [tensors, tensors],
    "extension": [in_extension],
    "stalled": [stalled, reading],
    "sleeping": [],
    "waiting": [],
}


def main(mode: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    workers = [threading.Thread(target=work, daemon=True) for work in WORK[mode]]
    for worker in workers:
        worker.start()
    if mode in ("tensors", "stalled"):
        while rounds == 0:
            time.sleep(0.01)
    finders, threads = list(sys.meta_path), threading.active_count()
    names = set(globals())
    print("ready", flush=True)
    asyncio.run(serve()) if mode == "waiting" else sleep()
    for worker, work in zip(workers, WORK[mode], strict=True):
        worker.join(60 if work is not reading else 0)
    left = [name for name in sys.modules if "tokentrace" in name]
    found = {
        "rounds": rounds,
        "wrong": wrong,
        "modules": left,
        "finders": sys.meta_path == finders,
        "threads": threading.active_count() - threads + sum(not one.is_alive() for one in workers),
        "names": sorted(set(globals()) - names),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
