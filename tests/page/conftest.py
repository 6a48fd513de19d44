"""A real headless Chromium. On a machine without one these tests are skipped; in CI that is a failure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page_support import Opened

from tokentrace.emit import html
from tokentrace.model import Trace
from tokentrace.report import Report

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"the page cannot be tested: {what}", pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="module")  # its event loop must not run on while other tests want one of their own
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        _missing("playwright is not installed")
    path = os.environ.get("TOKENTRACE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        _missing("there is no Chromium: scripts/browser.sh gets one")
    with sync_playwright() as playwright:
        # A container's root has no sandbox to start; the pages are this test's own.
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield found
        found.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Writes the page of a trace and opens it. At the end: no error, and nothing asked of any network."""
    made: list[Opened] = []

    def show(
        trace: Trace,
        report: Report | None = None,
        *,
        size: tuple[int, int] = (1280, 900),
        before: str = "",
        **context: Any,
    ) -> Opened:
        path = tmp_path / f"{len(made)}.html"
        html.write(trace, path, report)
        one = Opened(browser, path, size, before, context)
        made.append(one)
        return one

    yield show
    for one in made:
        one.close()
        assert one.errors == []
        assert [url for url in one.requests if not url.startswith(("file:", "data:", "blob:"))] == []
