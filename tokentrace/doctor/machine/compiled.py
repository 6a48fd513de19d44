"""Layer 2: was anything compiled during the live call that should have come from a cache?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tokentrace.doctor.check import Check, Reader, Result, Sampler, Situation, ok, skip, unknown, warn
from tokentrace.doctor.machine import folders
from tokentrace.doctor.machine.keys import NEW_FILE, walk
from tokentrace.doctor.machine.situation import UNKNOWN_PROCESS, process_known, view_of
from tokentrace.doctor.machine.view import View
from tokentrace.probes._cache_entries import loaded
from tokentrace.wording import duration, listed, plural

NAME = "caches"
_MOST_FILES = 50_000
_SECONDS = 0.3
#: A first call this many times slower than the second one waited for something that the second one did not.
_MUCH_SLOWER = 5.0


class _Caches:
    """The files of every cache of the serving process, by compiler."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._folders = {f.compiler: f.path for f in folders.caches(view) if not f.problem and not f.disabled}

    def read(self) -> Mapping[str, Any]:
        """{compiler: (files with their times, whether all were seen)}."""
        found = {}
        for name, path in self._folders.items():
            seen, complete = walk(self._view, path, NEW_FILE, most=_MOST_FILES, seconds=_SECONDS)
            found[name] = (frozenset(seen), complete)
        return found

    def close(self) -> None:
        return


def _open(situation: Situation) -> Reader | None:
    if not situation.here or not process_known(situation):
        return None
    view = view_of(situation)
    return None if view.hidden else _Caches(view)


SAMPLERS = (Sampler(NAME, _open, period_s=None),)


def run(situation: Situation) -> Iterable[Result]:
    """TT209."""
    live = situation.live
    if live is None or not live.answered:
        return [skip("TT209", "no live call was answered")]
    if not situation.here:
        return [skip("TT209", "the server runs on another machine, its caches cannot be seen from here")]
    if not process_known(situation):
        return [skip("TT209", UNKNOWN_PROCESS)]
    samples = live.of(NAME)
    if len(samples) < 2:
        why = live.errors.get(NAME) or "they were not looked at before and after the call"
        return [unknown("TT209", f"whether the caches were hit is not known: {why}")]
    first, last = samples[0], samples[-1]
    new = written(first.values, last.values, first.time_ns / 1e9)
    partly = [name for name, (_, complete) in last.values.items() if not complete and name not in new]
    if partly and not new:
        return [unknown("TT209", f"the cache of {listed(partly)} is too large to be looked through")]
    if new and situation.pid is not None:
        used = using(view_of(situation))
        if used is None:
            why = "caches got new files, and whether the server compiles cannot be seen: its libraries may not be read"
            return [unknown("TT209", why, "run tokentrace doctor as the server's user, or as root")]
        foreign = [name for name in new if not used(name)]
        new = {name: paths for name, paths in new.items() if used(name)}
        if foreign and not new:
            return [ok("TT209", f"nothing was compiled during the live call: what {listed(foreign)} wrote is another "
                       "program's, the server has not loaded that compiler's libraries")]  # fmt: skip
    return [judge(new, _first_token_ns(situation, "first"), _first_token_ns(situation, "second"))]


def using(view: View) -> Callable[[str], bool] | None:
    """Whether the server or one of its children has a compiler's library loaded; None where that cannot be read.

    The folders are shared: without this, whatever a neighbour compiles meanwhile would count.
    """
    import psutil

    pids = [view.pid]
    with contextlib.suppress(psutil.Error, OSError):
        pids += [child.pid for child in psutil.Process(view.pid).children(recursive=True)]
    if loaded.files(view.pid) is None:
        return None
    mapped = loaded.of_all(pids) or frozenset()
    return lambda compiler: loaded.uses(mapped, compiler)


def written(before: Mapping[str, Any], after: Mapping[str, Any], since: float) -> dict[str, list[str]]:
    """Files that are new or newer, by compiler. `since` is the unix time of `before`, for caches that were not seen
    whole: what was merely not reached then is not new."""
    found = {}
    for name, (files, _) in after.items():
        known, complete = before.get(name, (frozenset(), False))
        new = sorted({path for path, made in files - known if complete or made >= since})
        if new:
            found[name] = new
    return found


def _first_token_ns(situation: Situation, which: str) -> int | None:
    exchange = getattr(situation.live, which)
    return exchange.ttft_ns if exchange is not None and exchange.complete else None


def judge(new: Mapping[str, list[str]], first_ns: int | None, second_ns: int | None) -> Result:
    """New files mean a miss; the time lost is that of the first call over the second one."""
    times = []
    if first_ns is not None and second_ns is not None:
        times = [f"first token after {duration(first_ns)}, then after {duration(second_ns)}"]
    slower = bool(first_ns and second_ns and first_ns > _MUCH_SLOWER * second_ns and first_ns - second_ns > 10**9)
    if not new:
        if slower:
            assert first_ns is not None and second_ns is not None
            return ok("TT209", f"nothing new was written to the caches, though the first call took "
                      f"{duration(first_ns - second_ns)} longer than the second", *times)  # fmt: skip
        return ok("TT209", "nothing was compiled during the live call: no cache got a new file", *times)
    count = sum(map(len, new.values()))
    lines = [f"{name}: {plural(len(paths), 'new file')}, {paths[0]}" for name, paths in new.items()]
    lines.append("other programs that use the same folders count too")
    lost = ""
    if slower:
        assert first_ns is not None and second_ns is not None
        lost = f", and the first token came {duration(first_ns - second_ns)} later than in the next call"
    return warn("TT209", f"something was compiled during the live call: {plural(count, 'new file')} of "
                f"{listed(list(new))}{lost}", "send a request of this shape when the server starts, before users do",
                *lines, *times)  # fmt: skip


CHECKS = (
    Check(
        "TT209", "caches: hit or miss",
        "Kernels that are compiled at the first request make it seconds slower, and a health check may kill the server "
        "meanwhile.",
        "the files of every cache before and after the live call, the libraries that the server has loaded, and the "
        "call's two times to the first token",
        "Warm the server up when it starts, and keep its caches.",
        run, live=True,
    ),
)  # fmt: skip
