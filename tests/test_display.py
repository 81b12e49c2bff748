"""Errors that are meant to happen: shown the same everywhere, and missed when they stay away."""

from __future__ import annotations

import gc
import weakref

import pytest

from course_utils.display import MAX_LINES, error_text, shows_error
from course_utils.errors import CourseError


def test_the_error_is_printed_and_the_lesson_goes_on(capsys):
    with shows_error(RuntimeError) as seen:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")
    assert capsys.readouterr().out == "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)\n"
    assert isinstance(seen.error, RuntimeError)


def test_another_error_goes_through():
    with pytest.raises(KeyError), shows_error(RuntimeError, ValueError):
        raise KeyError("x")


def test_any_exception_is_shown_if_none_is_named_but_no_interrupt(capsys):
    with shows_error():
        raise ZeroDivisionError
    assert capsys.readouterr().out == "ZeroDivisionError\n"
    with pytest.raises(KeyboardInterrupt), shows_error():
        raise KeyboardInterrupt


def test_an_error_that_stays_away_is_an_error():
    with pytest.raises(CourseError) as caught, shows_error(RuntimeError, ValueError):
        pass
    assert "did not happen with" in caught.value.what
    assert caught.value.expected == "RuntimeError or ValueError"
    assert caught.value.fix


def test_what_the_block_held_is_freed():
    class Big:
        pass

    def fail():
        big = Big()
        seen_big.append(weakref.ref(big))
        raise RuntimeError("full")

    seen_big: list[weakref.ref] = []
    with shows_error(RuntimeError) as seen:
        fail()
    gc.collect()
    assert seen.error is not None
    assert seen_big[0]() is None


VARYING = {
    "address": ("<A object at 0x7f3b2c1d5e40>", "<A object at 0x…>"),
    "cell file": ("in /tmp/ipykernel_12/345.py", "in <cell>"),
    "package": ("File /usr/lib/python3.11/site-packages/torch/nn/x.py", "File torch/nn/x.py"),
    "backtrace": ("bad\nException raised from f at x.cpp:3 (most recent call first):\nframe #0", "bad"),
    "long line": ("a" * 1000, None),
    "many lines": ("\n".join(map(str, range(50))), None),
}


@pytest.mark.parametrize(("message", "expected"), VARYING.values(), ids=VARYING.keys())
def test_what_differs_between_machines_is_left_out(message, expected):
    text = error_text(RuntimeError(message))
    if expected is None:
        assert len(text) < 450
        assert len(text.splitlines()) <= MAX_LINES
        assert "…" in text
    else:
        assert text == f"RuntimeError: {expected}"
