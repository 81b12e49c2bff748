"""A pytest plugin that makes nbval patient with a busy machine and quick with a dead kernel.

nbval gives a kernel 5 s between two messages, which a machine under load exceeds, and waits for the answer of a
kernel that has died until the cell's time is over. Loaded by ``tools.regression`` only, beside nbval's own plugin.
"""

from __future__ import annotations

import time
from queue import Empty
from typing import Any

import nbval.plugin
import pytest
from nbval.kernel import RunningKernel

OUTPUT_TIMEOUT_S = 60
POLL_S = 0.5  # how often it is asked whether the kernel lives


class WatchedKernel(RunningKernel):
    """A kernel whose death ends the wait for its answer."""

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        """Wait for the reply to a request.

        Raises:
            Empty: if it does not come within ``timeout`` seconds.
            RuntimeError: if the kernel ends before.
        """
        deadline = time.monotonic() + (timeout or float("inf"))
        while True:
            try:
                super().await_reply(msg_id, timeout=POLL_S)
                return
            except Empty:
                if time.monotonic() > deadline:
                    raise
                if not self.is_alive():
                    raise RuntimeError("The kernel ended while it ran this cell.") from None


def pytest_configure(config: pytest.Config) -> None:
    """Let nbval start kernels that are watched."""
    nbval.plugin.RunningKernel = WatchedKernel


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Give every cell more time between two messages."""
    for item in items:
        item.output_timeout = OUTPUT_TIMEOUT_S
