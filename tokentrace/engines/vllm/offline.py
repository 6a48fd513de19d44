"""vLLM without a server: `LLM(...).generate([...])` in this process, with the engine and the workers in children.

    with Offline() as vllm:
        LLM(...).generate(["Hi"])
    vllm.agent.records("engine")

The children load tokentrace as a plugin of vLLM and wait, each at a socket whose name says its pid. A thread looks for
them while the block runs, so that it does not matter whether `LLM` is made before the block or in it. Where tokentrace
is already asked through an agent of this process (`tokentrace.trace`), `Children` adds the children to that group.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tokentrace.agent_client import AgentClient, AgentGroup
from tokentrace.errors import EngineError, TokentraceError

LOOK_S = 0.1
ASK_AGAIN_S = 1.0
GROUPS = ("tokenizer", "engine", "model", "jit")


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


class Offline:
    """See the module's docstring. `deep`: parts of the model and operators too, of `steps` steps."""

    def __init__(self, *, deep: bool = False, with_text: bool = True, steps: int = 3) -> None:
        self._groups: dict[str, dict[str, Any]] = {name: {} for name in GROUPS}
        self._groups["tokenizer"] = {"text": with_text}
        if deep:
            self._groups.update(modules={}, ops={"steps": steps})
        self._agent: AgentGroup | None = None
        self._children: Children | None = None

    @property
    def agent(self) -> AgentGroup:
        """What was recorded, of all processes."""
        assert self._agent is not None, "the block has not begun"
        return self._agent

    @property
    def notes(self) -> list[str]:
        return self._children.notes if self._children is not None else []

    def __enter__(self) -> Offline:
        """Raises EngineError when the agent of this process serves somebody else."""
        own = AgentClient.connect(_own_agent(), timeout_s=5.0)
        self._agent = AgentGroup([own])
        self._agent.begin_pass()
        for name, options in self._groups.items():
            self._agent.want(name, options)
        self._children = Children(self._agent)
        self._children.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._agent is not None and self._children is not None
        self._children.stop()
        for name in reversed(list(self._groups)):
            self._agent.disable(name)
        self._agent.end_pass()
        for name in self._groups:
            self._agent.records(name)  # decoded now, before the connections go
        self._agent.close()


def _own_agent() -> str:
    """The socket of this process's agent, which is started if need be and stays, asleep."""
    from tokentrace import agent
    from tokentrace.agent.together import vllm_operators, with_vllm

    running = agent.running()
    if running is not None:
        return running.path
    template = socket_template()
    agent.start(template)
    # Known before vLLM is loaded: they wait for it.
    waiting = with_vllm(dict.fromkeys(("tokenizer", "engine", "model", "modules"), _Nothing))
    agent.replace_groups({**waiting, "ops": vllm_operators})
    return template.replace("{pid}", str(os.getpid()))


class _Nothing:
    """A group without anything to watch, where only vLLM's part is wanted."""

    def enable(self, recorder: Any, options: Any = None) -> None:
        return

    def disable(self) -> None:
        return


def _children(pid: int) -> list[int]:
    import psutil

    with contextlib.suppress(psutil.Error):
        return [one.pid for one in psutil.Process(pid).children(recursive=True)]
    return []
