"""Attach: look into a server that somebody else started, without restarting it.

found = attach.find("http://localhost:8000")        which processes, what may be done
with attach.open(found) as attached:                the deepest way that works, undone at the end
    attached.depth, attached.reason, attached.agents
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokentrace.attach.attached import Attached, open
    from tokentrace.attach.finding import find
    from tokentrace.attach.found import Found, ServerProcess
    from tokentrace.attach.session import ask

__all__ = ["Attached", "Found", "ServerProcess", "ask", "find", "open"]

#: Imported when used: the small process that injects imports this package too, and shall have nothing to wait for.
_WHERE = {
    "Attached": "attached",
    "open": "attached",
    "find": "finding",
    "Found": "found",
    "ServerProcess": "found",
    "ask": "session",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
