"""What the doctor knows, by theme. Importing a module enters its rules into the table."""

from __future__ import annotations

from importlib import import_module

THEMES = ("data", "model", "loss", "objective", "optimizer", "loop", "evaluation", "numerics", "memory", "devices",
          "checkpoints", "export", "distributed", "failures", "running")  # fmt: skip


def load() -> None:
    """Enter all rules into ``course_utils.doctor.findings.RULES``."""
    for theme in THEMES:
        import_module(f"course_utils.doctor.rules.{theme}")
