"""The page of an imported recording: it says how much it shows, and its figures are the whole recording's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from page_support import Opened

from tokentrace import importers
from tokentrace.cli.view import _import, command
from tokentrace.wording import duration

ROOT = Path(os.environ.get("TOKENTRACE_RECORDINGS", "/nonexistent"))
LARGE = ROOT / "kineto" / "v100_dgx_resnet_w4_2021_old_schema.pt.trace.json.gz"
WIDE = [
    LARGE,
    ROOT / "tracelens" / "mi350x_rocprofv3_908_results.json.gz",
    ROOT / "tracelens" / "mi300_vllm_graph_capture.pt.trace.json.gz",
]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not LARGE.is_file(), reason="TOKENTRACE_RECORDINGS is not set"),
]


def test_a_folded_recording_says_so_and_keeps_its_own_figures(opened: Callable[..., Opened]) -> None:
    imported = importers.load([str(LARGE)])
    root = imported.trace.attributes(0)
    shown, folded = root["tokentrace.import.shown"], root["tokentrace.import.folded"]
    assert folded > 0, "or this test shows nothing"
    trace, report, _ = _import(LARGE)
    one = opened(trace, report)
    headline = one.page.locator("#headline").inner_text()
    assert f"shows {shown:,} of {shown + folded:,} recorded events" in headline
    kernels = imported.figures["kernels"]
    lane = one.page.locator("#lane-3").inner_text()
    assert f"{kernels:,} kernels" in lane
    for state in imported.layers:
        if state.status != "seen":
            continue
        lane = one.page.locator(f"#lane-{state.layer}").inner_text()
        assert duration(state.facts["own_ns"]) in lane
        assert f"{state.facts['evidence']:,} " in lane
    told = sum(state.facts["own_ns"] for state in imported.layers if state.status == "seen")
    assert report.unattributed_ns + told == report.wall_ns
    page = one.page.locator("body").inner_text()
    assert "once pass" not in page and "Whole recording" in page
    for place in ("#headline", "#steps", "#time", "#own", "#operators"):
        assert "request" not in one.page.locator(place).inner_text().lower().replace("client request", ""), place


def test_json_tells_recorded_from_shown(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [str(LARGE), "--json", "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    root = importers.load([str(LARGE)]).trace.attributes(0)
    assert told["folded"] == root["tokentrace.import.folded"]
    assert told["recorded"] == root["tokentrace.import.shown"] + told["folded"] > told["spans"]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("path", WIDE, ids=lambda path: path.name[:14])
def test_long_names_do_not_widen_the_page(opened: Callable[..., Opened], path: Path, width: int) -> None:
    for trace, report in (_import(path)[:2], (importers.load([str(path)]).trace, None)):
        one = opened(trace, report, size=(width, 900))
        assert one.do("() => document.documentElement.scrollWidth") <= width


def test_a_page_without_the_recordings_own_times_says_whose_they_are(opened: Callable[..., Opened]) -> None:
    one = opened(importers.load([str(LARGE)]).trace)
    assert "Times by layer are those of the spans shown" in one.page.locator("#headline").inner_text()
    assert one.page.locator("#gaps .gap").count() == 0


def test_the_keys_go_through_the_steps_of_a_recording(opened: Callable[..., Opened]) -> None:
    trace, report, _ = _import(LARGE)
    rows = [row for row in range(len(trace)) if trace.names[trace.name[row]] == "step" and trace.layer[row] == 6]
    steps = sorted((trace.attributes(row) for row in rows), key=lambda own: own["tokentrace.step.index"])
    assert len(steps) > 2, "or this test shows nothing"
    one = opened(trace, report)
    assert one.page.locator("#steps .frame").count() == len(steps)
    assert one.page.locator("#way-keys").is_visible()
    for number, own in enumerate(steps):
        one.press("ArrowRight")
        assert one.do("() => tokentrace.state.frame") == number
        ends = one.page.locator(".ends").inner_text()
        kernels = f"{own['tokentrace.step.kernels']:,} kernels"
        assert f"step {own['tokentrace.step.index']}" in ends and own["tokentrace.step.name"] in ends
        assert kernels in ends and duration(own["tokentrace.step.busy_ns"]) in ends and "token" not in ends
        assert kernels in one.page.locator("#lane-3").inner_text(), "the kernels that are shown are fewer"
    one.press("w")
    assert one.do("() => tokentrace.state.frame") == -1


def test_a_recording_without_steps_offers_no_keys_for_them(opened: Callable[..., Opened]) -> None:
    one = opened(*_import(WIDE[1])[:2])
    assert one.page.locator("#steps .frame").count() == 0
    assert not one.page.locator("#way-keys").is_visible()
    one.press("ArrowRight", "p", "ArrowRight")
    assert one.do("() => tokentrace.state.frame") == -1
    one.press("?")
    card = one.page.locator("#help").inner_text()
    assert "light or dark" in card and "step" not in card and "play" not in card
