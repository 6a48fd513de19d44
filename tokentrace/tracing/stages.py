"""The stages of a block: what a program says that it is doing. Each is one span, which holds its calls and the stages
inside it.

A stage reaches what runs in its context: the lines inside its `with`, and the tasks they begin. A thread that they
begin has a context of its own (before Python 3.14). What such a thread asks for is of the one stage that is open; where
several are, nobody knows.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from tokentrace.stitch import Group

BY_TIME = "it came from a thread that no stage's context reaches; it is named after the only stage that was open"
#: Of a call that is heard of only when it is over, as vLLM's in its engine's process.
BY_LINE = "what asked for it was not seen, only when; it is named after the innermost stage that was open then"


@dataclass(slots=True, eq=False)
class Stage:
    """One run through a `with trace.stage(...)`. Times in ns; `end_ns` 0 while it is open."""

    name: str
    above: Stage | None
    start_ns: int
    thread: int  # the system's id
    end_ns: int = 0
    left_with: str = ""  # the kind of error that ended it
    left_open: bool = False

    @property
    def line(self) -> list[Stage]:
        """This one and those around it, the innermost first."""
        found = [self]
        while found[-1].above is not None:
            found.append(found[-1].above)
        return found


class Stages:
    """The stages of one block, in the order in which they began."""

    def __init__(self) -> None:
        self.all: list[Stage] = []
        self._here: ContextVar[Stage | None] = ContextVar(f"tokentrace_stage_{id(self)}", default=None)
        self._mutex = threading.Lock()

    @contextlib.contextmanager
    def run(self, name: str) -> Iterator[None]:
        """Open for the lines inside. Their error is noted by its kind and goes on."""
        stage = Stage(name, self._here.get(), time.time_ns(), threading.get_native_id())
        with self._mutex:
            self.all.append(stage)
        token = self._here.set(stage)
        try:
            yield
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                stage.left_with = type(error).__name__
            raise
        finally:
            if not stage.end_ns:  # else the block has ended before it
                stage.end_ns = max(time.time_ns(), stage.start_ns)
            with contextlib.suppress(ValueError):  # a generator may be closed in another context than it was begun in
                self._here.reset(token)

    def current(self) -> Stage | None:
        """Of the context that asks."""
        return self._here.get()

    def only_open(self) -> Stage | None:
        """For a thread that no context reaches: the stage that is open now, if there is exactly one."""
        with self._mutex:
            found = [stage for stage in self.all if not stage.end_ns]
        return found[0] if len(found) == 1 else None

    def at(self, time_ns: int, thread: int) -> tuple[Stage | None, str]:
        """For a call whose context is not known: the innermost stage of this thread (the system's id, 0 unknown) then;
        where none is of this thread, the innermost of all, and that it is known by time only. None where no stage was
        open, or several that do not lie in each other."""
        open_then = [one for one in self.all if one.start_ns <= time_ns <= one.end_ns]
        here = [one for one in open_then if one.thread == thread]
        stage = _innermost(here or open_then)
        return stage, BY_LINE if stage is not None and not here else ""

    def end(self, now_ns: int) -> None:
        """The block has ended: so have its stages."""
        with self._mutex:
            for stage in self.all:
                if not stage.end_ns:
                    stage.end_ns, stage.left_open = max(now_ns, stage.start_ns), True

    def groups(self) -> list[Group]:
        """As `stitch` takes them, in the order of `all`."""
        place = {stage: number for number, stage in enumerate(self.all)}
        return [
            Group(
                stage.name,
                stage.start_ns,
                stage.end_ns,
                -1 if stage.above is None else place[stage.above],
                {"tokentrace.notes": ["it was still open when the trace ended"]} if stage.left_open else {},
                f"the program left it with {stage.left_with}" if stage.left_with else "",
            )
            for stage in self.all
        ]


def _innermost(found: list[Stage]) -> Stage | None:
    """Of stages in the order in which they began; None unless each lies in the one before it."""
    return found[-1] if found and set(found) <= set(found[-1].line) else None
