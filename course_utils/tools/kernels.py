"""The kernel of a batch run: this interpreter, its share of the cores, and no process left when it ends.

The kernel is always ``ipykernel`` of the interpreter that runs this module, whatever kernel a notebook names and
whatever kernels the machine has installed. ``GuardedProvisioner.launch_kernel`` is the one place where a kernel
process starts; another way of starting one belongs there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import zmq
import zmq.asyncio
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner
from traitlets import Type, default

from course_utils.paths import course_first
from course_utils.tools import processes
from course_utils.tools.preloaded import NotForked, Preloaded

# One for each library that may run loops in threads of its own.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
)
# With the first, ipykernel does not collect what child processes print; the others are for a person at a prompt.
_LEFT_OUT = ("PYTEST_CURRENT_TEST", "PYTHONSTARTUP", "PYTHONINSPECT")
MESSAGE_LIMIT_BYTES = 128 * 1024**2  # a larger message is dropped unread, with the connection it came on
QUEUE_LIMIT = 10_000  # messages that wait in this process; a kernel that talks faster loses some
SOCKET_PATH_LIMIT = 90  # characters; systems allow 103 to 107 and the channel's number is appended
STACK_SIGNAL = getattr(signal, "SIGUSR2", None)  # asks a kernel where it is; not on Windows
SCRATCH_PATH_LIMIT = 70  # characters; sockets of multiprocessing and PyTorch lie up to 33 further down
OOM_SCORE = 1000  # when the machine runs out of memory, a kernel goes first, not the runner


def kernel_environment(threads: int, token: str, folder: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of a kernel.

    Args:
        threads: how many threads numeric libraries may use; less if the user's own variables say less.
        token: marks the processes of this notebook.
        folder: for IPython's own files, so that start-up files of the user are not run.
        base: what to start from; the variables of this process if None.
    """
    env = {name: value for name, value in (os.environ if base is None else base).items() if name not in _LEFT_OUT}
    for name in THREAD_VARIABLES:
        own = env.get(name, "")
        env[name] = str(min(threads, int(own)) if own.isdigit() and int(own) else threads)
    return {**processes.PATIENT_THREADS, **env} | {
        "PYTHONPATH": course_first(env.get("PYTHONPATH")),
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "COURSE_PROGRESS": "off",
        "IPYTHONDIR": str(folder),
        processes.TOKEN: token,
    }


def scratch_variables(folder: Path) -> dict[str, str]:
    """Make a folder for all that a kernel and its children take for short-lived, and return the variables that name it.

    A kernel that is killed can't remove its temporary files; here they go with ``folder``, which belongs to the run.
    Where the path is too long for the sockets that are put there, the system's own folder stays in use.
    """
    place = folder / "t"
    if len(str(place)) > SCRATCH_PATH_LIMIT:
        return {}
    place.mkdir(exist_ok=True)
    return dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(place))


def kernel_spec(log: Path) -> KernelSpec:
    """Return the description of this interpreter's own kernel, which says in ``log`` where it was when it crashed."""
    return KernelSpec(
        argv=[
            *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
            f"--IPKernelApp.exec_lines={_crash_report(log)}",
        ],
        display_name="Python 3 (ipykernel)",
        language="python",
    )


def _crash_report(log: Path) -> str:
    """Return a line that makes the kernel write its stack to ``log`` in a crash and when sent ``STACK_SIGNAL``.

    It is an expression, so the lesson's namespace stays empty.
    """
    asked = f", h.register({int(STACK_SIGNAL)}, f)" if STACK_SIGNAL else ""
    return f"(lambda h, f: (h.enable(f){asked}) and None)(__import__('faulthandler'), open({str(log)!r}, 'ab', 0))"


