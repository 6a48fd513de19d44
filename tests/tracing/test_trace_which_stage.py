"""Which stage a model that runs in the program itself belongs to."""

from __future__ import annotations

import threading
import time

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
