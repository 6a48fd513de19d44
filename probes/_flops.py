"""Floating-point operations of matrix products and attention, from their input shapes.

    mm      [m,k] x [k,n]                          2 m k n
    addmm   bias, [m,k] x [k,n]                    2 m k n  (the addition of the bias is not counted, as in torch)
    bmm     [b,m,k] x [b,k,n], baddbmm likewise    2 b m k n
    sdpa    q [b,h,l,d], k [b,h,s,d], v [..,s,e]   2 b h l s (d + e), every pair counted, also masked ones

A product counts one multiplication and one addition for each term. Operators that only call these (linear, matmul,
scaled_dot_product_attention) have no figure of their own, so that a sum over operators counts nothing twice.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import Any

_FUSED_ATTENTION = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
)


@lru_cache(maxsize=4096)  # one model has few combinations, and calls each of them often
def flops(name: str, shapes: str) -> int | None:
    """Floating-point operations of one call; `shapes` is the JSON text of its input shapes. None where the operator has
    no formula here or the shapes are not known.
    """
    if name not in _FORMULAS or not shapes:
        return None
    try:
        found: list[Any] = json.loads(shapes)
        return _FORMULAS[name](found)
    except (ValueError, TypeError, IndexError):
        return None


def _dims(shape: Any, count: int) -> list[int]:
    """A tensor's dimensions, exactly `count` of them; raises ValueError else."""
    if not isinstance(shape, list) or len(shape) != count or not all(isinstance(d, int) and d >= 0 for d in shape):
        raise ValueError(f"expected {count} dimensions")
    return shape


def _mm(shapes: list[Any]) -> int:
    (m, k), (k2, n) = _dims(shapes[0], 2), _dims(shapes[1], 2)
    if k != k2:
        raise ValueError("inner dimensions differ")
    return 2 * m * k * n


def _bmm(shapes: list[Any]) -> int:
    (b, m, k), (b2, k2, n) = _dims(shapes[0], 3), _dims(shapes[1], 3)
    if (b, k) != (b2, k2):
        raise ValueError("inner dimensions differ")
    return 2 * b * m * k * n


def _attention(shapes: list[Any]) -> int:
    query, key, value = (_dims(s, 4) for s in shapes[:3])
    return 2 * prod(query[:3]) * key[2] * (query[3] + value[3])


_FORMULAS = {
    "aten::mm": _mm,
    "aten::addmm": lambda shapes: _mm(shapes[1:]),
    "aten::bmm": _bmm,
    "aten::baddbmm": lambda shapes: _bmm(shapes[1:]),
    **dict.fromkeys(_FUSED_ATTENTION, _attention),
}
