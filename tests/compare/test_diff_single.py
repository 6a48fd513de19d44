"""One run a side of the real engine: what was slowed down inside it stands out of whatever the machine does."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_engine import LIGHT_AND_DEEP, Running
from support.slow_engine import slow

from tokentrace.compare import compare_samples

pytestmark = pytest.mark.model


def test_single_runs_name_the_module_that_sleeps(tmp_path: Path) -> None:
    with Running() as plain, Running(slow(tmp_path, "module")) as other:
        plain.trace(), other.trace()
        for _ in range(6):
            # On a machine that does much else a pair may well scatter by more than the sleep: not every one.
            base, new = plain.sample(passes=LIGHT_AND_DEEP), other.sample(passes=LIGHT_AND_DEEP)
            found = compare_samples([base], [new])
            row = next(row for row in found.levels["modules"] if row.key == "layers.7.mlp")
            if row.beyond_noise:
                break
    assert row.beyond_noise and row.difference_ns > 10 * 35e6
    others = [one.key for one in found.levels["modules"] if one.beyond_noise and abs(one.difference_ns) > 100e6]
    assert others == ["layers.7.mlp"], others


def test_single_runs_name_the_smaller_batch(tmp_path: Path) -> None:
    text = "Name the colours of the rainbow, one after the other, and say for each of them what it is like. " * 4
    with Running() as plain, Running(slow(tmp_path, "batch")) as other:
        plain.trace(), other.trace()
        base, new = plain.sample(text, max_tokens=8), other.sample(text, max_tokens=8)
    found = compare_samples([base], [new])
    only = [row.key for row in found.levels["steps"] if row.only_in == "new"]
    assert only and all(key.startswith("prefill/") for key in only)
    if found.wall.beyond_noise:
        assert found.verdict.layer == 6 and "instead of 1" in found.verdict.sentence
