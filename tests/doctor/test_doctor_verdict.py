"""Which of many results is the root cause; and that a check that hangs or breaks harms nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tokentrace.client.causes import CAUSES
from tokentrace.doctor import live
from tokentrace.doctor.check import (
    ENGINE_DOWN,
    Check,
    Result,
    Sampler,
    Situation,
    fail,
    ok,
    skip,
    unknown,
    warn,
)
from tokentrace.doctor.examine import examine
from tokentrace.doctor.live import Sampling
from tokentrace.doctor.registry import by_id, checks
from tokentrace.doctor.verdict import judge, worst


def test_the_lowest_cause_explains_the_others() -> None:
    cache = fail("TT201", "no cache can be written", "mount one", explains=ENGINE_DOWN)
    request = fail("TT846", "the server failed (500)", "look at its log")
    verdict = judge([request, cache])
    assert (verdict.check, verdict.layer, verdict.exit_code) == ("TT201", 2, 1)
    assert verdict.also == ("TT846 the server failed (500)",)


def test_what_breaks_the_request_comes_before_what_does_not() -> None:
    monitoring = fail("TT101", "NVML and driver differ", "reboot")
    refused = fail("TT830", "the server wants a key", "export one")
    assert judge([refused, monitoring]).check == "TT830"
    assert judge([monitoring]).layer == 1


def test_a_circle_of_explanations_still_ends_in_one() -> None:
    a, b = fail("TT201", "a", "x", explains=("TT301",)), fail("TT301", "b", "y", explains=("TT201",))
    assert judge([a, b]).check == "TT201"


def test_warnings_are_no_failures_and_nothing_seen_is_unknown() -> None:
    assert judge([warn("TT612", "full", "less"), ok("TT800", "fine")]).exit_code == 0
    assert judge([unknown("TT800", "no call")]).exit_code == 2
    assert judge([skip("TT201", "elsewhere"), unknown("TT612", "?")]).exit_code == 2
    assert judge([]).exit_code == 2
    assert worst([ok("TT800", ""), unknown("TT801", "")]) == "ok"


def _check(check_id: str, run: Any, **more: Any) -> Check:
    return Check(check_id, "t", "m", "l", "f", run, **more)


def _situation(seconds: float = 2.0) -> Situation:
    return Situation("machine", {}, time.monotonic() + seconds, seconds, offline=False)


def test_a_check_that_hangs_is_left_behind_and_one_that_breaks_is_unknown() -> None:
    released = threading.Event()

    def hangs(_: Situation) -> Iterable[Result]:
        released.wait(120)
        return []

    def breaks(_: Situation) -> Iterable[Result]:
        yield ok("TT102", "half")
        raise OSError("no such sensor")

    began = time.monotonic()
    done = examine(
        _situation(),
        [_check("TT101", hangs, seconds=0.5), _check("TT102", breaks), _check("TT103", lambda s: [ok("TT103", "x")])],
        [],
    )
    assert time.monotonic() - began < 60
    released.set()
    found = {r.id: r for r in done.results}
    assert found["TT101"].status == found["TT102"].status == "unknown"
    assert "0.5 s" in found["TT101"].detail and "no such sensor" in found["TT102"].detail
    assert found["TT103"].status == "ok"


class _Reader:
    def __init__(self, fails_at: int = 1_000) -> None:
        self.count, self.fails_at, self.closed = 0, fails_at, False

    def read(self) -> Mapping[str, Any]:
        self.count += 1
        if self.count >= self.fails_at:
            raise ValueError("sensor gone")
        return {"n": self.count}

    def close(self) -> None:
        self.closed = True


def test_samplers_read_before_during_and_after() -> None:
    often, once, broken = _Reader(), _Reader(), _Reader(3)
    sampling = Sampling(
        _situation(),
        [
            Sampler("often", lambda s: often, 0.02),
            Sampler("once", lambda s: once, None),
            Sampler("broken", lambda s: broken, 0.02),
            Sampler("none", lambda s: None),
        ],
    )
    sampling.start()
    end = time.monotonic() + 60
    while (often.count < 60 or broken.count < 3) and time.monotonic() < end:
        time.sleep(0.01)
    seen = sampling.stop(60.0)
    assert {s.phase for s in seen.of("often")} == {"idle", "load", "after"}
    assert [s.phase for s in seen.of("once")] == ["idle", "after"]
    assert seen.of("none") == [] and seen.errors == {"broken": "sensor gone"} and len(seen.of("broken")) == 2
    assert often.closed and once.closed and broken.closed


def test_an_idle_phase_that_nothing_reads_is_not_sat_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_IDLE_S", 100_000.0)
    once, broken = _Reader(), _Reader(1)
    samplers = [
        Sampler("none", lambda s: None),
        Sampler("once", lambda s: once, None),
        Sampler("broken", lambda s: broken),
    ]
    sampling = Sampling(_situation(), samplers)
    sampling.start()
    seen = sampling.stop(60.0)
    assert [s.phase for s in seen.of("once")] == ["idle", "after"] and set(seen.errors) == {"broken"}


def test_every_check_and_cause_is_explained() -> None:
    known = {c.id for c in checks()}
    assert len(known) == len(checks())
    assert set(CAUSES) <= known
    for check in checks():
        assert check.id[:2] == "TT" and len(check.id) == 5 and check.id[2:].isdigit()
        assert check.meaning.endswith(".") and check.looks and check.fix, check.id
        assert by_id(check.id.lower()) is check
