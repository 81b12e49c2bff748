"""A process that has the slow imports behind it and forks kernels (Linux).

A worker has one. It is started with the environment of a kernel, imports what most lessons import, computes nothing,
and then forks a kernel for each notebook. The fork becomes what ``python -m ipykernel_launcher ...`` would have been:
its arguments, environment, folder, session, streams, search path and ``__main__`` are set anew. Between them stands a
process that ends at once, so that the kernel becomes a child of the worker, which adopts orphans.

Whatever does not fit (another system, more than one thread, a library that says no) gives no kernel here, and the
caller starts one as usual. This module is imported by the forking process, so it imports little itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

# Not matplotlib.pyplot and not tqdm.auto: they find out at import whether they are in a kernel, and would show
# other things in every lesson. A library that imports one of them makes this process unfit.
IMPORTED = (
    *("torch", "numpy", "sklearn.datasets", "torchvision"),
    *("IPython", "zmq.eventloop.zmqstream", "ipykernel.ipkernel", "ipykernel.zmqshell", "ipykernel.iostream"),
)
# The last one reads at import who its parent is.
NEVER = ("matplotlib.pyplot", "tqdm.auto", "ipywidgets", "course_utils.data", "ipykernel.kernelapp")
TOKEN = "COURSE_RUN_TOKEN"  # the name in ``processes``, which this process has no other use for
VARYING = (TOKEN, "JPY_PARENT_PID", "IPYTHONDIR", "TMPDIR", "TEMP", "TMP")  # a fork may have them changed
ADOPT_S = 10.0  # for the process between to end
REPLY_S = 20.0  # for a fork to say its number
SWITCH = "COURSE_KERNELS"  # a variable of the user: "forked"; anything else starts kernels as usual


class NotForked(Exception):
    """There is no kernel from this process; one can be started as usual."""


# ---- In the worker ----


class Preloaded:
    """The forking process, seen from the worker. It is started when first needed, and for each other environment."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._env: dict[str, str] = {}
        self._text = b""
        self._is_unfit = False  # it said once that it can't fork

    @property
    def pid(self) -> int | None:
        """Its process number, if it runs."""
        return self.process.pid if self.process is not None else None

    def start(self, env: Mapping[str, str]) -> None:
        """Let it begin with its imports, for kernels with this environment.

        Raises:
            NotForked: if that can't be.
        """
        if not sys.platform.startswith("linux") or self._is_unfit:
            raise NotForked("not on this system")
        wanted = {name: value for name, value in env.items() if name not in VARYING}
        if self.process is not None and (self._env != wanted or self.process.poll() is not None):
            self.end()
        if self.process is not None:
            return
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.PIPE,  # closed at once, as a kernel's
                    stdout=2,
                    # A place for the token of each fork: nothing else about it is known yet.
                    env={**env, TOKEN: "0" * len(env.get(TOKEN, ""))},
                    cwd="/",
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise NotForked(str(error)) from error
        self.process.stdin.close()
        self._socket, self._env, self._text = ours, wanted, b""

    def fork(self, cmd: list[str], env: Mapping[str, str], cwd: str, log: str, wait_s: float) -> ForkedProcess:
        """Return a new kernel, a child of this process.

        Args:
            cmd: what would be started: the interpreter, ``-m``, the module, its arguments.
            env: all environment variables of the kernel.
            cwd: its folder.
            log: gets what it writes on its own standard streams.
            wait_s: for the imports, if they are still under way.

        Raises:
            NotForked: if there is none, for whatever reason.
        """
        self.start(env)
        env = {**env, "JPY_PARENT_PID": str(os.getpid())}
        order = {"cmd": cmd, "env": env, "cwd": cwd, "log": log}
        try:
            self._socket.sendall(json.dumps(order).encode() + b"\n")
            reply = self._reply(wait_s + REPLY_S)
        except (OSError, ValueError) as error:
            self.end()
            raise NotForked(f"{type(error).__name__}: {error}") from error
        if "pid" not in reply:
            self._is_unfit = reply.get("unfit", False)
            self.end()
            raise NotForked(reply.get("sentence", ""))
        return ForkedProcess(reply["pid"])

    def _reply(self, wait_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + wait_s
        while b"\n" not in self._text:
            if not select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("no answer in time")
            part = self._socket.recv(2**16)
            if not part:
                raise ConnectionError("the process that forks kernels has ended")
            self._text += part
        line, _, self._text = self._text.partition(b"\n")
        return json.loads(line)

    def end(self) -> None:
        """End it; kernels that it made go on."""
        if self.process is not None:
            self._socket.close()
            self.process.kill()
            self.process.wait()
            self.process = None


class ForkedProcess:
    """A child of this process that was not started by it, with what ``jupyter_client`` wants of a ``Popen``."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal), or None while it lives."""
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when it has ended.

        Raises:
            subprocess.TimeoutExpired: if that takes longer than ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self._wait(0 if deadline is None else os.WNOHANG)) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("kernel", timeout)
            time.sleep(0.01)
        return code

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # someone else has waited for it
                self.returncode = 0
            else:
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


