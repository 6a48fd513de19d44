"""The page of a folded trace: what the run said where the trace carries it, else that it is not known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from page_support import Opened
from support.records import request_pass, three_passes

from tokentrace.carried import carry
from tokentrace.fold import fold
from tokentrace.model import IdSource, Trace
from tokentrace.report import build
from tokentrace.stitch import stitch
from tokentrace.wording import duration

pytestmark = pytest.mark.browser


def once() -> Trace:
    """One pass that looked inside: nothing else tells its times."""
    return stitch([request_pass("once", modules=20, operators=20)], ids=IdSource(3), meta={"prompt": "Hi"})


def lane(one: Opened, layer: int) -> str:
    return " ".join(one.page.locator(f"#lane-{layer}").inner_text().split())


@pytest.mark.parametrize("make", [lambda: three_passes(modules=20, operators=20), once])
def test_what_is_carried_is_shown_as_of_the_whole(opened: Callable[..., Opened], make: Callable[[], Trace]) -> None:
    trace = make()
    whole, folded = build(trace), fold(trace, 900)
    assert len(folded) < len(trace)
    carry(folded, whole)
    one = opened(folded)
    for row in whole.layers:
        if row.status == "seen" and row.own_ns_down:
            assert duration(row.own_ns_down) in lane(one, row.layer)
            assert f"{row.evidence:,}" in lane(one, row.layer)
    assert whole.operators[0]["name"] in one.page.locator("#operators").inner_text()


def test_what_is_not_carried_is_not_known(opened: Callable[..., Opened]) -> None:
    one = opened(fold(once(), 300))
    for layer in (8, 6, 5, 4, 3):
        assert "time not known: spans were folded" in lane(one, layer)
        assert "spans were folded" in one.page.locator(f"#lane-{layer} .name").inner_text()
    assert "not known" in one.page.locator("#gaps").inner_text()
    assert "0 %" not in one.page.locator("#gaps").inner_text()
    assert "Operators are not known: spans were folded." in one.page.locator("#operators").inner_text()


def test_a_step_s_time_in_the_model_is_not_given_to_one_of_its_layers(opened: Callable[..., Opened]) -> None:
    trace = three_passes(modules=20, operators=20)
    whole, folded = build(trace), fold(trace, 900)
    carry(folded, whole)
    one = opened(folded)
    one.press("ArrowRight")
    assert one.do("() => tokentrace.state.frame") == 0
    assert "≤" in lane(one, 5) and "≤ time of layers 5 to 3 together" in one.page.locator("#lanes").inner_text()
    for layer in (4, 3):
        assert "within layer 5, since spans were folded" in lane(one, layer)
