"""The group "ops": torch's profiler around the engine's steps, and its raw events as columns.

How it is started. A profiler started the usual way records only its own thread; the engine's thread is another one.
`profile_all_threads` records every thread and may be started and stopped from any. Both are done between two steps:
the engine's step function is wrapped to know when one is running, and whoever comes next, the engine at its next step
or we while it is idle, does what is due. If no such moment comes within `PATIENCE_S` it is done all the same.

What it costs. While it runs, each operator costs a little more. Stopping converts the events inside torch and holds the
interpreter for that time (6 to 15 µs an event); so it is stopped after the request. Reading happens still later, in
slices between which other threads run. All costs are in the header. Events take memory until they are read, so after
`steps` steps or `max_seconds` recording pauses (torch then warns of GPU tracks in the log, which does not matter here:
it never resumes), and the header says so.

What is read. `kineto_results.events()` and one method of it a column. torch's own tables (`events()`,
`key_averages()`) build a Python object with dozens of fields an event and take seconds. Times are unix ns. Stacks,
memory, the environment and other metadata are neither recorded nor copied.

torch is never imported here: a process that has not imported it runs no operators.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tokentrace.agent.core import Bulk, Emit, GroupUnavailable
from tokentrace.agent.kineto_columns import read
from tokentrace.agent.wrap import Hook, install_all

#: The functions that are one step of a known engine, as "module:Class.function".
STEP_FUNCTIONS = (
    "transformers.generation.continuous_batching.continuous_api:ContinuousBatchProcessor._generation_step",
)
PATIENCE_S = 5.0
MAX_STEPS = 32  # of a 30-layer model 230,000 events on a CPU
MAX_SECONDS = 30.0
_KEPT_RECORDINGS = 8
_DEVICES = ("CUDA", "XPU")


class Gate:
    """Knows whether a step is running, and does what is due when none is.

    Steps of several threads may overlap: only a moment at which none is running counts. What is due is done with the
    mutex held, so that no step begins meanwhile; it must not raise.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._depth = threading.local()
        self._inside = 0
        self._due: list[tuple[Callable[[], None], threading.Event]] = []
        self.steps = 0  # finished ones
        self.after_step: Callable[[], None] | None = None

    def run_between_steps(self, action: Callable[[], None], patience_s: float = PATIENCE_S) -> bool:
        """Run `action` at the next moment without a running step. False: there was none in time, it ran regardless."""
        done = threading.Event()
        with self._mutex:
            self._due.append((action, done))
            if self._inside == 0:
                self._settle()
        if done.wait(patience_s):
            return True
        with self._mutex:
            in_time = done.is_set()
            self._settle()
        return in_time

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, a step, with this gate around it. A step that calls another one is one step."""

        def step(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._depth, "value", 0):
                return function(*args, **kwargs)
            self._depth.value = 1
            self.enter()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth.value = 0
                self.leave()

        step.__wrapped__ = function  # type: ignore[attr-defined]
        return step

    def enter(self) -> None:
        """A step begins."""
        with self._mutex:
            if self._inside == 0:
                self._settle()
            self._inside += 1

    def leave(self) -> None:
        """A step has ended."""
        with self._mutex:
            self._inside = max(0, self._inside - 1)
            self.steps += 1
            if self._inside == 0:
                self._settle()
                if self.after_step is not None:
                    self.after_step()

    def _settle(self) -> None:
        while self._due:
            action, done = self._due.pop(0)
            try:
                action()
            finally:
                done.set()


class TorchProfiler:
    """One recording: `start`, `stop`, then `columns`. Not for several threads at once; the Gate sees to that."""

    def __init__(self) -> None:
        self.header: dict[str, Any] = {"start_ns": 0, "end_ns": 0, "problem": ""}
        self._profile: Any = None
        self._results: Any = None
        self.running = False
        self.paused = False

    def prepare(self) -> None:
        """Make everything ready that does not have to happen between two steps. Raises GroupUnavailable."""
        torch = sys.modules.get("torch")
        profiler = sys.modules.get("torch.autograd.profiler")
        if torch is None or profiler is None:
            raise GroupUnavailable("torch is not loaded in this process", "look at the process that runs the model")
        before = time.perf_counter_ns()
        try:
            supported = {a.name for a in torch.autograd._supported_activities()}
            devices = [d for d in _DEVICES if d in supported]
            config_class = torch._C._profiler._ExperimentalConfig
            for name in ("_prepare_trace", "_start_trace"):
                getattr(profiler.profile, name)
        except AttributeError as error:
            raise GroupUnavailable(
                f"torch {torch.__version__} has another profiler interface ({error})", "use torch 2.6 or later"
            ) from error
        if torch.autograd._profiler_enabled():
            raise GroupUnavailable("another torch profiler is running in this process", "stop it, then trace again")
        if "CUDA" in devices:
            # CUPTI crashes when it is set up again after being torn down in a process that replays CUDA graphs;
            # torch.profiler itself sets both for that reason, when it knows of the graphs.
            os.environ.setdefault("TEARDOWN_CUPTI", "0")
            os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
        silent = _Environment("KINETO_LOG_LEVEL", "6")
        try:
            # Without the second argument a kernel's grid and block stay inside; old versions do not know it.
            config = _first_accepted(
                lambda: config_class(profile_all_threads=True, expose_kineto_event_metadata=bool(devices)),
                lambda: config_class(profile_all_threads=True),
            )
            options = {"use_cpu": True, "record_shapes": True, "use_kineto": True, "experimental_config": config,
                       "use_device": devices[0].lower() if devices else None}  # fmt: skip
            self._profile = _first_accepted(
                lambda: profiler.profile(acc_events=False, **options), lambda: profiler.profile(**options)
            )
            self._profile._prepare_trace()
        except (TypeError, RuntimeError, AttributeError) as error:
            raise GroupUnavailable(
                f"torch {torch.__version__} did not start its profiler: {_first_line(error)}", "use torch 2.6 or later"
            ) from error
        finally:
            silent.restore()
        self.header.update(
            torch=str(torch.__version__), activities=["CPU", *devices], prepare_cost_ns=time.perf_counter_ns() - before
        )

    def start(self) -> None:
        before = time.perf_counter_ns()
        try:
            self._profile._start_trace()
        except Exception as error:  # noqa: BLE001 - this may run on the engine's thread, which must not see it
            self.header["problem"] = f"the profiler did not start: {_first_line(error)}"
            return
        self.running = True
        self.header.update(start_ns=time.time_ns(), start_cost_ns=time.perf_counter_ns() - before)

    def pause(self, why: str) -> None:
        """Record nothing more, without the cost of `stop`. There is no way back."""
        if not self.running or self.paused:
            return
        self.paused = True
        self.header.update(end_ns=time.time_ns(), limited=why)
        try:
            self._profile.toggle_collection_dynamic(False, self._profile.kineto_activities)
        except Exception:  # noqa: BLE001 - an older torch cannot pause
            self.stop()

    def stop(self) -> None:
        """End the recording; safe to call again."""
        if not self.running:
            return
        self.running = False
        if not self.paused:
            self.header["end_ns"] = time.time_ns()
        before = time.perf_counter_ns()
        try:
            self._profile.__exit__(None, None, None)
            self._results = self._profile.kineto_results
        except Exception as error:  # noqa: BLE001 - as above
            self.header["problem"] = f"the profiler did not stop cleanly: {_first_line(error)}"
        self.header["stop_cost_ns"] = time.perf_counter_ns() - before
        self._profile = None

    def columns(self) -> Bulk:
        """(header, {column: (array type code, bytes)}); see `kineto_columns.read`. Lets go of torch's own copy."""
        before = time.perf_counter_ns()
        results, self._results = self._results, None
        events = results.events() if results is not None else []
        lists, arrays = read(events)
        self.header.update(lists, events=len(events))
        self.header["read_cost_ns"] = time.perf_counter_ns() - before
        return self.header, {name: (a.typecode, a.tobytes()) for name, a in arrays.items()}


