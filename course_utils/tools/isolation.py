"""Kernels that come out the same for every machine and user: this interpreter, plain settings, one thread.

Building and comparing notebooks use the same surroundings, else they would compare machines instead of lessons.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.paths import ROOT

if TYPE_CHECKING:
    from jupyter_client.manager import AsyncKernelManager

# Settings of the user's shell that reach into outputs: warnings, widths, colours, drawing, other kernels' options.
_LEFT_OUT = (
    "PYTHONWARNINGS", "PYTHONSTARTUP", "PYTHONOPTIMIZE", "MPLBACKEND", "COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR",
    "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_CURRENT_TEST", "TQDM_DISABLE",
)  # fmt: skip


@contextmanager
def plain_surroundings() -> Iterator[dict[str, str]]:
    """Give the environment variables for a kernel whose outputs are stored or compared.

    CPU only, one thread, no progress file, the same inputs in every check, and neither IPython's nor matplotlib's
    settings of this user.
    """
    with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as folder:
        kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        no_settings = Path(folder) / "matplotlibrc"
        no_settings.touch()
        yield {
            **kept,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")])),
            "PYTHONHASHSEED": "0",
            "PYTHONUTF8": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "COURSE_PROGRESS": "off",
            "COURSE_CHECK_SEED": "0",
            "IPYTHONDIR": folder,
            "MATPLOTLIBRC": str(no_settings),
            "TZ": "UTC",
        }


def kernel_manager() -> AsyncKernelManager:
    """Return a manager that starts this interpreter, whichever kernels the machine has installed."""
    from ipykernel.kernelspec import RESOURCES, make_ipkernel_cmd
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    class ThisInterpreter(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            return KernelSpec(
                resource_dir=RESOURCES,
                argv=make_ipkernel_cmd(executable=sys.executable),
                display_name="Python 3 (ipykernel)",
                language="python",
            )

    return AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisInterpreter())


def kill_tree(pid: int) -> None:
    """Kill a process and all it started, also what left its process group (every kernel does)."""
    import psutil

    try:
        root = psutil.Process(pid)
        root.suspend()  # so that it starts nothing more while its children are collected
        doomed = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for process in doomed:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(doomed[:-1], timeout=5)  # the last is ours to wait for: its Popen does
