"""A profiler records the first steps of a long reply: what is said of the others, and what to do about it."""

from __future__ import annotations

from typing import Any

from support.records import request_pass

from tokentrace.analyze import analyze
from tokentrace.model import IdSource
from tokentrace.probe import Finding, LayerState
from tokentrace.stitch import PassRecords, stitch
from tokentrace.wording import duration

WATCHED = {"mode": "attach", "prompt": ""}
LONGER = "watch longer, for a request that it records from its first step on, or raise --steps"


def recorded(first: int, last: int, *, steps: int = 4, recorded_steps: int | None = None) -> PassRecords:
    """A pass of `steps` steps of which the profiler recorded `first` to `last` (counted from 0), and, by its own
    account, `recorded_steps` in all."""
    once = request_pass("once", steps=steps)
    forwards = sorted((r for r in once.records if r.name == "forward"), key=lambda r: r.start_ns)
    unseen = [r for n, r in enumerate(forwards) if not first <= n <= last]
    once.records = [
        r for r in once.records
        if r.layer not in (3, 4) or not any(f.start_ns <= r.start_ns < f.end_ns for f in unseen)
    ]  # fmt: skip
    facts = {"profiler": [{"recorded_steps": recorded_steps or last - first + 1}]}
    once.states = [*(state for state in once.states if state.layer != 4), LayerState(4, facts=facts)]
    return once


def told(one: PassRecords, meta: dict[str, Any] | None = None) -> Finding | None:
    found = analyze(stitch([one], ids=IdSource(9), meta=meta or {}))
    return next((f for f in found.findings if "The profiler recorded" in f.sentence), None)


def test_steps_that_no_profiler_recorded_are_told_where_their_time_stands() -> None:
    found = told(recorded(0, 2))
    assert found is not None and found.layer == 5 and found.status == "warn"
    assert found.sentence.startswith("The profiler recorded 3 of 4 forward passes; the ")
    assert "layers 4 and 3 took more" in found.sentence


def test_nothing_is_said_where_all_or_no_steps_were_recorded() -> None:
    assert told(request_pass("once", steps=4)) is None
    assert told(request_pass("once", steps=4, deep=False)) is None


def test_a_request_that_took_all_the_recorded_steps_wants_more_of_them() -> None:
    found = told(recorded(0, 2), WATCHED)
    assert found is not None and found.fix == "raise --steps" and "other requests" not in found.evidence


def test_steps_that_were_spent_on_another_request_are_not_this_ones_to_lack() -> None:
    """Three were recorded and two of them were this request's: of more of them others may take more, too."""
    found = told(recorded(0, 1, recorded_steps=3), WATCHED)
    assert found is not None and found.fix == LONGER and "spent some on other requests" in found.evidence


def test_a_request_whose_first_steps_were_not_recorded_came_while_others_were() -> None:
    found = told(recorded(1, 2), WATCHED)
    assert found is not None and found.fix == LONGER and "whosever they are" in found.evidence


def test_a_prompt_of_ones_own_is_shared_out_where_it_is_asked_twice() -> None:
    found = told(recorded(0, 1, recorded_steps=3), {"mode": "attach", "prompt": "Hi"})
    assert found is not None and found.fix == "leave --once away, which shares them out, or raise --steps"


def test_the_time_of_the_others_is_that_of_their_forward_passes() -> None:
    part = recorded(0, 2)
    last = max((r for r in part.records if r.name == "forward"), key=lambda r: r.start_ns)
    found = told(part)
    assert found is not None and f"the {duration(last.end_ns - last.start_ns)} of the others" in found.sentence
