"""Pictures of a run's page: `python scripts/page_picture.py [RUN] -o docs`. Needs playwright and a Chromium."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tokentrace import emit, runs
from tokentrace.emit import html

HERE = Path(__file__).parent
#: Name, size, light or dark, what is done first, what is shown.
PICTURES: tuple[tuple[str, tuple[int, int], str, str, str], ...] = (
    ("page", (1280, 1130), "light", "() => {}", ""),
    ("page-step", (1280, 800), "dark", "() => tokentrace.state.set({ frame: 2 })", "#way"),
    (
        "page-timeline",
        (1280, 640),
        "light",
        "() => tokentrace.state.set({ pass: tokentrace.trace.story.passes.at(-1).name, frame: 1 })",
        "#time",
    ),
)


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs"))
    given = parser.parse_args()
    source = runs.find(given.run)
    detail = source.with_name(runs.DETAIL)
    report = runs.report_of(source)
    report.files = []  # where they lie here is of no use to a reader
    browser = subprocess.run([HERE / "browser.sh"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "page.html"
        html.write(emit.load(detail if detail.is_file() else source), page, report)
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for picture in PICTURES:
            _draw(chromium, page, given.out, *picture)
        chromium.close()


def _draw(chromium: Any, page: Path, out: Path, name: str, size: tuple[int, int], scheme: str, first: str,
          place: str) -> None:  # fmt: skip
    tab = chromium.new_page(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce"
    )
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready]")
    tab.evaluate(first)
    if place:
        tab.evaluate("(place) => document.querySelector(place).scrollIntoView()", place)
    tab.wait_for_timeout(400)
    tab.screenshot(path=out / f"{name}.png")
    tab.close()


if __name__ == "__main__":
    main()
