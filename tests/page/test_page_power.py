"""Watts on the page, as a real card's nvidia-smi gave them: a run joined with its dump."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from page_support import Opened
from support.records import request_pass

from tokentrace.importers import power_dumps
from tokentrace.importers.power_of_run import join_power
from tokentrace.model import IdSource
from tokentrace.stitch import stitch

#: An H100 idle and then at full load, 15 s apart; it gave its watts with a time in four of its samples.
CAPTURE = (
    Path(os.environ.get("TOKENTRACE_RECORDINGS", "/nonexistent"))
    / "nvidia_gpu_exporter/linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt.gz"
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CAPTURE.is_file(), reason="TOKENTRACE_RECORDINGS is not set"),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_watts_of_a_real_card_are_drawn_sample_by_sample(
    opened: Callable[..., Opened], scheme: str, tmp_path: Path
) -> None:
    dump = power_dumps.read(CAPTURE)
    timed = [sample for sample in dump.samples if sample.time_ns is not None and sample.watts is not None]
    assert len(timed) == 4 and [round(sample.watts or 0) for sample in timed] == [70, 70, 588, 626]
    # A request that begins before the first sample and ends after the last one.
    ids = IdSource(4)
    start = (timed[0].time_ns or 0) - 100_000_000
    one = request_pass("once", at=start, ids=ids, deep=False, steps=4, prefill_ms=12_000, decode_ms=1_500)
    trace, findings = join_power(stitch([one], ids=ids, meta={"prompt": "Hi"}), [(CAPTURE.name, dump)])
    assert any("H100" in finding.sentence for finding in findings)
    page = opened(trace, color_scheme=scheme)
    figure = page.page.locator("#power figure")
    assert "69.6 to 625.7 W in 4 samples" in figure.inner_text() and "H100" in figure.inner_text()
    dots = figure.locator("svg .sample")
    assert dots.count() == 4
    boxes = [dots.nth(number).bounding_box() for number in range(4)]
    assert all(box is not None for box in boxes)
    xs, ys = ([(box or {})[key] for box in boxes] for key in ("x", "y"))
    assert xs == sorted(xs) and xs[2] - xs[1] > 10 * (xs[1] - xs[0])
    assert abs(ys[0] - ys[1]) < 1 and ys[2] < ys[0] - 50 and ys[3] < ys[2], "more watts are higher"
    drawn = figure.screenshot(path=tmp_path / f"power-{scheme}.png")
    assert len(drawn) > 3_000
