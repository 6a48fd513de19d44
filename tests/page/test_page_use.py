"""Using the page: by keyboard alone, step by step, in the timeline, by search, in the dark and on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_support import Opened
from support.records import three_passes

from tokentrace.analyze import analyze
from tokentrace.analyze.frames import frames
from tokentrace.emit import html
from tokentrace.model import Link, Trace
from tokentrace.wording import duration

pytestmark = pytest.mark.browser


def linked() -> Trace:
    """With a kernel that links to its launch."""
    trace = three_passes()
    mother = next(row for row in range(len(trace) - 1, 0, -1) if trace.names[trace.name[row]] == "aten::linear")
    start = trace.start_ns[mother]
    launch = trace.add("launch cudaLaunchKernel", 3, start, start + 500, mother, process="4711", thread=4720)
    trace.add("kernel sgemm", 3, start + 900, start + 3000, mother, process="4711", thread=7,
              links=[Link(trace.span_id[launch])])  # fmt: skip
    return trace


def test_arrows_go_step_by_step_and_show_what_the_step_did(opened: Callable[..., Opened]) -> None:
    trace = three_passes()
    expected = frames(trace, analyze(trace), "warm")
    one = opened(trace)
    assert one.do("() => tokentrace.state.frame") == -1
    for index, frame in enumerate(expected):
        one.press("ArrowRight")
        assert one.do("() => tokentrace.state.frame") == index
        assert one.page.locator(".frame[aria-checked=true]").count() == 1
        shown = one.page.locator("#lanes").inner_text()
        for token in frame.tokens:
            assert f"id {token.id}" in shown
        for (layer, _), spent in frame.own.items():
            assert duration(spent) in one.page.locator(f"#lane-{layer}").inner_text()
    one.press("ArrowRight")
    assert one.do("() => tokentrace.state.frame") == len(expected) - 1
    from_, until = one.do("() => [tokentrace.timeline.from, tokentrace.timeline.until]")
    start = one.do("() => tokentrace.timeline.pass.start")
    assert from_ <= start + expected[-1].start_ns and until >= start + expected[-1].end_ns
    one.press("w")
    assert one.do("() => tokentrace.state.frame") == -1


def test_everything_can_be_reached_and_seen_with_the_tab_key(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes())
    reached: list[dict[str, Any]] = []
    for _ in range(160):
        one.press("Tab")
        found = one.do(
            """() => {
                const e = document.activeElement, style = getComputedStyle(e);
                const told = e.getAttribute("aria-label") || e.getAttribute("title");
                const name = told || e.textContent.trim();
                const ring = parseFloat(style.outlineWidth) > 0 && style.outlineStyle !== "none";
                return { id: e.id, tag: e.tagName, name, ring, kind: e.className };
            }"""
        )
        if found["tag"] == "BODY":
            break
        reached.append(found)
    assert found["tag"] == "BODY", "the walk does not end"
    assert all(stop["name"] for stop in reached), [stop for stop in reached if not stop["name"]]
    assert all(stop["ring"] for stop in reached), [stop for stop in reached if not stop["ring"]]
    assert {"theme", "keys", "play", "search"} <= {stop["id"] for stop in reached}
    assert "CANVAS" in {stop["tag"] for stop in reached}
    assert sum("name" in stop["kind"].split() for stop in reached) == 8  # one for each lane


def test_keys_on_the_timeline(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes())
    one.page.locator(".view canvas").focus()
    length = one.do("() => tokentrace.timeline.until - tokentrace.timeline.from")
    one.press("+")
    assert one.do("() => tokentrace.timeline.until - tokentrace.timeline.from") == pytest.approx(length * 0.6)
    before = one.do("() => tokentrace.timeline.from")
    one.press("ArrowRight")
    assert one.do("() => tokentrace.timeline.from") > before
    assert one.do("() => tokentrace.state.frame") == -1, "the arrows belong to the timeline while it has the focus"
    one.press("0")
    assert one.do("() => tokentrace.timeline.until - tokentrace.timeline.from") == pytest.approx(length)
    one.press("Shift+ArrowDown")
    assert one.do("() => tokentrace.trace.nameOf(tokentrace.state.row)").startswith("chat ")
    one.press("Shift+ArrowDown")
    child = one.do("() => tokentrace.state.row")
    assert one.do("(row) => tokentrace.trace.parent[row]", child) == one.do("() => tokentrace.timeline.pass.request")
    assert one.page.locator(".details h3").inner_text() == one.do("(row) => tokentrace.trace.nameOf(row)", child)
    one.press("Shift+ArrowUp", "Enter", "Escape")
    assert one.page.locator(".details").count() == 0


def test_a_click_shows_a_span_with_all_that_was_recorded(opened: Callable[..., Opened]) -> None:
    trace = linked()
    one = opened(trace)
    row = next(r for r in range(len(trace)) if trace.names[trace.name[r]] == "kernel sgemm")
    one.do("(row) => tokentrace.timeline.showRow(row)", row)
    one.frame()
    one.do("() => tokentrace.state.set({ row: -1 })")
    one.do("() => tokentrace.timeline.canvas.scrollIntoView({ block: 'center' })")
    one.frame()
    x, y = one.do(
        """(row) => {
            const t = tokentrace.timeline, box = t.canvas.getBoundingClientRect();
            const middle = (t.trace.start[row] + t.trace.end[row]) / 2;
            const down = t.lineOf(row).top - t.view.scrollTop + 8;
            return [box.left + t.left + (middle - t.from) * t.span.scale, box.top + down];
        }""",
        row,
    )
    one.page.mouse.move(x, y)
    assert "kernel sgemm" in one.page.locator(".tip").inner_text()
    one.page.mouse.click(x, y)
    panel = one.page.locator(".details")
    assert "kernel sgemm" in panel.inner_text()
    panel.get_by_role("button", name="launch cudaLaunchKernel").click()
    assert panel.locator("h3").inner_text() == "launch cudaLaunchKernel"
    assert "kernel sgemm" in panel.inner_text(), "the link leads back as well"
    panel.get_by_role("button", name="Close").click()
    assert panel.count() == 0


def test_wheel_and_drag_move_the_timeline_and_leave_the_page_alone(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes())
    canvas = one.page.locator(".view canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + 60
    state = "() => [tokentrace.timeline.from, tokentrace.timeline.until]"
    from_, until = one.do(state)
    one.page.mouse.move(x, y)
    one.page.keyboard.down("Control")
    one.page.mouse.wheel(0, -200)
    one.page.keyboard.up("Control")
    one.page.wait_for_function(
        "(before) => tokentrace.timeline.until - tokentrace.timeline.from < before", arg=until - from_
    )
    from_, until = one.do(state)
    one.page.mouse.down()
    one.page.mouse.move(x - 120, y, steps=4)
    one.page.mouse.up()
    moved, end = one.do(state)
    assert moved > from_ and end - moved == pytest.approx(until - from_)
    scrolled = one.do("() => scrollY")
    one.page.mouse.wheel(0, 300)
    one.page.wait_for_function("(before) => scrollY !== before", arg=scrolled)
    assert one.do(state) == [moved, end]


def test_search_counts_lists_and_goes_on(opened: Callable[..., Opened]) -> None:
    trace = three_passes()
    wanted = [r for r in range(len(trace)) if "linear" in trace.names[trace.name[r]]]
    one = opened(trace)
    one.press("/")
    one.page.keyboard.type("linear")
    told = one.page.locator("#found")
    assert told.inner_text().startswith(f"{len(wanted)} spans of 1 name")
    one.press("Enter")
    assert told.inner_text().startswith(f"1 of {len(wanted)} spans of 1 name")
    first = one.do("() => tokentrace.state.row")
    assert first in wanted
    one.press("Enter")
    assert one.do("() => tokentrace.state.row") in set(wanted) - {first}
    one.press("Escape")
    assert told.inner_text() == "" and one.page.locator("#results").is_hidden()


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_what_a_search_finds_stands_where_one_types(opened: Callable[..., Opened], size: tuple[int, int]) -> None:
    one = opened(three_passes(), size=size, reduced_motion="no-preference")
    # The glide of a page that scrolls smoothly ended at the first letter, short of its goal.
    one.page.keyboard.type("/linear", delay=20)
    inside = """(places) => places.map((place) => {
        const { top, bottom } = document.querySelector(place).getBoundingClientRect();
        return top >= document.querySelector(".bar").getBoundingClientRect().bottom && bottom <= innerHeight;
    })"""
    places = ["#search", "#found", "#results li"]
    one.page.wait_for_function(f"(places) => ({inside})(places).every(Boolean)", arg=places)
    one.page.locator("#search").fill("no such span")
    said = one.page.get_by_role("status").filter(has_text="No span has that in its name.")
    assert said.get_attribute("id") == "found"
    assert one.do(inside, ["#search", "#found"]) == [True, True]
    assert one.page.locator("#results").is_hidden()


def test_all_times_have_the_zero_of_the_request_that_the_chosen_span_lies_in(opened: Callable[..., Opened]) -> None:
    trace = three_passes()
    one = opened(trace)
    assert one.do("() => [tokentrace.state.pass, tokentrace.timeline.zeroWord()]") == ["warm", "0 = warm begins"]
    row = next(r for r in range(len(trace)) if trace.names[trace.name[r]] == "aten::linear")
    one.press("/")
    one.page.keyboard.type("linear")
    one.press("Enter")
    assert one.do("() => [tokentrace.state.row, tokentrace.state.pass]") == [row, "deep"]
    start = one.do("(row) => tokentrace.trace.start[row] - tokentrace.timeline.pass.start", row)
    began = f"{duration(start)} after the deep request began"
    assert began in one.page.locator(".details").inner_text()
    assert one.do("(row) => tokentrace.timeline.placeOf(row)", row) == f"at {duration(start)}"
    assert one.do("() => tokentrace.timeline.zeroWord()") == "0 = deep begins"
    # With another pass its span is let go, for its times have another zero; what lies outside says so.
    one.page.locator("#passes").get_by_role("radio", name="cold").click()
    assert one.do("() => tokentrace.state.row") == -1 and one.page.locator(".details").count() == 0
    away = one.do("(row) => tokentrace.trace.start[row] - tokentrace.timeline.pass.start", row)
    told = one.do("(row) => tokentrace.timeline.placeOf(row)", row)
    assert told == f"{duration(start)} into deep, {duration(away)} on this ruler"


def test_a_view_moved_into_another_pass_tells_what_that_one_lacks(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes())
    one.do("() => tokentrace.state.set({ pass: 'deep' })")
    one.frame()
    assert one.page.locator(".view .blank[data-layer='4']").count() == 0
    one.do(
        """() => {
            const { timeline, trace } = tokentrace, warm = trace.story.passes.find((one) => one.name === "warm");
            timeline.show(warm.start, warm.end);
        }"""
    )
    one.frame()
    blank = one.page.locator(".view .blank[data-layer='4']")
    assert "not probed in this pass" in blank.inner_text()
    blank.get_by_role("button", name="Show the deep pass").click()
    one.frame()
    assert blank.count() == 0


def test_evidence_is_one_click_away(opened: Callable[..., Opened]) -> None:
    trace = three_passes()
    one = opened(trace)
    assert one.page.locator("#findings li").count() >= 1
    one.page.locator("#headline .lead button").click()
    row = one.do("() => tokentrace.state.row")
    assert trace.names[trace.name[row]] == "step"
    for index in range(one.page.locator("#findings li button").count()):
        one.page.locator("#findings li button").nth(index).click()
        assert one.do("() => tokentrace.state.row") > 0
        assert one.page.locator(".details h3").is_visible()
    one.page.locator("#gaps li button").first.click()
    marked = one.do("() => tokentrace.timeline.marked")
    gap = analyze(trace).gaps[0]
    assert marked[1] - marked[0] == gap.length_ns


def test_help_opens_and_closes_and_the_theme_turns(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes(), color_scheme="light")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = one.do(ground)
    one.press("t")
    assert one.do(ground) != light
    one.page.locator("#theme").click()
    assert one.do(ground) == light
    one.press("?")
    assert one.page.get_by_role("dialog").is_visible()
    one.page.get_by_role("dialog").get_by_role("button", name="Close").click()
    assert not one.page.locator("#help").is_visible()


def test_dark_follows_the_system_and_text_stays_readable(opened: Callable[..., Opened]) -> None:
    for scheme in ("light", "dark"):
        one = opened(three_passes(), color_scheme=scheme)
        assert one.do("() => document.documentElement.dataset.theme") == scheme
        faint = one.do(Path(__file__).with_name("contrast.js").read_text())
        assert faint == [], f"{scheme}: contrast below 4.5 to 1 (WCAG 2.2, 1.4.3): {faint}"


def test_paper_is_light_and_has_no_buttons(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes(), color_scheme="dark")
    operators = one.do("() => tokentrace.trace.story.report.operators")
    assert operators, "or this test shows nothing"
    drawn = one.do("() => document.querySelector('.view canvas').toDataURL()")
    one.page.emulate_media(media="print")
    one.do("() => dispatchEvent(new Event('beforeprint'))")
    one.frame()
    assert one.do("() => document.documentElement.dataset.theme") == "light"
    assert one.do("() => document.querySelector('.view canvas').toDataURL()") != drawn
    for selector in ("#time-tools", ".around", ".bar nav"):
        assert not one.page.locator(selector).is_visible()
    assert one.page.locator(".lane").count() == 8
    shown = one.page.locator("#operators tbody").first.inner_text()
    assert [row["name"] for row in operators[:8] if row["name"] not in shown] == [], "a figure without its name"
    sizes = one.do(
        """() => ["#told .gap p", "#told .gap .where"].map((place) =>
            parseFloat(getComputedStyle(document.querySelector(place)).fontSize))"""
    )
    assert sizes[0] >= sizes[1], "what is told is smaller than where it lies"
    pdf = one.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF") and len(pdf) > 20_000
    one.do("() => dispatchEvent(new Event('afterprint'))")
    one.page.emulate_media(media="screen")
    one.frame()
    assert one.do("() => document.documentElement.dataset.theme") == "dark"


def test_without_scripts_the_report_is_still_there(browser: Any, tmp_path: Any) -> None:
    path = tmp_path / "plain.html"
    html.write(three_passes(), path)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    text = page.locator("noscript").inner_text()
    assert "Hello! How" in text and "kernel launch" in text
    context.close()


def test_a_blank_lane_says_why_and_leads_to_the_pass_that_has_it(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes())
    one.frame()
    assert one.do("() => tokentrace.state.pass") == "warm"
    blank = one.page.locator(".view .blank[data-layer='4']")
    assert "not probed in this pass" in blank.inner_text()
    blank.get_by_role("button", name="Show the deep pass").click()
    one.frame()
    assert one.do("() => tokentrace.state.pass") == "deep"
    assert one.page.locator(".view .blank[data-layer='4']").count() == 0


def test_no_two_ticks_of_the_ruler_read_alike(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes())
    texts = """(part) => {
        const t = tokentrace.timeline, found = [];
        const length = (t.pass.end - t.pass.start) * part;
        t.from = t.pass.start + (t.pass.end - t.pass.start) * 0.9; t.until = t.from + length;
        const fill = t.context.fillText.bind(t.context);
        t.context.fillText = (text, x, y) => { if (y < 20) found.push(text); fill(text, x, y); };
        t.drawRuler();
        t.context.fillText = fill;
        return found;
    }"""
    for part in (0.1, 1e-2, 1e-3, 1e-4, 1e-6):
        labels = one.do(texts, part)
        assert len(labels) >= 3 and len(set(labels)) == len(labels), labels


def test_enter_in_the_search_brings_the_timeline_onto_the_screen(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes())
    one.page.locator("#search").focus()
    one.page.keyboard.type("linear")
    one.do("() => scrollTo({ top: 0, behavior: 'instant' })")
    one.press("Enter")
    top, bottom, high = one.do(
        "() => { const b = tokentrace.timeline.view.getBoundingClientRect(); return [b.top, b.bottom, innerHeight]; }"
    )
    assert (0 <= top < high and bottom <= high + 1) or (top >= 0 and bottom - top > high - 60)
    assert one.do("() => document.activeElement.id") == "search"
