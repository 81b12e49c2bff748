"""Start a service on a free port of this machine, and end it: in a thread here, or in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import httpx
import uvicorn

from course_utils.errors import EnvironmentProblem
from course_utils.paths import ROOT, course_first
from course_utils.serving.client import connect
from course_utils.text import shorten

LOOPBACK = "127.0.0.1"  # reached from this machine only; 0.0.0.0 would open the service to the network
THREAD_NAME = "course-service"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
BACKLOG = 128  # connections that wait to be accepted
GRACE_S = 2  # for requests that are being answered when the service ends


class ServingError(EnvironmentProblem):
    """A service that did not start."""


class Service:
    """An ASGI app on a free port of the loopback interface, in a thread of this process.

    As a context manager, or with `start` in one cell and `stop` in a later one. The port is free again after `stop`,
    also if an interrupt ends the block or the stopping itself. A service that nobody holds any more stops, too.

    Args:
        app: any ASGI app, such as that of `make_app`.
        port: 0 takes a free one.

    Example:
        >>> from course_utils.serving import make_app
        >>> with Service(make_app(lambda pixels: pixels.mean((2, 3)) * [[0, 1]])) as service:
        ...     with service.client() as client:
        ...         client.get("/health").json()
        {'status': 'ok'}
    """

    def __init__(self, app: Callable[..., Any], *, port: int = 0) -> None:
        self.app, self._wanted_port = app, port
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._last_resort: weakref.finalize | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def client(self) -> httpx.Client:
        """Return an HTTP client for this service; close it after use."""
        return connect(self.url)

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Service:
        """Start, and return when requests are answered; a service that runs already is left alone.

        Raises:
            ServingError: if the port is taken, the app does not start, or not in time.
        """
        if self.is_running:
            return self
        listener = _listener(self._wanted_port)
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self.app, lifespan="on", ws="none", log_config=None, access_log=False, log_level="critical",
            timeout_graceful_shutdown=GRACE_S,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=_serve, args=(self._server, listener), name=THREAD_NAME, daemon=True)
        self._last_resort = weakref.finalize(self, _ask_to_end, self._server)
        try:
            self._thread.start()
            end = time.monotonic() + timeout_s
            while not self._server.started:
                if not self._thread.is_alive():
                    raise ServingError("The service did not start.", got=_reason(self.app), fix="Call the model alone.")
                if time.monotonic() > end:
                    raise ServingError(f"The service was not ready after {timeout_s:g} s.", fix="Start it once more.")
                time.sleep(0.01)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Answer what was asked, end the thread, free the port. Stopping twice does no harm."""
        if self._server is None or self._thread is None:
            return
        _ask_to_end(self._server)  # first of all: whatever happens from here on, the thread ends by itself
        try:
            self._thread.join(timeout_s)
        finally:
            self._server.force_exit = True  # no effect on a server that has ended
        if not self._thread.is_alive():
            self._thread = self._server = None

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()


def service_threads() -> list[str]:
    """Return the names of this process's threads that serve or batch: none after the last service has stopped."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("course-"))


def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    try:
        # SystemExit is how uvicorn reports an app that does not start.
        with contextlib.suppress(SystemExit):
            server.run(sockets=[listener])
    finally:
        listener.close()


def _ask_to_end(server: uvicorn.Server) -> None:
    server.should_exit = True


def _listener(port: int) -> socket.socket:
    """Return a bound socket. Who asks for a free port and binds it later may find it taken by somebody else."""
    # TCP is named: asyncio sends small answers at once only on sockets that do. Without it, the end of each answer
    # waits for the client's acknowledgement of its beginning: 40 ms for every request.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just used, at once
        listener.bind((LOOPBACK, port))
        listener.listen(BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        raise ServingError(
            f"Port {port} of this machine can't be opened.",
            got=error.strerror or str(error),
            expected="a port that nobody listens on",
            fix="port=0 takes a free one",
        ) from error


def _reason(app: object) -> str:
    return getattr(getattr(app, "state", None), "problem", "") or "the app ended during its start"


class ServiceProcess:
    """The digit service for an ONNX file, in a process of its own that never imports PyTorch.

    The process ends with the block, and also when this process dies, however it does: it watches its standard input.

    Args:
        model: the ONNX file.
        threads: cores for one call of the model.
        max_batch, max_wait_s: see `Batcher`.
    """

    def __init__(self, model: Path | str, *, threads: int = 1, max_batch: int = 64, max_wait_s: float = 0.002) -> None:
        self.model = Path(model)
        self._options = ["--threads", str(threads), "--max-batch", str(max_batch), "--max-wait", str(max_wait_s)]
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None

    url = Service.url
    client = Service.client

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> ServiceProcess:
        """Start the process, and return when requests are answered.

        Raises:
            ServingError: if it ends first, with what it wrote, or is not ready in time.
        """
        if self.is_running:
            return self
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop; a pipe that nobody reads would fill up)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "course_utils.serving", str(self.model), *self._options],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
                env={**os.environ, "PYTHONPATH": course_first(os.environ.get("PYTHONPATH"))}, cwd=ROOT,
                start_new_session=True,  # an interrupt of the notebook goes to the notebook alone
            )  # fmt: skip
            self.port = json.loads(self._first_line(timeout_s))["port"]
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the process: it is asked, then told, then made to. Stopping twice does no harm."""
        process, self.process = self.process, None
        log, self._log = self._log, None
        if process is None:
            return
        try:
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            process.stdout.close()  # type: ignore[union-attr]
            if log:
                log.close()

    def __enter__(self) -> ServiceProcess:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _first_line(self, timeout_s: float) -> str:
        """Return what the process says when it is ready: a pipe can't be read with a time limit, a thread can."""
        assert self.process is not None
        lines: queue.Queue[str] = queue.Queue()
        stdout = self.process.stdout
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()  # type: ignore[union-attr]
        try:
            line = lines.get(timeout=timeout_s)
        except queue.Empty:
            raise ServingError(f"The service was not ready after {timeout_s:g} s.", fix="Start it once more.") from None
        if not line:
            self.process.wait(STOP_TIMEOUT_S)
            raise ServingError("The service did not start.", got=self._last_words(), fix="Load the model file alone.")
        return line

    def _last_words(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return shorten(lines[-1], 200) if lines else "it wrote nothing"
