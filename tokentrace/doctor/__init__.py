"""Doctor: which layer is broken, and what to type.

    done, verdict = diagnose(Wishes(url="http://localhost:8000/v1"))

`after_failure` and `sentence` say the same of a command whose request failed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokentrace.doctor.check import Mode, Situation
from tokentrace.doctor.refine import after_failure
from tokentrace.doctor.verdict import Verdict, judge, layer_name, of_error
from tokentrace.errors import ConfigError, TokentraceError

if TYPE_CHECKING:
    from tokentrace.doctor.examine import Examination
    from tokentrace.doctor.secrets import Scrub
    from tokentrace.engines.local.folder import ModelFolder

__all__ = ["DEFAULT_TIMEOUT_S", "Diagnosis", "Verdict", "Wishes", "after_failure", "diagnose", "pointer"]

DEFAULT_TIMEOUT_S = 30.0
#: For finding the process that listens on a port, among all of the machine.
_PID_S = 1.0


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the doctor may be told; the same settings as a run, and `pid` for a server's process on this machine."""

    url: str | None = None
    key: str | None = None
    model: str | None = None
    profile: str | None = None
    config: str | None = None
    pid: int | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    max_tokens: int = 64
    offline: bool = False
    layers: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The examination, its verdict, and what hides keys in both."""

    examination: Examination
    verdict: Verdict
    scrub: Scrub


def diagnose(
    wishes: Wishes,
    progress: Callable[[str], None] = lambda sentence: None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Diagnosis:
    """Look at everything, within the timeout and three seconds.

    Raises UsageError for wishes that cannot be: no such process, --pid of no server or of several and no URL.
    """
    from tokentrace.doctor.examine import examine
    from tokentrace.doctor.registry import checks, samplers
    from tokentrace.doctor.secrets import Scrub

    env = os.environ if environ is None else environ
    began = time.monotonic()
    chosen, read = checks(), samplers()  # on a busy machine, importing them takes its time too
    situation, model = situation_of(wishes, env, folder, began)
    scrub = Scrub.of(situation.endpoint, env, situation.server_environ, {"KEY": wishes.key or ""})
    done = examine(situation, chosen, read, progress, model)
    return Diagnosis(done, judge(done.results), scrub)


def situation_of(
    wishes: Wishes, env: Mapping[str, str], folder: Path | None = None, began: float | None = None
) -> tuple[Situation, ModelFolder | None]:
    """What is to be looked at, and the local engine's model where that is meant. Nothing is sent. Raises UsageError.

    `began`: when the clock of the timeout started (monotonic), now unless given.
    """
    from tokentrace.client.settings import resolve
    from tokentrace.doctor import local_model, processes
    from tokentrace.doctor.jobs import within

    began = time.monotonic() if began is None else began
    url, pid, taken = wishes.url, wishes.pid, ""
    if pid is not None and url is not None:
        processes.there(pid)
    elif pid is not None:
        server = processes.server_of(pid)
        url, pid, taken = server.url, server.pid, server.why
    named_path = wishes.model if url is None and wishes.model and Path(wishes.model).expanduser().exists() else None
    try:
        endpoint = resolve(
            url,
            wishes.key,
            None if named_path else wishes.model,
            wishes.profile,
            wishes.config,
            wishes.timeout_s,
            environ=env,
            folder=folder,
        )
        problem: ConfigError | None = None
    except ConfigError as error:
        endpoint, problem = None, error
    mode: Mode = "process" if wishes.pid is not None else "endpoint" if endpoint or problem else "machine"
    situation = Situation(
        mode,
        env,
        began + wishes.timeout_s,
        wishes.timeout_s,
        endpoint=endpoint,
        setting_error=problem,
        pid=pid,
        taken=taken,
        offline=wishes.offline,
        layers=wishes.layers if wishes.layers is not None else frozenset(range(9)),
        max_tokens=wishes.max_tokens,
    )
    if endpoint is not None and wishes.pid is None:
        situation.here = processes.is_here(endpoint.host)
        if situation.here:
            host, port = endpoint.host, endpoint.port
            situation.pid = within(_PID_S, "listeners", lambda: processes.listening(host, port), None)
    if situation.pid is not None:
        situation.server_environ = processes.environment(situation.pid)
        situation.model_path = processes.model_of(situation.pid)
    if mode != "machine":
        return situation, None
    found = situation.local_model = local_model.find(named_path or wishes.model, env)
    if found.folder is not None:
        situation.model_path = str(found.folder.path)
    return situation, found.folder


def pointer(error: TokentraceError) -> str:
    """The line that a failed command adds to its error: layer and check, for --explain; "" where there is none."""
    verdict = of_error(error)
    if verdict.layer is None or not verdict.check:
        return ""
    return f"{layer_name(verdict.layer)} ({verdict.check}): tokentrace doctor --explain {verdict.check}"
