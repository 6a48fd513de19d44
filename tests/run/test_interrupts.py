"""Ctrl-C while something is being kept."""

from __future__ import annotations

import signal

import pytest

from tokentrace.interrupts import held


def test_the_first_is_noted_and_the_second_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt), held() as outer:
        signal.raise_signal(signal.SIGINT)
        assert outer.came
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_that_came_inside_of_another_are_known_there() -> None:
    """Whoever saves one request after another holds them, too, and must not begin with the next one."""
    with held() as outer:
        with pytest.raises(KeyboardInterrupt), held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        assert outer.came
    with held() as later:
        assert not later.came
