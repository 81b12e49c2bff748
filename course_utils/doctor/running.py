"""Run the reader's code so that it can neither print into the report, run for ever, nor end the examination."""

from __future__ import annotations

import contextlib
import io
import os
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from course_utils.doctor.deadline import OutOfTime, limited
from course_utils.doctor.where import line_of_error


@dataclass
class Failure:
    """An exception of the reader's code.

    Args:
        kind: its class.
        text: its message.
        where: the reader's line, ``file.py:12``.
        line: text of that line.
        error: the exception itself, without its frames.
        in_backward: whether a backward pass raised it.
        again: runs the reader's code as it ran when it failed, or None.
    """

    kind: str
    text: str
    where: str
    line: str
    error: BaseException
    in_backward: bool = False
    again: Callable[[], Any] | None = None


@dataclass
class Outcome:
    """What running some code of the reader gave."""

    value: Any = None
    failure: Failure | None = None
    is_over_time: bool = False
    seconds: float = 0.0
    warnings: list[tuple[str, str]] = field(default_factory=list)  # category, text

    @property
    def is_done(self) -> bool:
        return self.failure is None and not self.is_over_time


def attempt(function: Callable[[], Any], limit_s: float) -> Outcome:
    """Call ``function`` for at most ``limit_s`` seconds; its output is swallowed, its warnings and error are kept."""
    outcome = Outcome()
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught, quiet():
        warnings.simplefilter("always")
        try:
            with limited(limit_s):
                outcome.value = function()
        except OutOfTime:
            outcome.is_over_time = True
        except (Exception, SystemExit) as error:
            outcome.failure = failure_of(error)
    outcome.seconds = time.perf_counter() - started
    outcome.warnings = [(warning.category.__name__, str(warning.message)) for warning in caught]
    return outcome


def failure_of(error: BaseException) -> Failure:
    """Return what there is to say about an exception, and let go of the frames that it holds."""
    where, line = line_of_error(error.__traceback__)
    names = {entry.name for entry in traceback.extract_tb(error.__traceback__)}
    failure = Failure(type(error).__name__, str(error), where, line, error, in_backward="backward" in names)
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__context__
    return failure


@contextlib.contextmanager
def quiet() -> Any:
    """Swallow what the reader's code prints, also to a progress bar on standard error."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
