"""Layers that the user left out: whose time holds theirs, in the data, on a terminal and nowhere else."""

from __future__ import annotations

import pytest
from support.records import without_layers

from tokentrace.emit.terminal import report_text
from tokentrace.model import IdSource
from tokentrace.report import build
from tokentrace.stitch import stitch


@pytest.mark.parametrize(
    ("left_out", "holds"),
    [
        ((5, 4, 3, 2, 1), {6: [5, 4, 3]}),  # --layers 8-6: the engine's steps are the model
        ((4, 3), {5: [4, 3]}),
        ((3,), {4: [3]}),
        ((5, 3), {6: [5], 4: [3]}),
        ((2, 1), {}),
        ((6, 7), {}),  # nothing of the user's side holds the engine
        ((), {}),
    ],
)
def test_the_next_layer_above_says_that_its_time_holds_theirs(
    left_out: tuple[int, ...], holds: dict[int, list[int]]
) -> None:
    ids = IdSource(4)
    report = build(stitch([without_layers(left_out, ids=ids)], ids=ids, meta={"prompt": "Hi", "mode": "local"}))
    assert {row.layer: row.holds for row in report.layers if row.holds} == holds
    text = report_text(report, width=140, unicode=True)
    assert text.count("which --layers left out") == len(holds)
    for row in report.layers:
        line = next(line for line in text.splitlines() if line.startswith(f"{row.layer} {row.title}"))
        assert ("≤" in line) == (row.layer in holds)
    if holds.get(6) == [5, 4, 3]:
        assert "engine queue: holds the time of layers 5, 4 and 3 too, which --layers left out" in text
    assert "≤" not in report_text(report, width=80)
