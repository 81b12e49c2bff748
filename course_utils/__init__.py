"""Models, seeding and helpers that the notebooks of the PyTorch Workbook share.

Names are looked up on first use, so that ``import course_utils`` costs next to nothing and the start-up part
of ``course.py`` runs before PyTorch is installed.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "check": "course_utils.exercises.render",
    "hint": "course_utils.exercises.render",
    "solution": "course_utils.exercises.render",
    "progress": "course_utils.exercises.render",
    "claim": "course_utils.claims.render",
    "show": "course_utils.plots",
    "shows_error": "course_utils.display",
    "explore": "course_utils.widgets.panel",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'course_utils' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
