"""The training doctor: point it at your own training code, and it says what is wrong, with evidence and the repair.

``examine`` looks at a model, a loader, a loss, an optimizer and your own functions, and leaves everything as it
was. ``watch`` goes along with a loop that runs, and speaks up when something goes wrong.
"""

from __future__ import annotations

from importlib import import_module

from course_utils.doctor.history import keep as _keep_records

_HOME = {
    "examine": "course_utils.doctor.examination",
    "Report": "course_utils.doctor.report",
    "Finding": "course_utils.doctor.findings",
    "watch": "course_utils.doctor.watching",
}
__all__ = sorted(_HOME)

_keep_records()


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'course_utils.doctor' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
