"""Bounds on time: the reader's code may be slow, or never end."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

BASE_S, STEPS = 2.0, 20.0  # an examination takes no more than BASE_S and so many steps of the reader
AGAIN_S = 0.5  # a bare `except:` may swallow the first interruption, so it comes again


class OutOfTime(BaseException):
    """The time for the reader's code is over. No ``Exception``, so that ``except Exception`` does not hide it."""


class Budget:
    """How much time an examination may take.

    The limit is 2 s plus 20 times what one step of the reader takes, and never more than ``limit_s``.
    """

    def __init__(self, limit_s: float) -> None:
        self.started = time.perf_counter()
        self.limit_s = limit_s
        self.step_s: float | None = None  # one step of the reader, s; None before it is known

    @property
    def spent_s(self) -> float:
        return time.perf_counter() - self.started

    @property
    def total_s(self) -> float:
        """Seconds for everything; before the first step is measured, all that there may be."""
        if self.step_s is None:
            return self.limit_s
        return min(self.limit_s, BASE_S + STEPS * self.step_s)

    @property
    def left_s(self) -> float:
        return self.total_s - self.spent_s

    def share(self, part: float, least_s: float = 0.05) -> float:
        """Return a part of the time that is left, in seconds, but at least ``least_s``."""
        return max(least_s, part * self.left_s)

    def allows(self, cost_s: float) -> bool:
        """Tell whether ``cost_s`` more seconds still fit."""
        return cost_s < self.left_s


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise OutOfTime inside the block after ``seconds``, wherever the code is then.

    In the main thread a timer signal does it, which also ends a sleep; elsewhere, and on Windows, an exception is
    put into the thread, which arrives when it runs Python again.
    """
    if _can_signal():
        yield from _by_signal(seconds)
    else:
        yield from _by_exception(seconds)


def _can_signal() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )


def _by_signal(seconds: float) -> Iterator[None]:
    armed = True

    def ring(_number: int, _frame: object) -> None:
        if armed:
            raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), AGAIN_S)
    try:
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _by_exception(seconds: float) -> Iterator[None]:
    thread = ctypes.c_ulong(threading.get_ident())
    lock, over = threading.Lock(), threading.Event()

    def ring() -> None:
        wait_s = max(seconds, 0.001)
        while not over.wait(wait_s):
            with lock:
                if not over.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(OutOfTime))
            wait_s = AGAIN_S

    watchdog = threading.Thread(target=ring, name="doctor-deadline", daemon=True)
    watchdog.start()
    try:
        yield
    finally:
        with lock:
            over.set()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)  # takes back one that has not arrived
        watchdog.join()
