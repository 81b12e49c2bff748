"""The environment report, made in a process of its own beside a run: it imports torch, which the runner never does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from course_utils.paths import course_first

WAIT_S = 60.0  # after the run has ended
_COLLECT = """
import json, os
os.nice(10) if hasattr(os, "nice") else None  # the run comes first
from course_utils.tools.processes import ending_with_input
with ending_with_input():
    from course_utils.tools.envreport import collect
    print("\\n" + json.dumps(collect()))
"""


@contextmanager
def facts_of_environment(wanted: bool = True) -> Iterator[Callable[[], dict[str, Any] | None]]:
    """Begin to collect the environment report; the function that is given waits for it and returns it.

    It returns None if the report is not wanted or can't be had, and never raises. The process ends with the block.
    """
    if not wanted:
        yield lambda: None
        return
    alive, mine = os.pipe()  # nothing is written: that it closes tells the process that this one is gone
    process = subprocess.Popen(
        [sys.executable, "-c", _COLLECT],
        stdin=alive,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONPATH": course_first(os.environ.get("PYTHONPATH"))},
        start_new_session=True,  # Ctrl-C ends the run, whose report wants these facts
    )
    os.close(alive)
    answers: list[dict[str, Any] | None] = []

    def wait() -> dict[str, Any] | None:
        if not answers:
            answers.append(None)
            with contextlib.suppress(subprocess.TimeoutExpired, ValueError, IndexError):
                answers[0] = json.loads(process.communicate(timeout=WAIT_S)[0].splitlines()[-1])
        return answers[0]

    try:
        yield wait
    finally:
        process.kill()
        process.wait()
        os.close(mine)
        if process.stdout is not None:
            process.stdout.close()
