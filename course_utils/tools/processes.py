"""Trees of processes: how many cores there are for them, what they use, and how to end all of them.

Everything here works on "what is below a process". On Linux a process that calls ``adopt_orphans`` also keeps
below itself what tries to leave: a child that started a session of its own and whose parent has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

# A thread that waits for the others sleeps. By default it spins, and on a busy machine that keeps the others from the
# cores: with two threads on two busy cores, a training step of the course CNN took 6 to 10 times as long (840 to
# 1,460 ms against 120 to 155 ms).
PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}
TOKEN = "COURSE_RUN_TOKEN"  # in the environment of every process of one notebook, to find those that left its tree
LOG_NAME = "kernel.log"  # what a kernel's process writes on its own standard streams
GONE = (psutil.NoSuchProcess, psutil.AccessDenied)
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
END_TIMEOUT_S = 5.0
INPUT_POLL_S = 0.1
_KERNEL_PARTS = (f"{os.sep}IPython{os.sep}", f"{os.sep}ipykernel{os.sep}")  # in a stack, frames below a cell's own
_CELL_FILE = re.compile(r'File "[^"]*ipykernel_\d+[/\\]\d+\.py"')
_CGROUPS = Path("/sys/fs/cgroup")


def core_count() -> int:
    """Return how many cores this process may use: fewer than the machine has under ``taskset`` or in a container."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    for text in _cgroup_values("cpu.max"):  # "200000 100000" is two cores, "max 100000" no limit
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit():
            count = min(count, int(quota) // int(period))
    return max(1, count)


def available_memory_bytes() -> int:
    """Return the memory that new processes can take without swapping, in bytes; a container's limit counts."""
    available = psutil.virtual_memory().available
    for limit, used in zip(_cgroup_values("memory.max"), _cgroup_values("memory.current"), strict=False):
        if limit.isdigit() and used.isdigit():
            available = min(available, int(limit) - int(used))
    return max(0, available)


def _cgroup_values(name: str) -> Iterator[str]:
    """Yield a setting of this process's control group and of the groups around it (Linux, cgroup v2)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::"):
            group = _CGROUPS / line[3:].lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(_CGROUPS):
                    with contextlib.suppress(OSError):
                        yield (folder / name).read_text().strip()


def adopt_orphans() -> bool:
    """Make this process the new parent of its orphaned descendants; return whether the system can (Linux)."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def below(pid: int) -> list[psutil.Process]:
    """Return the living descendants of a process; one that has ended and waits to be collected is not living."""
    try:
        return [process for process in psutil.Process(pid).children(recursive=True) if _is_living(process)]
    except GONE:
        return []


def _is_living(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except GONE:
        return False


def marked(variable: str, value: str) -> list[psutil.Process]:
    """Return the living processes that were started with this environment variable, wherever they hang now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(*GONE, OSError):
            if process.environ().get(variable) == value and _is_living(process) and process.pid != os.getpid():
                found.append(process)
    return found


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill processes. All are halted first, so that none can start another while its neighbours end."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(*GONE):
            process.suspend()
    for process in processes:
        with contextlib.suppress(*GONE):
            process.kill()


def end_below(pid: int, timeout_s: float = END_TIMEOUT_S, spare: int | None = None) -> list[psutil.Process]:
    """Kill everything below a process until nothing is left; return what resisted for ``timeout_s`` seconds.

    The process with the number ``spare`` may live.
    """
    deadline = time.monotonic() + timeout_s
    while (left := [process for process in below(pid) if process.pid != spare]) and time.monotonic() < deadline:
        end(left)
        time.sleep(0.01)
    return left


def ends() -> list[signal.Signals]:
    """Return the signals by which this process is told to end: Ctrl-C, a closed terminal, a request of the system.

    What is ignored here, as the closing of the terminal is under nohup, is not among them.
    """
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGHUP", "SIGTERM") if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def ends_interrupt() -> Iterator[None]:
    """Let each way of ending this process raise KeyboardInterrupt inside the block, so that its cleaning up is done.

    A process that was just started may notice late, on a crowded machine, that its starter is gone. Only the main
    thread can do this.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ends()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ending_with_input(clean_up: Callable[[], None] = lambda: None) -> Iterator[None]:
    """End this process, and all below it, when the other end of its standard input closes inside the block.

    That happens too when whoever started it is killed. Nothing is read, so what waits there stays for the process
    itself. For a helper that is busy with something else, such as long imports. Not on Windows, which can't ask a pipe.

    Args:
        clean_up: is called at that end, when nothing else runs below.
    """
    if not hasattr(select, "poll"):
        yield
        return
    poll, over = select.poll(), threading.Event()
    poll.register(sys.stdin.fileno(), 0)  # that it is closed is reported without being asked for

    def watch() -> None:
        while not over.is_set():
            if poll.poll(INPUT_POLL_S * 1000) and not over.is_set():
                end_below(os.getpid())
                clean_up()
                os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # a process that forks next must have no other threads


@dataclass
class Meter:
    """Adds up what the processes below one process use, sample by sample.

    A process that forks kernels, ``forking``, counts for nothing, and so does the memory that its forks still have in
    common with it.
    """

    pid: int
    forking: int | None = None
    peak_bytes: int = 0  # most memory at one time
    processes: int = 0  # at the last sample
    memory_bytes: int = 0  # at the last sample
    _cpu_s: dict[tuple[int, float], float] = field(default_factory=dict)

    @property
    def cpu_seconds(self) -> float:
        """Processor time seen so far, of processes that have ended too, up to their last sample."""
        return sum(self._cpu_s.values())

    def sample(self) -> None:
        """Look once at every process below. Costs about 2 ms for a hundred processes on the machine."""
        processes = [process for process in below(self.pid) if process.pid != self.forking]
        self.processes = len(processes)
        shared = len(processes) > 1 or self.forking is not None
        common = _own_anonymous_bytes(self.forking) if self.forking is not None else 0
        self.memory_bytes = sum(_memory_bytes(process, shared=shared) for process in processes)
        if common and processes:
            # All that the forking process has is part of this sum, once: as its share and as the shares of its forks.
            self.memory_bytes = max(0, self.memory_bytes + _anonymous_share_bytes(self.forking) - common)
        highest = max(map(_highest_bytes, processes), default=0) - common
        self.peak_bytes = max(self.peak_bytes, self.memory_bytes, highest)
        for process in processes:
            with contextlib.suppress(*GONE):
                times = process.cpu_times()
                self._cpu_s[process.pid, process.create_time()] = times.user + times.system


def _memory_bytes(process: psutil.Process, *, shared: bool) -> int:
    """Return a process's memory; with ``shared``, pages that several processes use count once between them."""
    with contextlib.suppress(*GONE, OSError):
        if shared and sys.platform.startswith("linux"):
            return process.memory_full_info().pss
        return process.memory_info().rss
    return 0


def _highest_bytes(process: psutil.Process) -> int:
    """Return the most memory that a process ever had, where the system keeps it: a peak between two samples."""
    if sys.platform == "win32":
        with contextlib.suppress(*GONE):
            return process.memory_info().peak_wset
    return _kept_bytes(process.pid, "status", "VmHWM:")


def _own_anonymous_bytes(pid: int) -> int:
    """Return the memory of a process that is no file's."""
    return _kept_bytes(pid, "status", "RssAnon:")


def _anonymous_share_bytes(pid: int) -> int:
    """Return the same with each page divided by the number of processes that use it."""
    return _kept_bytes(pid, "smaps_rollup", "Pss_Anon:")


def _kept_bytes(pid: int, file: str, name: str) -> int:
    """Return a number that Linux keeps about a process, 0 if there is none."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def last_words(log: Path, limit: int = 4000) -> str:
    """Return what a kernel's process wrote about its own end: the crash and the lesson's part of the stack."""
    try:
        lines = log.read_bytes()[-64 * 1024 :].decode(errors="replace").splitlines()
    except OSError:
        return ""
    stacks = [index for index, line in enumerate(lines) if line.startswith("Current thread")]
    if not stacks:
        return "\n".join(lines[-20:]).strip()[-limit:]
    crashes = [line for line in lines if line.startswith("Fatal Python error")]
    kept = [*crashes[-1:], "Most recent call first:"]
    for line in lines[stacks[-1] + 1 :]:
        if not line.strip() or any(part in line for part in _KERNEL_PARTS):
            break
        kept.append(_CELL_FILE.sub('File "<cell>"', line))
    return "\n".join(kept)[:limit]
