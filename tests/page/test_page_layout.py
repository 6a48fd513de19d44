"""The page at the sizes of a phone, a tablet and a screen: everything is there, nothing sticks out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from page_support import Opened
from support.records import T0, request_pass, three_passes, without_layers

from tokentrace.analyze._passes import passes
from tokentrace.errors import EndpointError
from tokentrace.interrupts import mark
from tokentrace.model import IdSource
from tokentrace.probe import LayerState
from tokentrace.report import FindingRow, build
from tokentrace.stitch import Group, stitch
from tokentrace.wording import duration, share

SIZES = {"phone": (390, 844), "tablet": (820, 1180), "screen": (1440, 900)}
SECTIONS = ("headline", "way", "time", "told", "own", "operators", "power", "unseen", "about")

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SIZES)
def test_a_page_shows_the_whole_run_at_every_size(
    opened: Callable[..., Opened], name: str, scheme: str, tmp_path: Path
) -> None:
    one = opened(three_passes(), size=SIZES[name], color_scheme=scheme)
    assert one.do("() => document.documentElement.scrollWidth - innerWidth") <= 0
    lanes = one.do(
        "() => [...document.querySelectorAll('.lane')].map((lane) => [lane.id, lane.getBoundingClientRect().height])"
    )
    assert [lane for lane, _ in lanes] == [f"lane-{number}" for number in range(8, 0, -1)]
    assert all(height > 30 for _, height in lanes)
    for section in SECTIONS:
        assert one.page.locator(f"#{section}").is_visible(), section
        assert one.page.locator(f"#{section}").inner_text().strip(), section
    outside = one.do(
        """() => [...document.querySelectorAll("main *")].filter((e) => {
            const box = e.getBoundingClientRect();
            return box.width && box.right > innerWidth + 1 && !e.closest(".strip, .scroll, .form, .unseen-text");
        }).map((e) => `${e.tagName}.${e.className}`)"""
    )
    assert outside == []
    assert one.colours(".view canvas") > 8
    assert one.colours(".map canvas") > 4
    picture = tmp_path / f"{name}.png"
    one.page.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 40_000


def test_the_headline_tells_the_reports_figures(opened: Callable[..., Opened]) -> None:
    from tokentrace.report import build

    trace = three_passes()
    report = build(trace)
    one = opened(trace, report)
    told = one.page.locator("#headline").inner_text().replace("\n", " ")
    assert report.reply in told
    assert report.slowest in told
    assert duration(report.ttft_ns or 0) in told
    assert duration(report.wall_ns) in told
    for row in report.layers:
        lane = one.page.locator(f"#lane-{row.layer}").inner_text()
        for spent in (row.own_ns_down, row.own_ns_up):
            if spent:
                assert duration(spent) in lane
        if row.status == "seen" and row.own_ns_down:
            assert row.form_out in lane
    assert report.layers[-1].reason in one.page.locator("#unseen").inner_text()
    assert report.layers[-1].fix in one.page.locator("#unseen").inner_text()


def test_the_rails_run_through_every_lane_twice(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes())
    crossed = one.do(
        """() => {
            const path = document.querySelector(".rails path"), whole = path.getTotalLength();
            const box = document.getElementById("lanes").getBoundingClientRect();
            const points = Array.from({ length: 400 }, (_, i) => path.getPointAtLength((whole * i) / 399));
            return [...document.querySelectorAll(".dot")].map((dot) => {
                const { left, top, width, height } = dot.getBoundingClientRect();
                const x = left - box.left + width / 2, y = top - box.top + height / 2;
                return Math.min(...points.map((p) => Math.hypot(p.x - x, p.y - y)));
            });
        }"""
    )
    assert len(crossed) == 16
    assert max(crossed) < 8


def test_passes_stand_side_by_side(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes())
    assert one.page.locator("#layers thead th").all_inner_texts()[1:] == ["cold", "warm speaks for the run", "deep"]
    assert one.page.locator("#layers tbody tr").count() >= 10


def test_a_request_seen_only_from_outside(opened: Callable[..., Opened]) -> None:
    ids = IdSource(5)
    records = request_pass("once", ids=ids, deep=False, states=[LayerState(8)])
    records.records = [record for record in records.records if record.layer == 8 and record.process == "100"]
    one = opened(stitch([records], ids=ids, meta={"prompt": "Hi"}))
    assert one.page.locator(".lane.off").count() == 7
    assert one.page.locator("#unseen li").count() == 7
    assert one.page.locator(".frame").count() == 3
    one.press("ArrowRight")
    assert "Hello" in one.page.locator(".ends").inner_text()
    assert "time not known" not in one.page.locator("#lane-8").inner_text()


def test_a_request_that_failed_or_was_cut_says_so(opened: Callable[..., Opened]) -> None:
    ids = IdSource(5)
    error = EndpointError("the server refused the key (401)", fix="set OPENAI_API_KEY", layer=8)
    failed = stitch([request_pass("once", ids=ids, deep=False, steps=0, error=error)], ids=ids, meta={"prompt": "Hi"})
    one = opened(failed)
    told = one.page.get_by_role("alert").inner_text()
    assert "the server refused the key (401)" in told and "set OPENAI_API_KEY" in told
    assert one.page.locator(".lane").count() == 8
    ids = IdSource(6)
    cut = [request_pass("cold", ids=ids, deep=False), request_pass("warm", ids=ids, deep=False, at=T0 + 10**9, steps=1)]
    one = opened(stitch(cut, ids=ids, meta={"prompt": "Hi"}))
    assert one.page.locator("#passes button").all_inner_texts() == ["cold", "warm"]


def test_time_of_no_layer_has_no_layers_colour(opened: Callable[..., Opened]) -> None:
    """Seen from outside only, most of a request is the wait for the server, which no layer owns."""
    ids = IdSource(5)
    records = request_pass("once", ids=ids, deep=False, states=[LayerState(8)])
    records.records = [record for record in records.records if record.layer == 8 and record.process == "100"]
    trace = stitch([records], ids=ids, meta={"prompt": "Hi"})
    report = build(trace)
    assert report.unattributed_ns > 0.5 * report.wall_ns, "or this test shows nothing"
    one = opened(trace, report)
    parts = one.do(
        """() => [...document.querySelectorAll(".frame .stack")].map((stack) => {
            const high = (i) => i.getBoundingClientRect().height;
            return [[...stack.querySelectorAll(".nobody")].reduce((sum, i) => sum + high(i), 0), high(stack)];
        })"""
    )
    frames = one.do("() => tokentrace.timeline.pass.frames")
    for (nobody, high), frame in zip(parts, frames, strict=True):
        part = frame["unattributed"] / (frame["end"] - frame["start"])
        assert nobody == pytest.approx(part * high, abs=1.5)
    widths = one.do(
        """() => Object.fromEntries([["lane", "#lane-8 .meter i"], ["rest", "#lanes .rest .meter i"],
            ["table", "#layers [data-layer='8'] .meter i"], ["gap", "#layers .rest .meter i"]].map(([name, where]) => {
            const bar = document.querySelector(where);
            return [name, parseFloat(bar.style.width) / 100];
        }))"""
    )
    row = next(row for row in report.layers if row.layer == 8)
    assert widths["lane"] == pytest.approx((row.own_ns_down or 0) / report.wall_ns, rel=0.01)
    assert widths["table"] == pytest.approx((row.own_ns_down or 0) / report.wall_ns, rel=0.01)
    assert widths["rest"] == widths["gap"] == pytest.approx(report.unattributed_ns / report.wall_ns, rel=0.01)


@pytest.mark.parametrize("width", [390, 1280])
def test_names_without_a_blank_do_not_widen_the_page(opened: Callable[..., Opened], width: int) -> None:
    name = "kernel_" + "Cijk_Ailk_Bljk_" * 30
    trace = three_passes()
    report = build(trace, prompt=name)
    report.reply = report.model = report.slowest = name
    report.slowest = f"`{name}` took the most."
    report.findings.append(FindingRow(3, "warn", name, name, name))
    report.notes.append(name)
    report.files.append(name)
    report.operators = [{"name": name, "calls": 3, "own_ns": 5, "total_ns": 5, "shapes": name}]
    report.gaps = [{"length_ns": 5, "start_ns": 0, "before": name, "after": name, "around": name}]
    report.layers[0].reason = report.layers[7].reason = report.layers[7].fix = name
    one = opened(trace, report, size=(width, 900))
    assert one.do("() => document.documentElement.scrollWidth") <= width
    assert "`" not in one.page.locator("#headline .lead").inner_text()
    # Nor do they push the figures beside them out of sight.
    sight, figures = one.do(
        """() => [document.querySelector("#operators .scroll").getBoundingClientRect().right,
            [...document.querySelectorAll("#operators td")].map((cell) => cell.getBoundingClientRect().right)]"""
    )
    assert len(figures) == 4 and max(figures) <= sight + 1


def test_nothing_lies_beside_the_rails_before_the_token_runs(opened: Callable[..., Opened]) -> None:
    one = opened(three_passes(), size=(1920, 1000))
    seen = "() => [...document.querySelectorAll('.rails circle')].map((c) => getComputedStyle(c).visibility)"
    assert one.do(seen) == ["hidden", "hidden"]


def test_an_interrupted_run_says_so_first(opened: Callable[..., Opened]) -> None:
    ids = IdSource(6)
    records = [request_pass("once", ids=ids, deep=False, steps=1)]
    assert records[0].exchange is not None
    records[0].exchange.notes.append("interrupted")
    one = opened(stitch(records, ids=ids, meta={"prompt": "Hi"}))
    assert "interrupted" in one.page.locator("#headline").get_by_role("alert").inner_text()
    between = three_passes()
    mark(between, "interrupted after the warm pass; the deep pass was not run")
    alert = opened(between).page.locator("#headline").get_by_role("alert").inner_text()
    assert alert.startswith("This run was interrupted after the warm pass; the deep pass was not run.")
    assert "What is shown is whole" in alert
    assert opened(three_passes()).page.locator("#headline [role=alert]").count() == 0


@pytest.mark.parametrize("width", [390, 1280])
def test_a_chain_tells_its_stages_and_a_stream_that_it_closed(opened: Callable[..., Opened], width: int) -> None:
    ids = IdSource(8)
    calls = [
        request_pass("plan", ids=ids, deep=False, steps=2),
        request_pass("answer", ids=ids, deep=False, at=T0 + 10**9, decode_ms=30),
    ]
    calls[0].group, calls[1].group = 1, 0
    assert calls[1].exchange is not None
    calls[1].exchange.let_go = "the program closed the stream after 2 chunks"
    groups = [Group("outer", T0, T0 + 2 * 10**9), Group("plan", T0, T0 + 10**9 // 2, above=0)]
    trace = stitch(calls, groups=groups, ids=ids, window=(T0, T0 + 3 * 10**9), attributes={"tokentrace.mode": "trace"})
    report = build(trace)
    one = opened(trace, report, size=(width, 900))
    rows = [line.split("\t") for line in one.page.locator("table.stages tbody tr").all_inner_texts()]
    assert [row[:3] for row in rows] == [
        ["outer", "2.00 s", "67 %"], ["plan", "500 ms", "17 %"], ["outside of every stage", "1.00 s", "33 %"]
    ]  # fmt: skip
    assert [row[4] for row in rows] == ["2", "1", "0"]
    assert one.page.locator("#headline [role=alert]").count() == 0
    assert "closed the stream after 2 chunks" in one.page.locator(".calls .call").nth(1).inner_text()
    one.page.locator(".calls .call").nth(1).click()
    assert "Not whole: the program closed the stream after 2 chunks." in one.page.locator(".chosen").inner_text()
    assert one.do("() => document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [390, 1280])
def test_a_chain_shows_every_call_with_its_share_and_lets_one_choose(opened: Callable[..., Opened], width: int) -> None:
    ids = IdSource(8)
    calls = [
        request_pass("plan", ids=ids, deep=False, steps=2),
        request_pass("answer" + "_long" * 40, ids=ids, deep=False, at=T0 + 10**9, decode_ms=30),
    ]
    trace = stitch(calls, ids=ids, window=(T0, T0 + 2 * 10**9), meta={"prompt": "Hi"})
    report = build(trace)
    one = opened(trace, report, size=(width, 900))
    told = one.page.locator(".calls .call").all_inner_texts()
    assert len(told) == len(report.passes) == 2
    whole = trace.end_ns[0] - trace.start_ns[0]
    for text, (name, row) in zip(told, report.passes.items(), strict=True):
        assert name in text and duration(row.wall_ns) in text and share(row.wall_ns, whole) in text
    assert one.do("() => document.documentElement.scrollWidth") <= width
    for index, name in enumerate(report.passes):
        one.page.locator(".calls .call").nth(index).click()
        assert one.do("() => tokentrace.state.pass") == name
        lanes = one.page.locator("#lanes").inner_text()
        assert duration(report.passes[name].own_ns["8.down"]) in lanes
        reply = one.do("() => tokentrace.timeline.pass.reply")
        assert reply and reply in one.page.locator(".ends").inner_text()
        assert (report.layers[0].form_out in lanes) == (name == report.headline_pass), "forms of another call"
        chosen = one.page.locator(".chosen").inner_text()
        assert name in chosen and reply in chosen and duration(report.passes[name].wall_ns) in chosen
        assert one.page.locator(".chosen .whole button").count() >= 2
        if name != report.headline_pass:
            pace = report.passes[name].pace
            assert pace["exact"] and duration(pace["window_ns"] / pace["tokens"]) in " ".join(chosen.split())
    assert opened(three_passes()).page.locator(".calls").count() == 0


def test_the_large_figures_of_a_chain_are_those_of_the_chain(opened: Callable[..., Opened]) -> None:
    ids = IdSource(8)
    calls = [
        request_pass("plan", ids=ids, deep=False, steps=2),
        request_pass("beside", ids=ids, deep=False, steps=2, at=T0 + 10**6),
        request_pass("answer", ids=ids, deep=False, at=T0 + 10**9, decode_ms=30),
    ]
    for number, one_call in enumerate(calls):
        assert one_call.exchange is not None
        one_call.exchange.usage = {"prompt_tokens": 10 + number, "completion_tokens": 3} if number else None
    trace = stitch(calls, ids=ids, root_name="digest", window=(T0, T0 + 2 * 10**9), meta={"prompt": "Hi"})
    report = build(trace)
    one = opened(trace, report)
    large = one.page.locator("#headline > .figures").inner_text()
    views = [passes(trace)[call.name] for call in calls]
    busy = max(view.end_ns for view in views[:2]) - views[0].start_ns + views[2].wall_ns
    assert all(text in large for text in ("Calls", "3", duration(2 * 10**9), share(busy, 2 * 10**9), "23+ → 6+"))
    lead = one.page.locator("#headline > .lead").inner_text()
    assert lead.startswith(f"answer took the most: {duration(views[2].wall_ns)}")
    assert f"one after the other they would take {duration(sum(view.wall_ns for view in views))}" in lead
    assert duration(2 * 10**9 - busy) in lead
    assert one.page.locator("#run").inner_text().startswith("digest")
    assert "the program digest" in one.page.locator("#headline .facts").inner_text()


@pytest.mark.parametrize("number", [10, 24])
def test_no_call_of_a_program_is_hidden_without_a_word(opened: Callable[..., Opened], number: int) -> None:
    ids = IdSource(9)
    calls = [request_pass(f"call {n}", ids=ids, deep=False, steps=1, at=T0 + n * 10**8) for n in range(number)]
    trace = stitch(calls, ids=ids, window=(T0, T0 + number * 10**8), meta={"prompt": "Hi"})
    one = opened(trace, size=(1440, 900))
    one.frame()
    high, shown = one.do(
        "() => { const l = document.querySelector('.calls'); return [l.scrollHeight, l.clientHeight]; }"
    )
    said = one.page.locator(".calls + .hint").inner_text()
    assert said.startswith(f"{number} calls")
    assert (high > shown) == ("the list scrolls" in said) == (number > 16)
    one.page.locator("#passes button").last.click()
    row, frame = (one.page.locator(where).bounding_box() for where in (".call[aria-checked=true]", ".calls"))
    assert row and frame and frame["y"] <= row["y"] and row["y"] + row["height"] <= frame["y"] + frame["height"] + 1
    # Side by side each has room for its figures.
    widths = one.do(
        "() => [...document.querySelectorAll('#layers tbody td .amount')].map((a) => [a.scrollWidth, a.clientWidth])"
    )
    assert [pair for pair in widths if pair[0] > pair[1]] == []


def test_time_that_holds_layers_left_out_says_so_wherever_it_is_shown(opened: Callable[..., Opened]) -> None:
    ids = IdSource(4)
    one = opened(stitch([without_layers((5, 4, 3, 2, 1), ids=ids)], ids=ids, meta={"prompt": "Hi", "mode": "local"}))
    word = "with layers 5 to 3, not told apart"
    for place in ("#headline .legend", "#lane-6", "#layers [data-layer='6']"):
        assert word in one.page.locator(place).inner_text(), place
    assert one.page.locator("#lane-6 .spent b").first.inner_text().startswith("≤ ")
    assert "≤ time of the engine queue" in one.page.locator("#lanes .note").inner_text()
    assert word in (one.page.locator("#headline .whole button[data-layer='6']").get_attribute("title") or "")
    assert "≤" not in one.page.locator("#lane-7").inner_text()
    assert "told apart" not in opened(three_passes()).page.locator("main").inner_text()
