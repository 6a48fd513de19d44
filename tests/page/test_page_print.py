"""The page on paper: what a browser really prints, sheet by sheet, as pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from page_support import Opened
from support.records import request_pass, three_passes

from tokentrace.model import IdSource
from tokentrace.stitch import stitch

pytestmark = pytest.mark.browser

#: Pixels a PDF point.
SCALE = 2
RAIL = (0xC9, 0xC5, 0xBA)  # --line-strong of the light palette


class Sheet:
    """One printed sheet. Places are in points from its top left corner."""

    def __init__(self, page: Any) -> None:
        self.width, self.height = page.get_size()
        self._bitmap = page.render(scale=SCALE)
        self._bytes = bytes(self._bitmap.buffer)
        self._text = page.get_textpage()

    def find(self, text: str) -> tuple[float, float] | None:
        """Left and lower edge of the first place with this text."""
        found = self._text.search(text, match_case=True).get_next()
        if found is None:
            return None
        left, bottom, _, _ = self._text.get_charbox(found[0])
        return left, self.height - bottom

    def pixels(self, left: float, top: float, right: float, bottom: float) -> Iterator[tuple[int, int, int, int]]:
        """x in points, then red, green, blue."""
        step = self._bitmap.n_channels
        for y in range(int(top * SCALE), int(bottom * SCALE)):
            for x in range(int(left * SCALE), int(right * SCALE)):
                at = y * self._bitmap.stride + x * step
                blue, green, red = self._bytes[at : at + 3]
                yield x, red, green, blue

    def part(self, box: tuple[float, float, float, float], is_such: Callable[[int, int, int], bool]) -> float:
        """The part of an area whose pixels are such."""
        found = [is_such(*colour) for _, *colour in self.pixels(*box)]
        return sum(found) / len(found)

    def last_ink(self) -> float:
        """How far down it is printed on, as a part of its height."""
        row = self._bitmap.stride
        blank = b"\xff" * (self._bitmap.width * self._bitmap.n_channels)
        lines = [self._bytes[y * row : y * row + len(blank)] for y in range(self._bitmap.height)]
        return max((y for y, line in enumerate(lines) if line != blank), default=0) / self._bitmap.height


def _sheets(one: Opened, **how: Any) -> list[Sheet]:
    pdfium = pytest.importorskip("pypdfium2")
    document = pdfium.PdfDocument(one.page.pdf(**{"format": "A4", **how}))
    return [Sheet(document[number]) for number in range(len(document))]


def _holding(sheets: list[Sheet], text: str) -> tuple[Sheet, float, float]:
    for sheet in sheets:
        if (at := sheet.find(text)) is not None:
            return sheet, *at
    raise AssertionError(f"{text!r} is on no sheet")


@pytest.mark.parametrize(("width", "scheme"), [(1440, "dark"), (390, "light")])
def test_paper_shows_the_timeline_whatever_window_it_is_printed_from(
    opened: Callable[..., Opened], width: int, scheme: str
) -> None:
    one = opened(three_passes(), size=(width, 900), color_scheme=scheme)
    sheet, left, heading = _holding(_sheets(one), "Timeline")
    edge = sheet.width - left
    # Below the title: the whole run in small, then the ruler, then the lanes down to the chip's.
    small = left, heading + 8, edge, heading + 40
    assert sheet.part(small, lambda *rgb: max(rgb) < 90) < 0.05, "the dark theme's ground, on paper"
    assert sheet.part(small, lambda *rgb: max(rgb) - min(rgb) > 8) > 0.02, "no spans in the overview"
    lanes = left + 90, heading + 60, edge - 20, heading + 220
    assert sheet.part(lanes, lambda *rgb: max(rgb) - min(rgb) > 60) > 0.03, "no span in its layer's colour"
    assert sheet.part(lanes, lambda *rgb: min(rgb) > 250) < 0.6, "mostly empty paper"


@pytest.mark.parametrize("width", [1440, 820])
def test_the_printed_rails_run_before_the_lanes_texts_and_within_their_card(
    opened: Callable[..., Opened], width: int
) -> None:
    one = opened(three_passes(), size=(width, 900))
    sheet, down, top = _holding(_sheets(one), "the prompt goes in")
    up, _ = sheet.find("the reply comes back") or (0.0, 0.0)
    columns: dict[int, int] = {}
    for x, *colour in sheet.pixels(0, top, sheet.width, sheet.height):
        if all(abs(got - wanted) < 7 for got, wanted in zip(colour, RAIL, strict=True)):
            columns[x] = columns.get(x, 0) + 1
    rails = sorted(x / SCALE for x, high in columns.items() if high > 200)
    # Half a column of dots and the gap lie between a rail and its text: 15 and 8 CSS pixels.
    expected = [start - 23 * 0.75 for start in (down, up)]
    assert rails and all(min(abs(x - place) for place in expected) < 3 for x in rails), (rails, expected)
    assert all(any(abs(x - place) < 3 for x in rails) for place in expected), (rails, expected)


@pytest.mark.parametrize("format", ["A4", "Letter"])
def test_no_sheet_but_the_last_is_left_half_empty(opened: Callable[..., Opened], format: str) -> None:
    sheets = _sheets(opened(three_passes()), format=format)
    assert [f"{sheet.last_ink():.2f}" for sheet in sheets[:-1] if sheet.last_ink() < 0.6] == []


def test_after_printing_the_screen_is_as_before(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes(), color_scheme="dark")
    one.frame()
    state = """() => [".view canvas", ".map canvas"].map((where) => {
        const { width, height } = document.querySelector(where);
        return [width, height, document.querySelector(where).toDataURL()];
    })"""
    before = one.do(state)
    assert _sheets(one)
    one.page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    one.frame()
    assert one.do(state) == before


def test_every_step_of_a_long_reply_is_on_paper(opened: Callable[..., Opened]) -> None:
    ids = IdSource(8)
    words = tuple(f" {number}th" for number in range(40))
    records = request_pass("once", ids=ids, deep=False, steps=len(words), reply=words)
    sheets = _sheets(opened(stitch([records], ids=ids, meta={"prompt": "Hi"})))
    # A step shows the blank before its word as a dot; the reply itself does not.
    assert [word for word in words if not any(sheet.find(f"·{word.strip()}") for sheet in sheets)] == []
