"""Small notebooks that behave badly, and a look at what is left of them; used by the tests of the runner."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import psutil
import pytest

from course_utils.errors import EnvironmentProblem, UsageError
from course_utils.tools import processes
from course_utils.tools.runner import RunOptions, run_course

PARAMETERS = 'SEED = 0\nDEVICE = "auto"\nFAST = True'
MARK = "COURSE_TEST_MARK"  # in the environment of everything that a test starts


def code(source: str, *tags: str) -> dict[str, Any]:
    """Return a code cell."""
    return {
        "cell_type": "code",
        "id": "placeholder",
        "metadata": {"tags": list(tags)},
        "source": source,
        "outputs": [],
        "execution_count": None,
    }


def write_notebook(path: Path, *cells: str | dict[str, Any], parameters: str | None = PARAMETERS) -> Path:
    """Write a notebook with these code cells after a ``parameters`` cell; cell ids are c0, c1, …"""
    made = [code(cell) if isinstance(cell, str) else cell for cell in cells]
    if parameters is not None:
        made = [code(parameters, "parameters"), *made]
    for index, cell in enumerate(made):
        cell["id"] = f"c{index}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def outputs_text(notebook: Path, cell_id: str) -> str:
    """Return the text that a cell of an executed notebook shows."""
    cells = {cell["id"]: cell for cell in json.loads(notebook.read_text())["cells"]}
    return "".join("".join(output.get("text", [])) for output in cells[cell_id]["outputs"])


@contextmanager
def marked_processes() -> Iterator[str]:
    """Mark the environment of everything that is started in the block; give the mark."""
    mark = uuid4().hex
    with patch.dict(os.environ, {MARK: mark}):
        yield mark


def left_over(mark: str, wait_s: float = 5.0) -> list[str]:
    """Return the commands of marked processes that are still there after some seconds at most."""
    deadline = time.monotonic() + wait_s
    while (left := processes.marked(MARK, mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    commands = []
    for process in left:
        try:
            commands.append(" ".join(process.cmdline()))
            process.kill()  # so that one failed test leaves nothing for the next
        except psutil.NoSuchProcess:
            continue
    return commands


def refused(options: RunOptions) -> str:
    """Return the error of a run that must not start anything."""
    with pytest.raises((UsageError, EnvironmentProblem)) as caught:
        run_course(options)
    return str(caught.value)
