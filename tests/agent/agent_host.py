"""A program with the agent in it, for tests that need a process of its own: calls `work` until told to stop.

python agent_host.py SOCKET        prints "ready", then works; "fork" on stdin makes a child
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from tokentrace import agent
from tokentrace.agent import core
from tokentrace.agent.wrap import Hook, HookGroup


def work(number: int) -> int:
    time.sleep(0.001)
    return number + 1


_AS_IT_WAS = work


class Worker:
    def turn(self, number: int) -> int:
        return number * 2


_TURN = vars(Worker)["turn"]


class WorkGroup(HookGroup):
    """Records each call of `work` with its number, and offers one column of as many numbers."""

    needed = (f"{__name__}:work",)

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []
        self.under_way: list[str] = []

    def hooks(self) -> list[Hook]:
        return [Hook(f"{__name__}:work", self._worked), Hook(f"{__name__}:Worker.turn", self._worked)]

    def _worked(self, start: int, end: int, args: Any, kwargs: Any, result: Any, error: Any, context: Any) -> None:
        self.numbers.append(args[-1])
        self.emit("work", start, end, threading.get_native_id(), {"number": args[-1], "result": result})

    def open(self) -> list[str]:
        return list(self.under_way)

    def bulk(self) -> list[tuple[dict[str, Any], dict[str, tuple[str, bytes]]]]:
        from array import array

        numbers, self.numbers = self.numbers, []
        column = array("q", numbers)
        return [
            ({"what": "numbers"}, {"start_ns": ("q", column.tobytes()), "small": ("i", array("i", numbers).tobytes())})
        ]


def main(path: str) -> None:
    agent.register_group("work", WorkGroup)
    agent.start(path)
    core.here.thread  # noqa: B018 - known in the parent, for the child to be told apart
    threading.Thread(target=_work_on, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "fork":
            parent = os.getpid()
            child = os.fork()
            if child == 0:
                here = agent.running()
                own = core.here.thread == threading.get_native_id()
                print("child", os.getpid(), here.path if here else "none", _functions(), own, flush=True)
                while here and os.getppid() == parent:  # for as long as anybody may want to ask it
                    time.sleep(0.05)
                os._exit(0)
            os.waitpid(child, os.WNOHANG)
        if line.strip() == "state":
            here = agent.running()
            assert here is not None
            print(_functions(), len(here.recorder), len(here.groups), flush=True)


def _functions() -> str:
    """ "plain" when the functions are the very objects that they were at the start."""
    module = sys.modules["agent_host"]
    same = module.work is module._AS_IT_WAS and vars(module.Worker)["turn"] is module._TURN
    return "plain" if same else "wrapped"


def _work_on() -> None:
    number = 0
    while True:
        number = sys.modules["agent_host"].work(number)


if __name__ == "__main__":
    import agent_host  # the hooks look the functions up by this module's name

    agent_host.main(sys.argv[1])
