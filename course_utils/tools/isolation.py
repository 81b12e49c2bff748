"""Surroundings in which a notebook's outputs are the same for every machine and user.

Building and comparing notebooks use the same ones, else they would compare machines instead of lessons.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from course_utils.scratch import scratch_folder

# Settings of the user's shell that reach into outputs: warnings, widths, colours, drawing, pytest's own options.
_LEFT_OUT = (
    "PYTHONWARNINGS", "PYTHONSTARTUP", "PYTHONOPTIMIZE", "MPLBACKEND", "COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR",
    "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_CURRENT_TEST", "TQDM_DISABLE",
)  # fmt: skip


@dataclass(frozen=True)
class Surroundings:
    """The environment variables for a kernel, and a folder for its short-lived files."""

    env: dict[str, str]
    folder: Path


@contextmanager
def plain_surroundings(threads: int = 1) -> Iterator[Surroundings]:
    """Give surroundings for kernels whose outputs are stored or compared.

    CPU only, one thread (``threads`` is for trying whether that matters), no progress file, the same inputs in every
    check, and neither IPython's nor matplotlib's settings of this user. Every process that was started in them and
    still runs at the end of the block is killed.
    """
    # Slow to import, and `build --check` starts no kernel.
    from course_utils.tools import processes
    from course_utils.tools.kernels import THREAD_VARIABLES, kernel_environment, scratch_variables

    token = uuid4().hex
    with scratch_folder("course") as folder:
        no_settings = folder / "matplotlibrc"
        no_settings.touch()
        kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        if threads > 1:
            kept = {name: value for name, value in kept.items() if name not in THREAD_VARIABLES}
        env = kernel_environment(threads=threads, token=token, folder=folder, base=kept) | scratch_variables(folder)
        env |= {"CUDA_VISIBLE_DEVICES": "", "COURSE_CHECK_SEED": "0", "MATPLOTLIBRC": str(no_settings), "TZ": "UTC"}
        try:
            yield Surroundings(env, folder)
        finally:
            processes.end(processes.marked(processes.TOKEN, token))
