"""Floating-point operations come from the shapes, or are not given at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentrace.probes._flops import flops


@pytest.mark.parametrize(
    ("name", "shapes", "count"),
    [
        ("aten::mm", [[31, 576], [576, 1536]], 2 * 31 * 576 * 1536),
        ("aten::addmm", [[64], [3, 32], [32, 64], [], []], 2 * 3 * 32 * 64),
        ("aten::bmm", [[9, 31, 64], [9, 64, 31]], 2 * 9 * 31 * 64 * 31),
        ("aten::baddbmm", [[2, 3, 5], [2, 3, 4], [2, 4, 5], [], []], 2 * 2 * 3 * 4 * 5),
        # 9 query heads over 3 key heads: every query head does its own products
        ("aten::_scaled_dot_product_flash_attention_for_cpu", [[1, 9, 1, 64], [1, 3, 40, 64], [1, 3, 40, 64], []],
         2 * 9 * 40 * (64 + 64)),
    ],
)  # fmt: skip
def test_products_and_attention(name: str, shapes: list[Any], count: int) -> None:
    assert flops(name, json.dumps(shapes)) == count


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("aten::add", "[[3, 4], [3, 4]]"),
        ("aten::linear", "[[3, 4], [5, 4]]"),  # its mm has the figure
        ("aten::mm", "[]"),
        ("aten::mm", ""),
        ("aten::mm", "[[3, 4]]"),
        ("aten::mm", "[[3, 4], [5, 6]]"),
        ("aten::mm", "[[3, 4], [[4, 2]]]"),
        ("aten::bmm", "not json"),
    ],
)
def test_what_is_not_known_is_none(name: str, shapes: str) -> None:
    assert flops(name, shapes) is None


@given(st.text(max_size=30), st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists, max_leaves=12))
def test_odd_shapes_never_raise(text: str, shapes: Any) -> None:
    for name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot_product_flash_attention"):
        assert flops(name, text) is None
        result = flops(name, json.dumps(shapes))
        assert result is None or result >= 0
