"""How long a reader waits for ``check``, ``hint`` and ``claim``: ``python -m benchmarks.checking KIND NAME ...``.

Each is called as in a notebook, checks with the reference answer. Prints JSON: for each name its milliseconds, wall
time. Some checks start processes that import this file again: hence the guard at its end.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from io import StringIO

REPEATS = 3  # the best of so many, of those that answer at once
LONG_S = 1.0  # is measured once
KINDS = ("check", "hint", "claim")


def call(kind: str, name: str) -> Callable[[], None]:
    """Return the call that is timed; what it needs beforehand is done."""
    from course_utils import check, claim, hint
    from course_utils.exercises.reference import answer_of, reference_program

    if kind == "check":
        return partial(check, name, answer_of(name, *reference_program(name)))
    return partial({"hint": hint, "claim": claim}[kind], name)


def milliseconds(kind: str, name: str) -> float:
    """Return how long one call takes."""
    best = float("inf")
    with redirect_stdout(StringIO()):
        timed = call(kind, name)
        for _ in range(REPEATS):
            before = time.perf_counter()
            timed()
            best = min(best, time.perf_counter() - before)
            if best > LONG_S:
                break
    return best * 1e3


def first(kind: str, name: str) -> float:
    """Return how long the first call of a process takes."""
    with redirect_stdout(StringIO()):
        timed = call(kind, name)
        before = time.perf_counter()
        timed()
    return (time.perf_counter() - before) * 1e3


def main(kind: str, names: list[str]) -> None:
    """Measure and print; ``first`` before a kind measures the first call of this process."""
    warnings.simplefilter("ignore")
    measured = first if kind.startswith("first ") else milliseconds
    kind = kind.removeprefix("first ")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # answers write files
        times = {name: measured(kind, name) for name in names}
        os.chdir("/")
    print(json.dumps(times))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
