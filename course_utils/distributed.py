"""Start ranks: processes that train together on this machine, and none of which is left behind.

``launch`` starts N processes that run one function of an importable module, each as one rank. ``torchrun`` does it with
PyTorch's own starter, which also starts them again when one dies. Both keep to the loopback interface and a free port,
show what each rank prints, and end every process: after an error, a time limit, an interrupt, or the end of the kernel.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from course_utils.errors import CourseError, UsageError
from course_utils.paths import course_first
from course_utils.scratch import scratch_folder
from course_utils.text import plural, shorten
from course_utils.workers import start_methods

LOOPBACK = "127.0.0.1"
TIMEOUT_S = 60.0  # a launch; starting on a busy machine takes some of it
JOIN_TRIES = 3
# What an error says where ranks could not join one another within their patience, on a very busy machine.
NOT_JOINED = ("connectFullMesh", "keys: /default_pg/")
# PyTorch looks up the names of the loopback addresses that it connects, for its log. Where the name server's answer is
# lost that takes 5 s, and where there is no network it gives a warning. So nobody is asked, and nothing told.
NO_LOOKUPS = {"RES_OPTIONS": "attempts:0", "TORCH_CPP_LOG_LEVEL": "ERROR"}
NO_NAME = b"hostname of the client socket cannot be retrieved"
GRACE_S = 1.0  # for the others, after one rank has failed: their errors often say more
POLL_S = 0.02
LAST_LINES = 12  # of a failed rank's output, in the error
# Loaded once by the process that forks the ranks. The second takes about a second and is what wrapping a model in
# DistributedDataParallel imports.
PRELOAD = ("course_utils.ranks", "torch._dynamo")
STILL_RUNNING, EXIT_CODE = "still running", "exit code"  # how errors of ranks begin that raised none
STACK = "Stack (most recent call first)"  # faulthandler's words
WHERE_SIGNAL = getattr(signal, "SIGUSR1", None)  # asks a rank where it is; not on Windows
GONE = (psutil.NoSuchProcess, psutil.AccessDenied)


class RankError(CourseError):
    """A rank raised an error, died, or was still running at the time limit. ``ends`` holds what is known of each."""

    ends: tuple[RankEnd, ...] = ()


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended.

    Args:
        rank: its number.
        result: what its function returned; None if it did not return.
        error: the error in one line, or ``still running, in f (file.py, line 3)``, or ``exit code -9``; empty if it
            returned.
        output: all it printed, with what libraries wrote to standard error.
        seconds: from the start of the launch to its end.
    """

    rank: int
    result: Any
    error: str
    output: str
    seconds: float


def loopback_interface() -> str | None:
    """Return the name of the network interface that leads back to this machine, ``lo`` or ``lo0``; None if unknown."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == LOOPBACK for address in addresses):
            return name
    return None


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the environment variables by which a rank finds the others: those that ``torchrun`` sets too.

    Args:
        rank: its number, 0..world_size-1.
        world_size: how many ranks there are.
        port: of the store on the loopback interface where the ranks meet.
    """
    env = {
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there already: rank 0 must not open another
    }
    return env | _on_loopback() | NO_LOOKUPS


def _on_loopback() -> dict[str, str]:
    name = loopback_interface()
    # Windows names its loopback with blanks, and gloo finds it by the address there.
    return {} if name is None or sys.platform == "win32" else {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}


def name_of(program: str | Callable[..., Any]) -> str:
    """Return ``module:function`` for a function that another process can import.

    Raises:
        UsageError: if it lives in ``__main__`` (a notebook or a script), inside another function, or nowhere.
    """
    if isinstance(program, str):
        module, _, function = program.partition(":")
        if module and function:
            return program
        raise UsageError("This is no name of a program.", got=program, expected="module:function")
    module = getattr(program, "__module__", None)
    name = getattr(program, "__qualname__", "")
    if module in (None, "__main__") or not name or "<" in name:
        raise UsageError(
            f"Another process can't import {name or program!r}.",
            got=f"a function of {module}",
            expected="a function at the top of a module",
            fix="put it in a file, my_ranks.py, and pass my_ranks.function",
        )
    return f"{module}:{name}"


