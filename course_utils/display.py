"""Show an error that is meant to happen, in a form that is the same on every machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from course_utils.errors import CourseError
from course_utils.text import shorten

MAX_LINES = 6
MAX_WIDTH = 400  # characters per line; PyTorch's longest helpful messages fit
# What differs between two runs or two machines: addresses, temporary names, where packages are installed.
_VARYING = (
    (re.compile(r"0x[0-9a-fA-F]{6,}"), "0x…"),
    (re.compile(r"\S*ipykernel_\d+[/\\]\d+\.py"), "<cell>"),
    (re.compile(r"(?:[A-Za-z]:)?[^\s\"'(]*[/\\](?:site|dist)-packages[/\\]"), ""),
)
_BACKTRACE = re.compile(r"\n\s*(?:Exception raised from |C\+\+ CapturedTraceback|frame #0)")


@dataclass
class SeenError:
    """What ``shows_error`` met; ``error`` is None until it happened. Its traceback is dropped to free memory."""

    error: BaseException | None = None


@contextmanager
def shows_error(*types: type[Exception]) -> Iterator[SeenError]:
    """Run a block that is meant to fail, and print its error in place of a traceback.

    Args:
        types: the errors that may happen; any ``Exception`` if none is named. Others go through unchanged.

    Raises:
        CourseError: if the block ends without an error.

    Example:
        >>> with shows_error(ZeroDivisionError):
        ...     1 / 0
        ZeroDivisionError: division by zero
    """
    expected = types or (Exception,)
    seen = SeenError()
    try:
        yield seen
    except expected as error:
        seen.error = error.with_traceback(None)
        print(error_text(error))
    else:
        names = " or ".join(kind.__name__ for kind in expected)
        raise CourseError(
            f"The error that this cell shows did not happen with {_versions()}.",
            expected=names,
            fix="this version accepts what older ones refused; report the cell to the course's authors.",
        )


def error_text(error: BaseException) -> str:
    """Return ``Type: message`` without addresses, install paths and C++ frames, cut to a few lines."""
    message = _BACKTRACE.split(str(error), maxsplit=1)[0].strip()
    for pattern, replacement in _VARYING:
        message = pattern.sub(replacement, message)
    lines = [line.rstrip() if len(line) <= MAX_WIDTH else shorten(line, MAX_WIDTH) for line in message.split("\n")]
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], "…"]
    name = type(error).__name__
    return f"{name}: " + "\n".join(lines) if message else name


def _versions() -> str:
    torch = sys.modules.get("torch")
    return f"PyTorch {torch.__version__}" if torch is not None else f"Python {sys.version.split()[0]}"