# ---- In the forking process, and in its forks ----


def _import_all() -> str:
    """Import what kernels will want; return why no kernel should be forked from here, empty if one may be."""
    import warnings

    caught: list[str] = []
    show, warnings.showwarning = warnings.showwarning, lambda message, *_, **__: caught.append(str(message))
    try:
        for name in IMPORTED:
            import_module(name)
    finally:
        warnings.showwarning = show
    if caught:  # a plain kernel would show it in the lesson
        return f"an import warns: {caught[0]}"
    # OpenBLAS has a pool of threads from its import on, ends it before a fork, and makes another when it needs one.
    if (once := os.fork()) == 0:
        os._exit(0)
    os.waitpid(once, 0)
    if present := [name for name in NEVER if name in sys.modules]:
        return f"{present[0]} was imported"
    return ""


def _serve(connection: socket.socket, worker: int, path: list[str]) -> dict[str, Any]:
    """Fork a kernel for each order; return the order in the fork. The process itself ends with its connection."""
    before, unfit = dict(os.environ), "an import fails"
    with contextlib.suppress(ImportError):
        unfit = _import_all()
    # Some libraries set variables. This one names a folder of the first kernel, and is set for each one anew.
    added = {name: value for name, value in os.environ.items() if before.get(name) != value}
    added.pop("TORCHINDUCTOR_CACHE_DIR", None)
    sys.path[:] = path
    for line in connection.makefile("rb"):
        order = json.loads(line)
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:  # what they hold when the fork happens would stay held in it for ever
            unfit = f"{threads} threads"
        if unfit:
            reply: dict[str, Any] = {"unfit": True, "sentence": unfit}
        else:
            read_end, write_end = os.pipe()
            middle = os.fork()
            if middle == 0:
                try:
                    if os.fork():
                        os._exit(0)
                    os.close(read_end)
                    os.close(connection.detach())
                    os.setsid()
                    _mark(order["env"])
                    _take_place(order, added)
                    os.write(write_end, str(os.getpid()).encode())
                    os.close(write_end)
                    _wait_for_parent(worker)
                except BaseException:
                    os._exit(1)
                return order
            os.close(write_end)
            os.waitpid(middle, 0)
            number = os.read(read_end, 32)
            os.close(read_end)
            reply = {"pid": int(number)} if number else {"sentence": "the fork failed"}
        connection.sendall(json.dumps(reply).encode() + b"\n")
    os._exit(0)


def _mark(env: Mapping[str, str]) -> None:
    """Put the token where other processes read the environment that this one was started with."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # env_start and env_end, see proc(5)
    entry = f"{TOKEN}=".encode()
    token = env[TOKEN].encode()
    place = (b"\0" + ctypes.string_at(start, end - start)).index(b"\0" + entry + b"0" * len(token) + b"\0")
    ctypes.memmove(start + place + len(entry), token, len(token))


def _take_place(order: dict[str, Any], added: Mapping[str, str]) -> None:
    """Set what a started process would have found set."""
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    os.dup2(log, 1), os.dup2(log, 2)
    os.close(log)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update({**order["env"], **added})


def _wait_for_parent(worker: int) -> None:
    deadline = time.monotonic() + ADOPT_S
    while os.getppid() != worker:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.001)


def _become(order: dict[str, Any]) -> None:
    """Run the kernel's module as the program."""
    import multiprocessing.process
    import tempfile

    import numpy as np
    import torch

    cmd = order["cmd"]
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()
    tempfile.tempdir = None  # found anew, from this environment
    _forget_cache_folder()
    np.random.seed()  # the numbers of a program that sets no seed differ from notebook to notebook
    torch.default_generator.seed()
    threading.main_thread()._set_native_id()  # else it is that of the forking process
    sys.path[:0] = [os.getcwd()]
    sys.argv[:] = ["-m", *cmd[3:]]
    sys.orig_argv[:] = cmd
    for name in [name for name in sys.modules if name.partition(".")[0] == "course_utils"]:
        del sys.modules[name]  # a lesson finds its own
    invalidate_caches()
    program = types.ModuleType("__main__")
    program.__builtins__ = __builtins__
    sys.modules["__main__"] = program
    runpy._run_module_as_main(cmd[2])


def _forget_cache_folder() -> None:
    """Let PyTorch's compiler keep its files where this environment says; it settles that when it is imported."""
    package = sys.modules.get("torch._dynamo.package")
    if package is not None:
        package.DynamoCache = package.DiskDynamoCache(package.DynamoCache.path_prefix())


def main() -> None:
    """Import, then fork until the connection ends; in a fork, run the kernel."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    # The folder itself comes first, and goes: nothing that lies there is to be imported here.
    _become(_serve(connection, int(sys.argv[2]), sys.path[1:]))


if __name__ == "__main__":
    main()
