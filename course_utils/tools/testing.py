"""Run the course's own tests with pytest, in this environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from course_utils.paths import ROOT, course_first
from course_utils.tools.edition import require
from course_utils.tools.environment import wait_for

# Tests run kernels and training side by side: with a thread per core each, they would slow one another down many
# times over. A person who sets these keeps their value.
SINGLE_THREADED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Ours: a mark of tests of which a usual run has a sample, and the variable that asks for all of them.
WHOLE = {"--faults": ("faults", "COURSE_FAULTS"), "--browser": ("browser", "COURSE_BROWSER")}
# A whole run has two parts: tests side by side, then those that must have the machine to themselves.
PARTS = (("-n", "2", "--dist", "worksteal", "-m", "not alone"), ("-m", "alone"))
EXIT_CODES = {0: 0, 1: 1, 2: 130, 5: 1}  # pytest's to ours: passed, failed, interrupted, no test selected
NO_TEST = 5


def run_tests(args: Sequence[str] = ()) -> int:
    """Run pytest on the checkout and return the course's exit code; ``args`` go to pytest as they are.

    Paths in ``args`` are meant from the folder in which the command was typed, or from the checkout. Two are ours:
    ``--faults`` runs the whole fault campaign, ``--browser`` works through every lesson in a browser; of both, a usual
    run has a sample. Without a choice of tests the run has two parts, the first on two cores (``PARTS``).
    """
    require(ROOT / "tests", "tests")
    words, env = list(args), environment_for_tests(os.environ)
    asked = [option for option in WHOLE if option in words]
    if asked:
        marks = " or ".join(WHOLE[option][0] for option in asked)
        words = ["-m", marks, *(word for word in words if word not in WHOLE)]
        env |= {WHOLE[option][1]: "whole" for option in asked}
    command = [sys.executable, "-m", "pytest", *map(resolved, words)]
    os.chdir(ROOT)  # where pytest looks for its settings and for tests/
    if chooses(words):
        return EXIT_CODES.get(wait_for(command, env), 2)
    codes = []
    for part in PARTS:
        codes.append(wait_for([*command, *part], env))
        if codes[-1] not in (0, 1, NO_TEST):  # interrupted, or pytest itself could not go on
            break
    return EXIT_CODES.get(together(codes), 2)


def chooses(words: Sequence[str]) -> bool:
    """Return whether arguments for pytest say which tests to run, how, or where one report goes: then it runs once."""
    how = ("-k", "-m", "-n", "-p", "-x", "--exitfirst", "--maxfail", "--lf", "--ff", "--co", "--pdb", "--junit")
    return any(not word.startswith("-") or word.startswith(how) for word in words)


def together(codes: Sequence[int]) -> int:
    """Return one exit code of pytest for several runs: the first that is not well; no test only if none had one."""
    return next((code for code in codes if code not in (0, NO_TEST)), min(codes))


def resolved(argument: str) -> str:
    """Return an absolute path for an argument that names something in the present folder, else the argument."""
    path, colons, test = argument.partition("::")
    if argument.startswith("-") or not os.path.exists(path):
        return argument
    return os.path.abspath(path) + colons + test


def environment_for_tests(env: dict[str, str] | os._Environ[str]) -> dict[str, str]:
    """Return the variables that tests and all they start see: one thread each, no learner's files touched."""
    return {
        **dict.fromkeys(SINGLE_THREADED, "1"),
        "COURSE_PROGRESS": "off",
        **{name: value for name, value in env.items() if name != "COURSE_PROGRESS"},
        "PYTHONPATH": course_first(env.get("PYTHONPATH")),
    }
