"""Which stage a model that runs in the program itself belongs to."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest

import tokentrace
from tokentrace.tracing.stages import BY_LINE, Stages


def test_a_call_that_another_process_tells_of_is_of_the_innermost_stage() -> None:
    stages = Stages()
    with stages.run("outer"), stages.run("inner"):
        asked = time.time_ns()
    outer, inner = stages.all
    assert stages.at(asked, inner.thread) == (inner, ""), "of our own thread"
    assert stages.at(asked, 0) == (inner, BY_LINE)
    assert stages.at(inner.end_ns + 1, 0)[0] is (outer if outer.end_ns > inner.end_ns else None)


def test_of_stages_beside_each_other_only_the_thread_tells() -> None:
    stages = Stages()
    both = threading.Barrier(2)

    def work(name: str) -> None:
        with stages.run(name):
            both.wait()
            both.wait()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asked = max(stage.start_ns for stage in stages.all)
    assert stages.at(asked, 0) == (None, "")
    for stage in stages.all:
        assert stages.at(asked, stage.thread) == (stage, "")


def test_how_the_program_left_its_stages_and_its_block_is_in_the_report(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="canary"), tokentrace.trace("bad") as t:
        with contextlib.suppress(KeyError), t.stage("caught"):
            raise KeyError("canary")
        with t.stage("boom"):
            raise ValueError("canary")
    again = tokentrace.load(t.save(tmp_path / "t.jsonl"))
    for trace in (t, again):
        assert [(f.status, f.sentence) for f in trace.report.findings] == [
            ("fail", "The program ended with ValueError before the first call."),
            ("warn", "The program left the stage `caught` with KeyError."),
            ("warn", "The program left the stage `boom` with ValueError."),
        ]
    assert "canary" not in str(t.report.to_json())


def test_a_block_that_ends_well_or_is_interrupted_has_no_fault() -> None:
    with tokentrace.trace("well") as t, t.stage("fine"):
        pass
    assert t.report.findings == []
    with pytest.raises(KeyboardInterrupt), tokentrace.trace("cut") as t, t.stage("cut"):
        raise KeyboardInterrupt
    assert t.report.findings == [] and t.report.interrupted
