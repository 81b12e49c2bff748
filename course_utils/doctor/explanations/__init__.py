"""Explanations of exceptions, the more exact ones first. Importing a module enters its explanations into the table."""

from __future__ import annotations

from importlib import import_module

# The order counts: the first explanation whose pattern fits, and that has something to say, is taken.
THEMES = ("workers", "memory", "gradients", "labels", "dtypes", "shapes", "loading", "state", "calls")


def load() -> None:
    """Enter all explanations into the table of ``course_utils.doctor.explain``."""
    for theme in THEMES:
        import_module(f"course_utils.doctor.explanations.{theme}")