class OpsGroup:
    """The group as the agent switches it on and off. Options:

    steps           record this many steps (default 32)
    max_seconds     record no longer than this (default 30)
    step_functions  "module:Class.function" of the engine's step (default: those known)
    """

    def __init__(self) -> None:
        self._gate = Gate()
        self._hooks: dict[str, Hook] = {}
        self._current: TorchProfiler | None = None
        self._armed: TorchProfiler | None = None
        self._limit, self._seconds = MAX_STEPS, MAX_SECONDS
        self._timer: threading.Timer | None = None
        self._finished: list[TorchProfiler] = []

    def enable(self, emit: Emit, options: Mapping[str, Any] | None = None) -> None:
        """Start recording; nothing happens when it is recording already. Raises GroupUnavailable."""
        if self._current is not None:
            return
        profiler = self.arm(options or {})
        at_boundary = self._gate.run_between_steps(self.start_armed)
        if not profiler.running:
            self._current = None
            self._uninstall()
            raise GroupUnavailable(
                profiler.header["problem"], "stop any other profiler of this process, then trace again"
            )
        profiler.header["started_between_steps"] = at_boundary

    def arm(self, options: Mapping[str, Any]) -> TorchProfiler:
        """Make everything ready for `start_armed`. Raises GroupUnavailable."""
        profiler = TorchProfiler()
        profiler.prepare()
        self._install(options.get("step_functions") or STEP_FUNCTIONS)
        self._gate.steps = 0
        self._limit = int(options.get("steps") or MAX_STEPS)
        self._seconds = float(options.get("max_seconds") or MAX_SECONDS)
        self._current = self._armed = profiler
        return profiler

    def start_armed(self) -> None:
        """Start what is armed, if it has not started; must not be called within a step. Does not raise."""
        profiler, self._armed = self._armed, None
        if profiler is None:
            return
        profiler.start()
        limit, seconds = self._limit, self._seconds
        self._gate.after_step = lambda: self._pause_after(profiler, limit)
        self._timer = threading.Timer(seconds, self._pause_late, (profiler, seconds))
        self._timer.daemon = True
        self._timer.start()

    def disable(self) -> None:
        """Stop recording and put the engine's functions back. Never raises."""
        profiler, self._current, self._armed = self._current, None, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if profiler is not None:
            profiler.header["stopped_between_steps"] = self._gate.run_between_steps(profiler.stop)
            profiler.header["steps"] = self._gate.steps
            if profiler.header["start_ns"] or profiler.header["problem"]:  # else it waited for a step that never came
                self._finished.append(profiler)
            del self._finished[:-_KEPT_RECORDINGS]  # nobody fetched the older ones
        self._gate.after_step = None
        self._uninstall()

    def bulk(self) -> list[Bulk]:
        """The recordings finished since the last call, each as (header, columns)."""
        finished, self._finished = self._finished, []
        return [profiler.columns() for profiler in finished]

    def _pause_after(self, profiler: TorchProfiler, limit: int) -> None:
        if self._gate.steps >= limit:
            profiler.header.setdefault("recorded_steps", self._gate.steps)
            profiler.pause(f"the profiler recorded the first {'step' if limit == 1 else f'{limit} steps'} only")

    def _pause_late(self, profiler: TorchProfiler, seconds: float) -> None:
        why = f"the profiler recorded the first {seconds:g} s only"
        self._gate.run_between_steps(lambda: profiler.pause(why))

    def _install(self, paths: Iterable[str]) -> None:
        """Wrap those of the step functions that are there. One that a stranger's wrapper lies upon still has the gate:
        it counts steps as before, and does nothing else while no recording runs."""
        for path in paths:
            self._hooks.setdefault(path, Hook(path, make=lambda hook, function: self._gate.wrap(function)))
        install_all(self._hooks[path] for path in paths)

    def _uninstall(self) -> None:
        for hook in self._hooks.values():
            hook.restore()


class _Environment:
    """A variable set for a moment."""

    def __init__(self, name: str, value: str) -> None:
        self._name, self._before = name, os.environ.get(name)
        if self._before is None:
            os.environ[name] = value

    def restore(self) -> None:
        if self._before is None:
            os.environ.pop(self._name, None)


def _first_accepted(*attempts: Callable[[], Any]) -> Any:
    """The result of the first attempt that does not raise TypeError (an unknown argument)."""
    for attempt in attempts[:-1]:
        try:
            return attempt()
        except TypeError:
            continue
    return attempts[-1]()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
