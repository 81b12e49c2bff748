"""The one place that says how much of the campaign runs, and with which draws.

A test run has a bounded sample; ``course.py test --faults`` sets COURSE_FAULTS=whole and runs all of it.
COURSE_FAULTS_SEED gives other draws. What a test did is printed at its end, as ``FAULTS name: what``, and kept in the
file that COURSE_FAULTS_LOG names.
"""

from __future__ import annotations

import os
import random

SEED = int(os.environ.get("COURSE_FAULTS_SEED", "10"))
IS_WHOLE = os.environ.get("COURSE_FAULTS") == "whole"


def size(sample: int, whole: int) -> int:
    """Return how many trials a test makes: ``sample`` in a usual run, ``whole`` in the campaign."""
    return whole if IS_WHOLE else sample


def draws(*words: object) -> random.Random:
    """Return a generator of draws of its own for each set of words."""
    return random.Random(f"{SEED} {words}")


def report(name: str, what: str) -> None:
    """Keep a line about what was tried; the figures of docs/reliability.md are made of these."""
    line = f"FAULTS {name}: {what}"
    print(line)
    if log := os.environ.get("COURSE_FAULTS_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(line + "\n")