def launch(
    program: str | Callable[..., Any],
    n_ranks: int,
    *,
    timeout_s: float = TIMEOUT_S,
    show: bool = False,
    check: bool = True,
    grace_s: float = GRACE_S,
    threads: int = 1,
    **arguments: Any,
) -> list[Any]:
    """Run a function in ``n_ranks`` processes at the same time; return what each returned, in the order of the ranks.

    Each process finds in its environment what ``torch.distributed.init_process_group`` reads. When this function is
    left, in whatever way, none of its processes is alive.

    Args:
        program: a function at the top of an importable module, or its name, ``module:function``.
        n_ranks: how many processes.
        timeout_s: seconds until all are killed.
        show: print the lines of each rank as they come, with its number.
        check: raise if a rank failed. If False, return a `RankEnd` for each rank instead of the results.
        grace_s: seconds that the others get after one has failed, before they are killed.
        threads: how many each may use for its arithmetic.
        arguments: of the function; they and the results travel as pickles.

    Raises:
        RankError: if a rank failed or the time was up; its text has the last lines of the rank that failed first.
        UsageError: if the function can't be imported elsewhere, or ``n_ranks`` isn't a positive whole number.
    """
    if not isinstance(n_ranks, int) or n_ranks < 1:
        raise UsageError("This is not a number of ranks.", got=n_ranks, expected="a whole number, at least 1")
    payload = pickle.dumps((name_of(program), arguments))
    for _ in range(JOIN_TRIES):
        ends = _launch_once(payload, n_ranks, show, timeout_s, grace_s, threads)
        if not any(words in end.error for end in ends for words in NOT_JOINED):
            break
    if not check:
        return list(ends)
    _refuse_failures(ends, name_of(program))
    return [end.result for end in ends]


def _launch_once(
    payload: bytes, n_ranks: int, show: bool, timeout_s: float, grace_s: float, threads: int
) -> tuple[RankEnd, ...]:
    context = _context()
    with scratch_folder("ranks") as folder:
        # Port 0: the system picks a free one, and nobody can take it before we do.
        store = _open_store()
        team = _Team(folder, show)
        try:
            for rank in range(n_ranks):
                settings = _Settings(rank_environment(rank, n_ranks, store.port), team.log(rank), timeout_s, threads)
                team.start(context, payload, settings)
            team.watch(timeout_s, grace_s)
        finally:
            team.end()
        return team.ends()


def _open_store() -> dist.TCPStore:
    """Open the store where ranks meet, on a free port, without asking for the name of any address."""
    opened: list[dist.TCPStore] = []

    def open_it() -> None:
        opened.append(dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False))

    with _environment(NO_LOOKUPS), _without(NO_NAME):
        thread = threading.Thread(target=open_it)  # a new thread reads RES_OPTIONS anew
        thread.start()
        thread.join()
    return opened[0]


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a block, but for those that somebody has set."""
    absent = [name for name in values if name not in os.environ]
    os.environ.update((name, values[name]) for name in absent)
    try:
        yield
    finally:
        for name in absent:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _without(text: bytes) -> Iterator[None]:
    """Leave the lines with a text out of what libraries write to standard error in a block; the others come late."""
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if text not in line:
                    os.write(2, line)


def _context() -> multiprocessing.context.BaseContext:
    """Return the way of starting processes: forks of a clean helper that has PyTorch loaded, where that is safe."""
    method = "forkserver" if sys.platform.startswith("linux") and start_methods("forkserver") else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([*PRELOAD])
    return context


def warm_up() -> None:
    """Start the helper process that forks ranks, so that it loads PyTorch while this process does other things."""
    if _context().get_start_method() == "forkserver":
        from multiprocessing.forkserver import ensure_running

        with _environment(NO_LOOKUPS):
            ensure_running()


def cool_down() -> None:
    """End the helper process, if there is one. The next launch starts another."""
    if _context().get_start_method() == "forkserver":
        from multiprocessing.forkserver import _forkserver

        _forkserver._stop()  # no public call ends it before its parent ends


def processes_left() -> int:
    """Return how many processes live below this one, without Python's two helpers, which wait to start others."""
    from multiprocessing.forkserver import _forkserver
    from multiprocessing.resource_tracker import _resource_tracker

    helpers = {getattr(_forkserver, "_forkserver_pid", None), getattr(_resource_tracker, "_pid", None)}
    return sum(1 for process in _below(os.getpid()) if process.pid not in helpers and _is_living(process))


