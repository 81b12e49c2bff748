"""Small tools for measurements: what an attempt ends in, which warnings it gives, how two times compare."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

from course_utils.display import error_text
from course_utils.text import shorten

WORKS = "works"
MAX_WIDTH = 200  # characters of an error message kept as evidence


def attempt(action: Callable[[], Any]) -> str:
    """Return ``works``, or the error that the action ended in: ``RuntimeError: …``."""
    try:
        action()
    except Exception as error:
        return shorten(error_text(error), MAX_WIDTH)
    return WORKS


def warnings_of(action: Callable[[], Any]) -> str:
    """Return the kinds of warnings that the action gives and their first words, or ``none``."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        action()
    return "; ".join(f"{entry.category.__name__}: {shorten(str(entry.message), 80)}" for entry in seen) or "none"


def time_ratio(first: Callable[[], Any], second: Callable[[], Any], repeats: int = 15) -> float:
    """Return how many times longer the first action takes: the median of paired runs, in alternating order."""
    first(), second()  # warm up: caches, lazy set-up
    ratios = []
    for turn in range(repeats):
        pair = [first, second] if turn % 2 else [second, first]
        seconds = {}
        for action in pair:
            start = time.perf_counter()
            action()
            seconds[action] = time.perf_counter() - start
        ratios.append(seconds[first] / seconds[second])
    return median(ratios)
