"""The part that runs inside a serving process. It records and hands over; standard library only.

    core     the buffer, and the groups of hooks that can be switched on and off
    wrap     replaces functions and puts the identical objects back
    control  a private unix socket: one tokentrace process at a time asks, switches and drains
    local_hooks, local_engine_hooks, modules, profile, compile_events   the groups

Nothing is wrapped and nothing costs anything until somebody connects and switches a group on; when that somebody goes
away, however it happened, everything is put back.
"""

from __future__ import annotations


def start(socket_path: str) -> None:
    """Listen on `socket_path` (its folder must be private) in a daemon thread. Raises OSError when it cannot."""
    from tokentrace.agent.control import Control

    Control(socket_path).start()
