"""The pages of bench and diff, which need no script: readable at every size, in light and dark, with the keyboard."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.http_servers import DONE, Answer, ScriptedServer, chunk, sse, usage_chunk
from support.records import request_pass

from tokentrace.analyze import analyze
from tokentrace.compare import compare_samples
from tokentrace.compare.page import write_diff
from tokentrace.compare.sample import of_pass
from tokentrace.model import IdSource
from tokentrace.stitch import stitch

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()", "bench"]
CONTRAST = Path(__file__).with_name("contrast.js")
WIDTHS = (390, 768, 1440)

pytestmark = pytest.mark.browser


def _reply(first_s: float) -> Answer:
    return sse(chunk(role="assistant"), first_s, chunk("a"), 0.004, chunk("b", finish="stop"), usage_chunk(9, 2), DONE)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A bench of two endpoints, and a comparison of two runs one of which took thrice as long in all its parts."""
    folder = tmp_path_factory.mktemp("plain")
    found = {name: folder / f"{name}.html" for name in ("bench", "diff")}
    drop = ("OTEL_", "OPENAI_", "TOKENTRACE_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop)} | {"TOKENTRACE_DATA_DIR": str(folder)}
    with ScriptedServer() as a, ScriptedServer() as b:
        a.on("POST", "/v1/chat/completions", _reply(0.002), _reply(0.01))
        b.on("POST", "/v1/chat/completions", _reply(0.03), _reply(0.02))
        urls = [f"--url={server.url}/v1" for server in (a, b)]
        command = [*COMMAND, "Hi", *urls, "--model", "alpha", "-n", "12", "-o", str(found["bench"]), "-q"]
        subprocess.run(command, env=env, check=True, capture_output=True, timeout=240)
    samples = []
    for seed, slower in ((1, 1), (2, 3)):
        ids = IdSource(seed)
        made = stitch([request_pass("once", ids=ids, decode_ms=6 * slower, prefill_ms=9 * slower, steps=6)], ids=ids)
        samples.append(of_pass(made, analyze(made), "once", f"run-{seed}-" + "with_a_long_name_" * 4))
    write_diff(compare_samples(samples[:1], samples[1:]), found["diff"])
    return found


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """Opens a page; at the end there was no error and no request but for the file."""
    made, said, asked = [], [], []

    def show(path: Path, width: int, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        made.append(context)
        page = context.new_page()
        page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page

    yield show
    for context in made:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith("file:")] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["bench", "diff"])
def test_a_plain_page_fits_and_is_readable(
    pages: dict[str, Path], tab: Any, name: str, width: int, scheme: str
) -> None:
    page = tab(pages[name], width, scheme)
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.evaluate(CONTRAST.read_text()) == []
    small = page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter((e) => e.childNodes.length && e.getClientRects().length
            && parseFloat(getComputedStyle(e).fontSize) < 11).map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert small == []
    # Beside the page's edge lies only what can be scrolled to.
    outside = page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter((e) => {
            const box = e.getBoundingClientRect();
            return box.width && (box.right > innerWidth + 1 || box.left < -1) && !e.closest(".scroll");
        }).map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert outside == []


@pytest.mark.parametrize("width", WIDTHS)
def test_plots_keep_their_size_on_a_phone(pages: dict[str, Path], tab: Any, width: int) -> None:
    page = tab(pages["bench"], width)
    assert page.locator(".plot").count() == 4
    for box in page.evaluate(
        "() => [...document.querySelectorAll('.plot svg')].map((e) => e.getBoundingClientRect().toJSON())"
    ):
        assert box["height"] >= 150 and box["width"] >= 0.6 * min(width, 64 * 16) - 32
    crossing = page.evaluate(
        """() => [...document.querySelectorAll(".plot")].flatMap((plot) => {
            const boxes = [...plot.querySelectorAll("span")].map((e) => [e.textContent, e.getBoundingClientRect()]);
            return boxes.flatMap(([a, one], i) => boxes.slice(i + 1).filter(([, two]) =>
                one.left < two.right && two.left < one.right && one.top < two.bottom && two.top < one.bottom)
                .map(([b]) => `${a} on ${b}`));
        })"""
    )
    assert crossing == [], "labels lie on each other"
    drawn = page.evaluate(
        """() => [...document.querySelectorAll(".plot svg")].map((svg) => {
            const curves = [...svg.querySelectorAll("path:not(.grid, .axes), polyline")];
            const boxes = curves.map((e) => e.getBoundingClientRect());
            const frame = svg.getBoundingClientRect();
            return {
                colours: curves.map((e) => e.getAttribute("stroke")),
                narrowest: Math.min(...boxes.map((b) => b.width)),
                reach: (Math.max(...boxes.map((b) => b.right)) - frame.left) / frame.width,
            };
        })"""
    )
    # How wide a curve is depends on how evenly the machine ran; the longest times lie far out on their plot.
    for plot in drawn:
        assert len(plot["colours"]) == 2 == len(set(plot["colours"]))
        assert plot["narrowest"] > 0 and plot["reach"] > 0.4


def test_the_keyboard_reaches_what_can_be_scrolled(pages: dict[str, Path], tab: Any) -> None:
    for name in ("bench", "diff"):
        page = tab(pages[name], 390)
        wide = page.evaluate(
            "() => [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).length"
        )
        reached = set()
        for _ in range(page.locator(".scroll").count()):
            page.keyboard.press("Tab")
            label = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
            assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"
            reached.add(label)
        assert wide and len(reached) == page.locator(".scroll").count()


def test_rows_that_differ_little_are_folded_away(pages: dict[str, Path], tab: Any) -> None:
    page = tab(pages["diff"], 768)
    folds = page.locator("details")
    assert folds.count() and not folds.first.locator("table").is_visible()
    folds.first.locator("summary").focus()
    page.keyboard.press("Enter")
    rows = folds.first.locator("tbody tr")
    assert f"{rows.count()} more that differ less" in folds.first.inner_text()
    assert rows.first.is_visible()