def _is_living(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except GONE:
        return False


@dataclass(frozen=True)
class _Settings:
    env: dict[str, str]
    log: Path
    timeout_s: float
    threads: int


class _Team:
    """The ranks of one launch, seen from the process that started them."""

    def __init__(self, folder: Path, show: bool) -> None:
        self.folder = folder
        self.show = show
        self.started = time.monotonic()
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        self.answers: dict[int, tuple[Any, str]] = {}
        self.seconds: dict[int, float] = {}
        self.late: set[int] = set()
        self.shown: dict[int, int] = {}

    def log(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.txt"

    def start(self, context: Any, payload: bytes, settings: _Settings) -> None:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_be_rank, args=(payload, settings, theirs), daemon=True)
        self.pipes.append(ours)
        self.processes.append(process)
        with _environment(NO_LOOKUPS):  # for the helper that forks, if it hasn't been started
            process.start()
        theirs.close()

    def watch(self, timeout_s: float, grace_s: float) -> None:
        """Follow the ranks until all have ended, or the time is up, or the grace after the first failure is over."""
        deadline = self.started + timeout_s
        while waiting := [rank for rank in range(len(self.processes)) if rank not in self.seconds]:
            objects = {self.pipes[rank]: rank for rank in waiting} | {self.processes[r].sentinel: r for r in waiting}
            for ready in multiprocessing.connection.wait(list(objects), timeout=POLL_S):
                self._read(objects[ready])
            self._show()
            if any(error for _, error in self.answers.values()):
                deadline = min(deadline, time.monotonic() + grace_s)
                grace_s = float("inf")  # counted once, from the first failure
            if time.monotonic() >= deadline:
                self.late = {rank for rank in range(len(self.processes)) if rank not in self.seconds}
                self._ask_where()
                return

    def _ask_where(self) -> None:
        """Have the ranks that still run write where they are, to their own output."""
        if WHERE_SIGNAL is None:
            return
        for rank in self.late:
            with contextlib.suppress(OSError, ValueError):
                os.kill(self.processes[rank].pid, WHERE_SIGNAL)
        time.sleep(0.1)

    def _read(self, rank: int) -> None:
        """Take what a rank sent, or note how it ended if it sent nothing."""
        process, pipe = self.processes[rank], self.pipes[rank]
        if rank not in self.answers:
            try:
                if pipe.poll():
                    self.answers[rank] = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                process.join(1.0)
        if process.exitcode is not None:
            self.answers.setdefault(rank, (None, f"{EXIT_CODE} {process.exitcode}"))
            self.seconds[rank] = time.monotonic() - self.started

    def _show(self, all_of_it: bool = False) -> None:
        if not self.show:
            return
        for rank in range(len(self.processes)):
            text = self._text(rank)[self.shown.get(rank, 0) :]
            end = len(text) if all_of_it else text.rfind("\n") + 1
            for line in text[:end].splitlines():
                print(f"[rank {rank}] {line}", flush=True)
            self.shown[rank] = self.shown.get(rank, 0) + end

    def _text(self, rank: int) -> str:
        try:
            return self.log(rank).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def end(self) -> None:
        """Kill what still lives, and let go of every handle."""
        living = [process for process in self.processes if process.pid is not None]
        for process in living:
            process.kill()
        for process in living:
            process.join(5.0)
            process.close()
        for pipe in self.pipes:
            pipe.close()
        self._show(all_of_it=True)

    def ends(self) -> tuple[RankEnd, ...]:
        spent = time.monotonic() - self.started
        found = []
        for rank in range(len(self.pipes)):
            result, error = self.answers.get(rank, (None, ""))
            output = self._text(rank)
            if rank in self.late and not error:
                result, error = None, STILL_RUNNING + _place(output)
            found.append(RankEnd(rank, result, error, output, self.seconds.get(rank, spent)))
        return tuple(found)


def _place(output: str) -> str:
    """Return where a rank was, from the stack it wrote: the innermost function that isn't PyTorch's or Python's."""
    for path, line, function in re.findall(r'File "([^"]+)", line (\d+) in (\w+)', output):
        if "site-packages" not in path and f"{os.sep}lib{os.sep}python" not in path:
            return f", in {function} ({Path(path).name}, line {line})"
    return ""


def _refuse_failures(ends: Sequence[RankEnd], program: str) -> None:
    failed = [end for end in ends if end.error]
    if not failed:
        return
    # One that died comes first: the others' errors say only that it is gone.
    first = min(failed, key=lambda end: (end.error.startswith(STILL_RUNNING), not _died(end), end.seconds))
    each = "".join(f"\n  rank {end.rank}: {end.error or 'returned'}" for end in ends)
    words = first.output.partition(STACK)[0].strip().splitlines()
    lines = [f"look at rank {first.rank}", *([] if _died(first) else words[-LAST_LINES:])]
    error = RankError(
        f"{program}: {len(failed)} of {plural(len(ends), 'rank')} did not return.{each}",
        fix="\n".join(lines),
    )
    error.ends = tuple(ends)
    raise error


def _died(end: RankEnd) -> bool:
    return end.error.startswith(EXIT_CODE)


def _be_rank(payload: bytes, settings: _Settings, pipe: Connection) -> None:
    """Be one rank: the first and last thing that runs in its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt reaches the whole group; who started us decides
    log = os.open(settings.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.join, settings.log.parent), daemon=True).start()
    # If the other guards fail: this clock runs without Python. It also writes where the rank hung.
    faulthandler.dump_traceback_later(settings.timeout_s + 10, exit=True, file=sys.stderr)
    if WHERE_SIGNAL is not None:
        faulthandler.register(WHERE_SIGNAL, file=sys.stderr, all_threads=False)
    os.environ.update(settings.env)
    torch.set_num_threads(settings.threads)
    try:
        _meet(settings)
        name, arguments = pickle.loads(payload)
        result, error = resolve(name)(**arguments), ""
        answer = pickle.dumps((result, error))
    except BaseException as problem:
        traceback.print_exc()
        answer = pickle.dumps((None, f"{type(problem).__name__}: {shorten(str(problem), 200)}"))
    with contextlib.suppress(OSError):  # nobody may be listening any more
        pipe.send_bytes(answer)
    with contextlib.suppress(Exception):
        if dist.is_initialized():
            dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # no exit handlers: they belong to the process that we were forked from


def _meet(settings: _Settings) -> None:
    """Wait until every rank has started, so that no program's own time limit runs while another still loads PyTorch."""
    port, n_ranks = int(settings.env["MASTER_PORT"]), int(settings.env["WORLD_SIZE"])
    store = dist.TCPStore(LOOPBACK, port, is_master=False, timeout=timedelta(seconds=settings.timeout_s))
    if store.add("launch/started", 1) == n_ranks:
        store.set("launch/all", "started")
    store.wait(["launch/all"])


def resolve(name: str) -> Callable[..., Any]:
    """Return the function called ``module:function``."""
    module, _, function = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    return found


def _end_with(wait: Callable[[], object], folder: Path) -> None:
    """End this process when ``wait`` returns, which it does when another has ended, and remove that one's folder."""
    wait()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


# --- torchrun --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TorchrunEnd:
    """How a torchrun ended: its exit code, all lines that were printed, the seconds it took."""

    exit_code: int
    output: str
    seconds: float

    @property
    def readable(self) -> str:
        """The lines with the number of the rank in the course's form: ``[rank 1] hello`` for ``[default1]:hello``."""
        return "".join(readable(line) + "\n" for line in self.output.splitlines())


def torchrun_command(program: str | Callable[..., Any], n_ranks: int, max_restarts: int = 0) -> list[str]:
    """Return the words of the ``torchrun`` command that runs a function of `course_utils.ranks`' kind.

    For one machine, on the loopback interface: the ranks meet at a port that the system picks.
    """
    return [
        f"--nproc-per-node={n_ranks}",
        f"--max-restarts={max_restarts}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={LOOPBACK}:0",
        f"--local-addr={LOOPBACK}",
        "--monitor-interval=0.1",
        "-m",
        "course_utils.ranks",
        name_of(program),
    ]


def torchrun(
    program: str | Callable[..., Any],
    n_ranks: int,
    *,
    max_restarts: int = 0,
    timeout_s: float = 2 * TIMEOUT_S,
    show: bool = False,
    **arguments: Any,
) -> TorchrunEnd:
    """Run a function under ``torchrun``, as one would from a terminal; results go through files.

    Args:
        program: a function at the top of an importable module, or its name, ``module:function``.
        n_ranks: how many processes.
        max_restarts: how often all ranks are started again after one has died.
        timeout_s: seconds until everything is killed.
        show: print the lines of the ranks as they come.
        arguments: of the function, plain enough for JSON.

    Raises:
        RankError: if the time is up; everything has been killed then.
    """
    started = time.monotonic()
    with scratch_folder("torchrun") as folder:
        env = {
            **NO_LOOKUPS,
            **os.environ,
            **_on_loopback(),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": _python_path(),
            "TMPDIR": str(folder),
        }
        # Without it, ranks of the second start read addresses of the first: github.com/pytorch/pytorch/issues/135712
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        log = ["--tee=3", f"--log-dir={folder}"]
        words = [*log, *torchrun_command(program, n_ranks, max_restarts), json.dumps(arguments)]
        lines: list[str] = []
        process = subprocess.Popen(
            [sys.executable, "-m", "course_utils.distributed", *words],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
        reader = threading.Thread(target=_read_lines, args=(process, lines), daemon=True)
        try:
            reader.start()
            _follow(process, lines, started + timeout_s, show)
        finally:
            _end_tree(process)
            reader.join(5.0)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
    seconds = time.monotonic() - started
    output = "".join(line + "\n" for line in lines)
    if process.returncode is None or seconds > timeout_s:
        raise RankError(
            f"torchrun was still running after {timeout_s:g} s, so it was ended.",
            got=shorten(" ".join(lines[-3:]), 300),
            fix="look for a rank that waits for another, or allow more time with timeout_s",
        )
    return TorchrunEnd(process.returncode, output, seconds)


def _python_path() -> str:
    """Let the ranks find what this process finds: the course, and modules in the current folder."""
    return os.pathsep.join([course_first(os.environ.get("PYTHONPATH")), os.getcwd()])


def _read_lines(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError):  # closed under our hands at the end
        for line in process.stdout:
            lines.append(line.rstrip("\n"))


def _follow(process: subprocess.Popen[str], lines: list[str], deadline: float, show: bool) -> None:
    shown = 0
    while True:
        is_over = process.poll() is not None or time.monotonic() >= deadline
        if is_over:
            time.sleep(POLL_S)  # for the last lines
        while show and shown < len(lines):
            print(readable(lines[shown]), flush=True)
            shown += 1
        if is_over:
            return
        time.sleep(POLL_S)


def readable(line: str) -> str:
    """Return a line of torchrun with its mark in the course's form: ``[default1]:hello`` is ``[rank 1] hello``."""
    mark, found, text = line.partition("]:")
    if found and mark.startswith("[default") and mark[len("[default") :].isdecimal():
        return f"[rank {mark[len('[default') :]}] {text}"
    return line


def _end_tree(process: subprocess.Popen[str]) -> None:
    """Kill a process and all below it; ranks of torchrun are in sessions of their own, so a group isn't enough."""
    tree = _below(process.pid)
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    for member in [*tree, *(p for p in tree for p in _below(p.pid))]:
        with contextlib.suppress(*GONE):
            member.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
    psutil.wait_procs(tree, timeout=5.0)


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except GONE:
        return []


def _guarded_torchrun(words: Sequence[str]) -> None:
    """Be torchrun, but end with everything below when standard input closes: whoever started us is gone."""

    def guard() -> None:
        sys.stdin.read()
        for member in _below(os.getpid()):
            with contextlib.suppress(*GONE):
                member.kill()
        for word in words:
            if word.startswith("--log-dir="):  # the folder of this run alone
                shutil.rmtree(word.removeprefix("--log-dir="), ignore_errors=True)
        os._exit(1)

    threading.Thread(target=guard, daemon=True).start()
    from torch.distributed.run import main

    main(list(words))


if __name__ == "__main__":
    _guarded_torchrun(sys.argv[1:])
