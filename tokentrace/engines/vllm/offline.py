"""vLLM without a server: `LLM(...).generate([...])` in a program, with the engine and the workers in its children.

The children load tokentrace as a plugin of vLLM and wait, each at a socket whose name says its pid. A thread looks for
them while a trace is open, so that it does not matter whether `LLM` is made before the block or in it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from tokentrace.agent_client import AgentClient, AgentGroup
from tokentrace.errors import EngineError, TokentraceError

LOOK_S = 0.1
ASK_AGAIN_S = 1.0


def socket_template() -> str:
    """Where the agent of this process listens, and those of the processes that it forks ("{pid}" is the number)."""
    from tokentrace.agent.plugin import private_folder

    return str(private_folder() / "agent-{pid}.sock")


class Children:
    """Adds the agents of this process's children to a group as they appear: `start`, then `stop`."""

    def __init__(self, group: AgentGroup) -> None:
        self._group = group
        self._template = socket_template()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._refused: dict[int, str] = {}
        #: What the block's maker should tell: agents that could not be talked to.
        self.notes: list[str] = []

    def start(self) -> None:
        self._look()  # those that are there already are with us from the first moment
        self._thread = threading.Thread(target=self._run, name="tokentrace-children", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(5.0)
        self.notes = [f"process {pid} is not watched: {why}" for pid, why in sorted(self._refused.items())]

    def _run(self) -> None:
        asked = time.monotonic()
        while not self._over.wait(LOOK_S):
            # Nothing of ours may end the program's own work; what is not found now is found next time.
            with contextlib.suppress(Exception):
                self._look()
                if time.monotonic() - asked >= ASK_AGAIN_S:
                    asked = time.monotonic()
                    self._group.ask_again()

    def _look(self) -> None:
        have = {client.process for client in self._group.members}
        for pid in _children(os.getpid()):
            path = self._template.replace("{pid}", str(pid))
            if str(pid) in have or not Path(path).exists():
                continue
            try:
                self._group.add(AgentClient.connect(path, timeout_s=1.0))
                self._refused.pop(pid, None)
            except (EngineError, TokentraceError) as error:
                self._refused[pid] = str(error)


def _children(pid: int) -> list[int]:
    import psutil

    with contextlib.suppress(psutil.Error):
        return [one.pid for one in psutil.Process(pid).children(recursive=True)]
    return []
