"""Times never pass through a float, whatever form they are written in."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrace.importers._numbers import decimal_ns, microseconds_to_ns

WHOLE = st.integers(0, 2**50).map(str)
EXACT = st.tuples(st.integers(0, 2**50), st.integers(0, 999)).map(lambda p: f"{p[0]}.{p[1]:03d}")
FREE = st.decimals(min_value=0, max_value=10**14, places=5, allow_nan=False).map(lambda d: format(d, "f"))
ODD = st.sampled_from(["1e3", "1.5E+2", "-0.250", "-3", "0", "0.0", ".5", "5.", "1712195495406752.750"])


def expected(text: str) -> int:
    return int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(WHOLE, EXACT, FREE, ODD), min_size=1, max_size=40))
def test_any_mixture_is_exact(texts: list[str]) -> None:
    values, bad = microseconds_to_ns([text.encode() for text in texts])
    assert bad is None
    assert values.tolist() == [expected(text) for text in texts]
    assert values.dtype == np.int64


@given(st.lists(EXACT, min_size=1, max_size=40), st.booleans())
def test_quoted_numbers_count_too(texts: list[str], quoted: bool) -> None:
    given_ = [f'"{text}"'.encode() if quoted else text.encode() for text in texts]
    assert microseconds_to_ns(given_)[0].tolist() == [expected(text) for text in texts]


def test_a_double_would_be_wrong_here() -> None:
    text = "1712195495406752.753"
    assert decimal_ns(text.encode()) == 1712195495406752753
    assert int(float(text) * 1000) != 1712195495406752753


@pytest.mark.parametrize("text", ["NaN", "Infinity", "null", "", "abc", "1e400", "9" * 30, "1.2.3", "--1", "9" * 500])
def test_what_is_no_time_is_marked_not_guessed(text: str) -> None:
    values, bad = microseconds_to_ns([b"1.500", text.encode(), b"2"])
    assert bad is not None and bad.tolist() == [False, True, False]
    assert values[0] == 1500 and values[2] == 2000


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=12).filter(lambda b: b"\n" not in b), min_size=1, max_size=8))
def test_no_bytes_break_it(texts: list[bytes]) -> None:
    values, bad = microseconds_to_ns(texts)
    assert len(values) == len(texts)
    for number, text in enumerate(texts):
        if bad is None or not bad[number]:
            assert decimal_ns(text.replace(b'"', b"")) == values[number]
