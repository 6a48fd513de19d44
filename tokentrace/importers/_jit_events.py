"""What a compile log came to: phases of compiles and cache lookups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tokentrace.importers.columns import Lost

#: Events of one log; what comes after them is counted as lost.
LIMIT = 200_000


@dataclass(slots=True)
class JitEvent:
    """One phase of a compile, or one cache lookup (`result` hit, miss, bypass; no length unless known). ns, unix.

    `failure`: what kind of error it ended with, "" for none."""

    compiler: str
    name: str
    start_ns: int
    end_ns: int
    result: str = ""
    key: str = ""
    saved_ns: int = 0
    compile_id: str = ""
    reason: str = ""
    parent: int = -1
    resolution_ns: int = 1
    unfinished: bool = False
    failure: str = ""

    @property
    def span_name(self) -> str:
        if self.result:
            return f"cache {self.compiler} {self.result}"
        return f"compile {self.name}"

    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "tokentrace.jit.compiler": self.compiler,
            "tokentrace.duration_ns": self.end_ns - self.start_ns,
        }
        told = {
            "phase": self.name,
            "result": self.result,
            "key": self.key,
            "saved_ns": self.saved_ns,
            "compile_id": self.compile_id,
            "reason": self.reason,
            "unfinished": self.unfinished,
            "failure": self.failure,
        }
        for key, value in told.items():
            if value:
                found[f"tokentrace.jit.{key}"] = value
        if self.resolution_ns > 1:
            found["tokentrace.jit.resolution_ns"] = self.resolution_ns
        return found


@dataclass(slots=True)
class JitLog:
    """All events of one log; a parent stands before its children."""

    source: str
    kind: str
    events: list[JitEvent]
    lost: Lost = field(default_factory=Lost)
    notes: list[str] = field(default_factory=list)  # on what its times rest