class GuardedProvisioner(LocalProvisioner):
    """Starts a kernel in a session of its own, and ends it with everything it started.

    ``exit_code`` (negative: the signal) and ``peak_bytes`` are known once the kernel has ended.
    """

    log: Path | None = None  # gets what the kernel process itself writes: last words of a crash
    preloaded: Preloaded | None = None  # forks the kernel, if it can; else it is started
    startup_s = 60.0
    exit_code: int | None = None
    peak_bytes: int = 0

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        """Start the process; its own standard streams go to ``log``."""
        info = self._fork(cmd, **kwargs) or await self._start(cmd, **kwargs)
        with contextlib.suppress(OSError):  # Linux only
            Path(f"/proc/{self.pid}/oom_score_adj").write_text(str(OOM_SCORE))
        return info

    async def _start(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        with contextlib.ExitStack() as files:
            if self.log is not None:
                stream = files.enter_context(open(self.log, "ab"))
                kwargs |= {"stdout": stream, "stderr": stream}
            return await super().launch_kernel(cmd, **kwargs)

    def _fork(self, cmd: list[str], **kwargs: Any) -> dict[str, Any] | None:
        """Have the kernel forked by the pre-loaded process; return None if there is none or it can't."""
        if self.preloaded is None or self.log is None:
            return None
        try:
            self.process = self.preloaded.fork(
                cmd, kwargs["env"], str(kwargs["cwd"]), str(self.log.resolve()), self.startup_s
            )
        except NotForked:
            return None
        self.pid = self.pgid = self.process.pid  # it leads a group of its own, as a started one does
        self.cwd = kwargs["cwd"]
        return self.connection_info

    async def poll(self) -> int | None:
        """Return the exit code, or None while the kernel lives."""
        code = await super().poll()
        if self.process is not None and code is not None:
            self.exit_code = code
        return code

    async def kill(self, restart: bool = False) -> None:
        """Kill the kernel and everything below it."""
        if self.process is None:
            return
        forking = self.preloaded.pid if self.preloaded is not None else None
        meter = processes.Meter(os.getpid(), forking)  # the last chance to see how much memory the kernel had at most
        meter.sample()
        self.peak_bytes = meter.peak_bytes
        with contextlib.suppress(psutil.NoSuchProcess):
            kernel = psutil.Process(self.process.pid)
            kernel.suspend()
            processes.end_below(self.process.pid)
            kernel.kill()

    async def terminate(self, restart: bool = False) -> None:
        """Kill at once: a polite request is what an endless loop ignores."""
        await self.kill(restart)


class BoundedKernelClient(AsyncKernelClient):
    """Talks to a kernel, and holds only so much of what the kernel says."""

    @default("context")
    def _bounded_context(self) -> zmq.asyncio.Context:
        self._created_context = True
        context = zmq.asyncio.Context()
        context.rcvhwm = QUEUE_LIMIT  # options of a context hold for the sockets made from it
        context.maxmsgsize = MESSAGE_LIMIT_BYTES
        return context


class GuardedKernelManager(AsyncKernelManager):
    """Manages one kernel of this interpreter, over Unix sockets where there are any: no ports, so none is taken."""

    client_factory = Type(klass=BoundedKernelClient)

    def __init__(self, *, folder: Path, **kwargs: Any) -> None:
        self.folder = folder  # short-lived files: the connection file, the sockets, the kernel's log
        super().__init__(**kwargs)
        self.kernel_id = str(uuid4())
        self._kernel_spec = kernel_spec(folder / processes.LOG_NAME)
        self.connection_file = str(folder / "k.json")
        if sys.platform != "win32" and len(self.connection_file) < SOCKET_PATH_LIMIT:
            self.transport = "ipc"
        self.provisioner = GuardedProvisioner(kernel_id=self.kernel_id, kernel_spec=self._kernel_spec, parent=self)
        self.provisioner.log = folder / processes.LOG_NAME

    def client(self, **kwargs: Any) -> BoundedKernelClient:
        """Return a client that is connected to this kernel."""
        return super().client(**kwargs)
