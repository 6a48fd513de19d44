"""From the doctor's situation to the view of the process that serves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tokentrace.doctor.check import Result, Run, Situation, skip
from tokentrace.doctor.machine import view as views
from tokentrace.doctor.machine.view import View

ELSEWHERE = "the server runs on another machine; run tokentrace doctor there"

UNKNOWN_PROCESS = "the server's process is not known here; name it with --pid"

Look = Callable[[Situation, View], Iterable[Result]]


def view_of(situation: Situation) -> View:
    """The server's process where it is known, else this one. The doctor's own reading of the environment wins."""
    if situation.pid is None:
        return views.here(situation.environ)
    view = views.of_process(situation.pid)
    if situation.server_environ is not None and view.hidden:
        return replace(view, environ=situation.server_environ, hidden="", fix="")
    return view


def on_the_servers_machine(check_id: str, look: Look) -> Run:
    """A check's `run` around a function of (situation, view): skipped where the server is on another machine."""

    def run(situation: Situation) -> Iterable[Result]:
        if not situation.here:
            return [skip(check_id, ELSEWHERE)]
        return look(situation, view_of(situation))

    return run


def in_the_servers_process(check_id: str, look: Look) -> Run:
    """The same for what lies in the process: skipped where only its address is known, since this one says nothing."""

    def run(situation: Situation) -> Iterable[Result]:
        if not situation.here:
            return [skip(check_id, ELSEWHERE)]
        if not process_known(situation):
            return [skip(check_id, UNKNOWN_PROCESS)]
        return look(situation, view_of(situation))

    return run


def process_known(situation: Situation) -> bool:
    """Without an endpoint this process stands for the local engine, which it starts."""
    return situation.mode == "machine" or situation.pid is not None
