"""Figures of engines that cannot be what they claim are called odd, never printed as a share."""

from __future__ import annotations

import pytest
from doctor_support import detail, everything, ids, look_at_metrics

from tokentrace.probes import _metrics


@pytest.mark.parametrize(("value", "odd"), [("97", True), ("-0.5", True), ("1.0001", True), ("1", False), ("0", False)])
def test_the_use_of_the_kv_cache_is_a_share_or_odd(value: str, odd: bool) -> None:
    text = f"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc {value}\n"
    found = look_at_metrics(text)
    assert ("TT612" in ids(found, "unknown")) is odd and "00%" not in everything(found).replace("100%", "")
    assert ("odd figure" in detail(found, "TT612")) is odd and ("odd figure" in detail(found, "TT613")) is odd
    assert found.verdict.exit_code == 0


def test_one_odd_engine_does_not_hide_a_full_one() -> None:
    text = 'vllm:kv_cache_usage_perc{engine="0"} 97\nvllm:kv_cache_usage_perc{engine="1"} 0.99\n'
    found = look_at_metrics(text)
    assert "TT612" in ids(found, "warn") and "99% full" in detail(found, "TT612")
    assert "9700%" not in everything(found)
    engines = _metrics.parse(text)
    assert [_metrics.kv_usage(one) for one in engines] == [None, 0.99]
    assert len(_metrics.warnings(engines)) == 1
