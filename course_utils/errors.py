"""Deliberate errors: what happened, what was got, what was expected, what to do next."""

from __future__ import annotations

import errno
import re

from course_utils.text import shorten

MORE_MEMORY = "Close other programs, or raise the limit of the container or of `ulimit -v`; a lesson takes up to 2 GB."
# What the loader of libraries, C++ and PyTorch say.
_NO_MEMORY = re.compile(r"failed to map segment|[Cc]an(?:'t|not) allocate memory|bad_alloc")


class CourseError(Exception):
    """An error that the course raises on purpose.

    The text has up to four parts: the first line says what happened in the reader's words, then come
    ``got`` (the value, shortened), ``expected`` (the rule, with the values of this call) and ``fix``
    (the next thing to try). Each part stays available as an attribute.
    """

    def __init__(self, what: str, *, got: object = None, expected: str = "", fix: str = "") -> None:
        self.what = what
        self.got = "" if got is None else shorten(got if isinstance(got, str) else repr(got))
        self.expected = expected
        self.fix = fix
        parts = [("got", self.got), ("expected", expected), ("fix", fix)]
        lines = [what, *(f"  {name + ':':<9} {text}" for name, text in parts if text)]
        super().__init__("\n".join(lines))

    @property
    def sentence(self) -> str:
        """The error in one line, for a terminal: what happened, then what to do."""
        return f"{self.what} {self.fix}".strip()


class UsageError(CourseError):
    """The command or function was called with something it can't work with (exit status 2)."""


class EnvironmentProblem(CourseError):
    """The machine, not the reader, stands in the way: disk, network, versions (exit status 2)."""


class ShapeError(CourseError):
    """Two shapes that must agree do not."""


class DataError(CourseError):
    """A data file is missing, damaged, or not what its checksum says."""


class CheckpointError(CourseError):
    """A checkpoint can't be read, or belongs to another model or another run."""


class SourceError(CourseError):
    """A lesson's source breaks the rules of the format."""


def is_out_of_memory(name: str, text: str) -> bool:
    """Say whether an error with this name and text means that the machine, or a limit, gave no more memory."""
    return name == "MemoryError" or _NO_MEMORY.search(text) is not None


def out_of_memory(error: BaseException) -> EnvironmentProblem | None:
    """Return the error to show if there was not enough memory, None if ``error`` is about something else."""
    is_refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if not is_refused and not is_out_of_memory(type(error).__name__, str(error)):
        return None
    facts = shorten(str(error))
    return EnvironmentProblem(f"There is not enough memory{f' ({facts})' if facts else ''}.", fix=MORE_MEMORY)
