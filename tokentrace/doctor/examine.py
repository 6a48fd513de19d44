"""Runs the checks from the outside in, each within its time, and gathers what they said.

Nothing waits for what hangs: every check, every sampler and the live call runs on a thread of its own that is left
behind when its time is over. All ends within the timeout and three seconds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tokentrace.client.causes import CAUSES, one_line
from tokentrace.doctor import live as live_call
from tokentrace.doctor.check import ENGINE_DOWN, LEFT_OUT, Check, Live, Result, Sampler, Situation, skip, unknown
from tokentrace.doctor.jobs import Job
from tokentrace.doctor.look import look

if TYPE_CHECKING:
    from tokentrace.engines.local.folder import ModelFolder
    from tokentrace.engines.local.process import LocalEngine

#: Of what remains after the deadline, for the checks after the live call, which look at what has come.
_LAST_S = 1.0
#: However little is left, a check that has been begun gets this; `_HARD_S` after the deadline nothing gets any more.
_LEAST_S = 0.3
_HARD_S = 2.0
#: The local engine is ended within this.
_STOP_S = 1.0
_LOOK_S = 2.0
_STATIC_S = 2.0
#: The live call is held back this long for the checks before it, so that the machine is idle when that is measured.
_QUIET_S = 0.7
#: When the cause is found already, slow checks of the machine get this much more.
_SETTLED_S = 0.5


@dataclass(slots=True)
class Examination:
    """All that was seen. `interrupted`: by Ctrl-C; what had come until then is there."""

    situation: Situation
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False


class _CheckJob:
    def __init__(self, check: Check, situation: Situation) -> None:
        self.check = check
        self._situation = situation
        self._found: list[Result] = []
        self._end = time.monotonic() + check.seconds
        self._seconds = check.seconds
        self._job = Job(check.id, lambda: self._found.extend(_looked(check, situation)))

    def wait(self, until: float) -> bool:
        """Has it ended by then?"""
        return self._job.wait(min(self._end, until) - time.monotonic())

    def results(self, latest: float) -> list[Result]:
        """Of a check that ended; `unknown` of one that did not by then, or broke."""
        now = time.monotonic()
        if not self._job.wait(min(self._end, latest) - now):
            if self.check.hurried is not None and (found := list(self.check.hurried(self._situation))):
                return found
            return [unknown(self.check.id, f"the check did not end within {self._seconds:g} s and was left behind")]
        if self._job.error is not None:
            said = one_line(f"{type(self._job.error).__name__}: {self._job.error}", 160)
            return [unknown(self.check.id, f"the check itself failed: {said}")]
        return list(self._found)


def _looked(check: Check, situation: Situation) -> Iterable[Result]:
    assert check.run is not None
    return check.run(situation)


def examine(
    situation: Situation,
    checks: Sequence[Check],
    samplers: Sequence[Sampler],
    progress: Callable[[str], None] = lambda sentence: None,
    model: ModelFolder | None = None,
) -> Examination:
    """Run the checks that apply. `model`: for the live call of the local engine, where there is no endpoint.

    Never raises because of a check or a server. Ctrl-C ends it early.
    """
    began = time.monotonic()
    done = Examination(situation)
    wanted = [c for c in checks if c.run is not None and c.layer in situation.layers]
    apply = [c for c in wanted if situation.mode in c.modes]
    if not situation.here:
        away = [c for c in apply if 1 <= c.layer <= 5]
        done.results += [skip(c.id, "the server is on another machine") for c in away]
        apply = [c for c in apply if c not in away]
    stages = _Stages(situation, samplers, progress, model, done.results)
    try:
        stages.run(apply)
    except KeyboardInterrupt:
        done.interrupted = True
        stages.keep_what_ended()
        told = {r.id for r in done.results}
        done.results += [unknown(c.id, "interrupted before it was looked at") for c in apply if c.id not in told]
    finally:
        stages.close()
    order = {c.id: n for n, c in enumerate(checks)}
    done.results.sort(key=lambda r: order.get(r.id, len(order)))
    done.seconds = time.monotonic() - began
    return done


class _Stages:
    def __init__(
        self,
        situation: Situation,
        samplers: Sequence[Sampler],
        progress: Callable[[str], None],
        model: ModelFolder | None,
        results: list[Result],
    ) -> None:
        self._situation, self._samplers, self._progress, self._model = situation, samplers, progress, model
        self._results = results
        self._engine: LocalEngine | None = None
        self._closed = False
        self._begun: list[_CheckJob] = []

    def run(self, checks: Sequence[Check]) -> None:
        situation = self._situation
        if situation.offline:
            self._results += [skip(c.id, LEFT_OUT) for c in checks if c.network or c.live]
            checks = [c for c in checks if not (c.network or c.live)]
        slow = [c for c in checks if c.seconds > _STATIC_S and not c.live]
        static = [c for c in checks if c.seconds <= _STATIC_S and not (c.live or c.network)]
        asked = [c for c in checks if c.seconds <= _STATIC_S and c.network and not c.live]
        alive = [c for c in checks if c.live]
        looking = self._look(asked or alive)
        self._progress("looking at the settings and this machine")
        beside = [] if alive else self._begin(slow)  # without a call there is nothing to keep the machine quiet for
        at_once = self._begin(static)
        if alive:
            quiet = time.monotonic() + _QUIET_S
            for job in at_once:
                job.wait(quiet)
            beside = self._begin(slow)
            situation.live = self._live()
        self._gather(at_once)
        if looking is not None:
            looking.wait(self._situation.last - time.monotonic())
        self._gather(self._begin((*asked, *alive)))
        if self._settled():
            beside = [job for job in beside if job.wait(time.monotonic() + _SETTLED_S) or self._leave(job)]
        self._gather(beside)

    def _begin(self, checks: Sequence[Check]) -> list[_CheckJob]:
        jobs = [_CheckJob(c, self._situation) for c in checks]
        self._begun += jobs
        return jobs

    def keep_what_ended(self) -> None:
        """After Ctrl-C: the results of checks that had ended, and were not gathered yet. Waits for none."""
        told = {r.id for r in self._results}
        now = time.monotonic()
        for job in self._begun:
            if job.check.id not in told and job.wait(now):
                self._results += job.results(now)

    def _settled(self) -> bool:
        """Did the request fail for a reason that no check of this machine could explain?"""
        return any(r.status == "fail" and r.id in CAUSES and r.id not in ENGINE_DOWN for r in self._results)

    def _leave(self, job: _CheckJob) -> bool:
        self._results.append(unknown(job.check.id, "not waited for: the request failed for another reason"))
        return False

    def close(self) -> None:
        """End the local engine, if it was started."""
        self._closed = True
        if self._engine is not None:
            left = self._situation.deadline + _HARD_S - time.monotonic()
            self._engine.stop(min(_STOP_S, max(0.1, left)))

    def _gather(self, jobs: Sequence[_CheckJob]) -> None:
        situation = self._situation
        latest = min(max(situation.last, time.monotonic() + _LEAST_S), situation.deadline + _HARD_S)
        for job in jobs:
            self._results += job.results(latest)

    def _look(self, needed: Sequence[Check]) -> Job | None:
        situation = self._situation
        endpoint = situation.endpoint
        if endpoint is None or not needed:
            return None
        self._progress(f"asking {endpoint.host}:{endpoint.port}")

        def work() -> None:
            situation.look = look(endpoint, situation.environ, min(_LOOK_S, max(0.3, situation.left_s)))

        return Job("look", work)

    def _live(self) -> Live:
        situation = self._situation
        if situation.setting_error is not None:
            return Live(why_not="the settings cannot be used")
        if situation.endpoint is None:
            started = self._start_engine()
            if started is not None:
                return started
        endpoint = situation.endpoint
        assert endpoint is not None
        sampling = live_call.Sampling(situation, self._samplers)
        calls = Job("live call", lambda: live_call.call(situation, endpoint, sampling, self._progress))
        ended = calls.wait(self._situation.last - _LAST_S - time.monotonic())
        live = live_call.finish(sampling, situation)
        if not ended:
            live.why_not = "the call did not end in time"
        elif calls.error is not None:
            live.why_not = one_line(f"the call could not be made: {calls.error}")
        return live

    def _start_engine(self) -> Live | None:
        """Start the local engine for the live call; a `Live` without calls when that is not to be."""
        from tokentrace.client.settings import Endpoint
        from tokentrace.engines.local.process import LocalEngine

        situation, model = self._situation, self._model
        if model is None:
            found = situation.local_model
            return Live(why_not=found.why if found is not None else "there is no endpoint and no model")
        self._progress("starting the local engine")

        def work() -> None:
            # torch makes the folder of its compiler's cache when it is imported: one that exists is named instead.
            env = {"TORCHINDUCTOR_CACHE_DIR": tempfile.gettempdir(), **situation.environ}
            engine = LocalEngine.start(model, agent=False, env=env, timeout_s=max(1.0, situation.left_s))
            if self._closed:
                engine.stop(_STOP_S)
            self._engine = engine

        starting = Job("engine", work)
        if not starting.wait(situation.left_s) or (self._engine is not None and situation.left_s < _LEAST_S):
            return Live(why_not=f"the local engine was not ready within {situation.timeout_s:g} s")
        if self._engine is None:
            error = starting.error
            return Live(why_not=str(error), engine_error=error if isinstance(error, Exception) else None)
        situation.engine_facts = dict(self._engine.facts)
        situation.endpoint = replace(
            Endpoint(self._engine.base_url, model=self._engine.model_name), timeout_s=situation.timeout_s
        )
        situation.look = look(situation.endpoint, situation.environ, min(_LOOK_S, max(0.3, situation.left_s)))
        return None
