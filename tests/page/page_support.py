"""An opened page, with what its console and its network said."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Opened:
    """A page that is ready. `errors`: what went to the console as error, and what was thrown."""

    def __init__(
        self, browser: Any, path: Path, size: tuple[int, int], before: str = "", context: dict[str, Any] | None = None
    ) -> None:
        self.path = path
        self.errors: list[str] = []
        self.requests: list[str] = []
        more = {"reduced_motion": "reduce", **(context or {})}
        self._context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **more)
        self.page = self._context.new_page()
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        if before:
            self.page.add_init_script(before)
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", timeout=60_000)

    def do(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def frame(self) -> None:
        """Wait until what was asked for is drawn."""
        self.do("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def colours(self, selector: str) -> int:
        """How many colours a canvas shows."""
        self.frame()
        found = self.do(
            """(selector) => {
                const canvas = document.querySelector(selector);
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                return new Set(new Uint32Array(data.buffer)).size;
            }""",
            selector,
        )
        return int(found)

    def close(self) -> None:
        self._context.close()
