"""Make a virtual environment and run pip in it, with a full log; each failure becomes one sentence and a next step.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

from course_utils.errors import EnvironmentProblem
from course_utils.text import shorten
from course_utils.tools.pip_progress import package_name

CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own; its builds are named like 2.14.1+cpu
TICK_S = 0.5  # how often somebody who waits is told how far it is

# What pip says, most telling first: without a network pip ends with "no matching distribution" too.
NO_SPACE = re.compile(r"No space left on device|Errno 28\b|Disk quota exceeded|not enough space on the disk")
BAD_DOWNLOAD = re.compile(r"DO NOT MATCH THE HASHES|IncompleteRead|BadZipFile|has an invalid wheel|zipfile\.BadZip")
WANTED = re.compile(r"The user requested (?:\(constraint\) )?(\S+)")
NO_NETWORK = re.compile(
    r"NewConnectionError|Failed to establish a new connection|NameResolutionError|name resolution|getaddrinfo failed"
    r"|Network is unreachable|Max retries exceeded|ConnectTimeout|Read timed out|ReadTimeoutError|ConnectionResetError"
    r"|ProxyError|SSLError|Connection broken|Could not fetch URL"
)
NO_BUILD = re.compile(r"No matching distribution found for ([^\s(]+)")
INDEXES = re.compile(r"Looking in indexes: (.+)")  # pip says so unless it is PyPI alone
PYPI = "https://pypi.org/simple"
PAGE_TITLE = re.compile(r"<title[^>]*>([^<]*)", re.IGNORECASE)
ASK_S = 10.0  # for an index to answer one question
NO_ENSUREPIP = re.compile(r"ensurepip is not available|No module named '?(?:venv|ensurepip)")


def pip_arguments(step: str, root: Path, pinned: dict[str, str]) -> list[str]:
    """Return pip's arguments for one step of the installation.

    Args:
        step: ``"cpu torch"`` (PyTorch's CPU build from its own index, alone), ``"torch"`` (the standard build),
            ``"rest"`` (everything in requirements.txt) or ``"course"`` (the checkout itself).
        root: the checkout.
        pinned: normalized name to version of the direct requirements.
    """
    install = ["install", "--no-input", "--no-color", "--progress-bar", "off", "--disable-pip-version-check"]
    torch = [f"{name}=={pinned[name]}" for name in ("torch", "torchvision") if name in pinned]
    if step == "cpu torch":
        # Alone: that index has its own versions of what torch depends on. The pinned ones come with the next step.
        return [*install, "--no-deps", "--index-url", CPU_INDEX, *(f"{name}+cpu" for name in torch)]
    if step == "torch":
        return [*install, "-c", str(root / "constraints.txt"), *torch]
    if step == "rest":
        return [*install, "-r", str(root / "requirements.txt")]
    if step == "course":
        return [*install, "--no-deps", "--no-build-isolation", "--editable", str(root)]
    raise ValueError(step)


def run_logged(
    command: Sequence[str | os.PathLike[str]],
    log: Path,
    *,
    env: dict[str, str] | None = None,
    on_line: Callable[[str], None] = lambda line: None,
    on_tick: Callable[[], None] = lambda: None,
    keep_open: Sequence[int] = (),
) -> tuple[int, list[str]]:
    """Run a program, add its output to ``log``, and return its exit code and its lines.

    However this ends, the program and all it started have ended too. ``keep_open`` are file descriptors that it
    inherits (POSIX): a lock kept open by an orphan stays held until the orphan is done.
    """
    lines: list[str] = []
    arriving: SimpleQueue[str | None] = SimpleQueue()
    process = subprocess.Popen(
        [os.fspath(part) for part in command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        pass_fds=keep_open if os.name == "posix" else (),
        start_new_session=True,  # Ctrl-C reaches us alone, and we end the whole group
    )

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            arriving.put(line.rstrip("\n"))
        arriving.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"\n$ {' '.join(os.fspath(part) for part in command)}\n")
            while True:
                try:
                    line = arriving.get(timeout=TICK_S)
                except Empty:
                    on_tick()
                    continue
                if line is None:
                    break
                lines.append(line)
                file.write(f"{line}\n")
                file.flush()
                on_line(line)
                on_tick()
        return process.wait(), lines
    finally:
        _end(process)
        reader.join(timeout=1)
        assert process.stdout is not None
        process.stdout.close()


def _end(process: subprocess.Popen[str]) -> None:
    """End ``process`` and its group if it still runs: ask, wait, then insist."""
    if process.poll() is None:
        _signal(process, "SIGTERM")
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            _signal(process, "SIGKILL")
            process.wait()


def _signal(process: subprocess.Popen[str], name: str) -> None:
    if os.name == "posix":
        os.killpg(process.pid, getattr(signal, name))
    else:
        process.kill()


def make_venv(folder: Path, log: Path, keep_open: Sequence[int] = ()) -> None:
    """Make a virtual environment with pip in ``folder`` from the Python in use.

    Raises:
        EnvironmentProblem: if Python's venv or ensurepip module is missing, the disk is full, or it fails otherwise.
    """
    from importlib.util import find_spec

    if not (find_spec("venv") and find_spec("ensurepip")):
        raise venv_missing()
    python = getattr(sys, "_base_executable", None) or sys.executable  # not another environment's, which may go away
    code, lines = run_logged([python, "-m", "venv", folder], log, keep_open=keep_open)
    text = "\n".join(lines)
    if code == 0:
        return
    if NO_SPACE.search(text):
        raise disk_full(folder)
    if NO_ENSUREPIP.search(text):
        raise venv_missing()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    raise EnvironmentProblem(
        f"Python could not make a virtual environment in {folder}: {shorten(last)}.",
        fix=f"Its full output is in {log}.",
    )


def venv_missing() -> EnvironmentProblem:
    """Return the error for a Python whose parts that make environments are packaged apart, as Debian's are."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return EnvironmentProblem(
        f"This Python ({sys.executable}) can't make environments: its venv or ensurepip module is missing.",
        fix=f"On Debian or Ubuntu install it with `sudo apt install python{version}-venv`, elsewhere install Python "
        "from https://www.python.org/downloads/; then run the same command again.",
    )


def disk_full(folder: Path, needed_gb: float | None = None) -> EnvironmentProblem:
    """Return the error for a disk without room: with the size needed when it is known beforehand."""
    try:
        free = f"{shutil.disk_usage(_existing(folder)).free / 1e9:.1f} GB free"
    except OSError:
        free = "an unknown amount free"
    need = f", and set-up needs about {needed_gb:.0f} GB" if needed_gb else ""
    return EnvironmentProblem(
        f"The disk is full: the one that holds {folder} has {free}{need}.",
        fix="Make room and run the same command again, or set COURSE_VENV to a folder on a larger disk, or add --cpu "
        "on Linux, which needs 3 GB.",
    )


def _existing(folder: Path) -> Path:
    """Return ``folder`` or its nearest parent that exists."""
    return next((place for place in [folder, *folder.parents] if place.exists()), Path.cwd())


def pip_failure(
    lines: Sequence[str], folder: Path, log: Path, page_of: Callable[[str, str], str] = lambda output, package: ""
) -> EnvironmentProblem:
    """Return the error that says in one sentence why pip failed, and what to do next.

    Args:
        lines: what pip said.
        folder: the environment.
        log: where all of it is.
        page_of: asks the index itself for a package, as ``page_in_place_of_index`` does.
    """
    text = "\n".join(lines)
    if NO_SPACE.search(text):
        return disk_full(folder)
    if BAD_DOWNLOAD.search(text):
        return EnvironmentProblem(
            "A download arrived damaged.",
            fix="Run the same command again; if it happens again, a proxy may send something else in its place. "
            f"pip's full output is in {log}.",
        )
    if NO_NETWORK.search(text):
        return EnvironmentProblem(
            "The package index can't be reached: there is no network, or a proxy or firewall is in the way.",
            fix="Check the connection, then run the same command again; what has been downloaded is kept. "
            f"pip's full output is in {log}.",
        )
    wanted = set(WANTED.findall(text))
    if len(wanted) > 1:
        return EnvironmentProblem(
            f"The pinned versions can't be installed together: {' against '.join(sorted(wanted))}.",
            fix="Undo changes to requirements.txt and constraints.txt, or to pip's own settings (`pip config list`); "
            f"pip's full output is in {log}.",
        )
    match = NO_BUILD.search(text)
    if match or wanted:  # with a pin and an equal constraint, pip speaks of a conflict of the two
        name, _, version = (match[1] if match else wanted.pop()).partition("==")
        if page := page_of(text, name):
            return EnvironmentProblem(
                f"The package index can't be read: {page}.",
                fix="Log in to the network, or set HTTPS_PROXY or PIP_INDEX_URL as it wants, then run the same command "
                f"again. pip's full output is in {log}.",
            )
        python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        return EnvironmentProblem(
            f"There is no build of {name} {version}".rstrip()
            + f" for this system ({platform.system()} {platform.machine()}, {python}).",
            fix=f"The README lists the systems that work; pip's full output is in {log}.",
        )
    last = [line.strip() for line in lines if line.strip()][-3:]
    return EnvironmentProblem(
        f"pip failed, and its last words were: {shorten(' / '.join(last), 300) or 'none'}.",
        fix=f"Its full output is in {log}. Running the same command again goes on from here.",
    )


def page_in_place_of_index(output: str, package: str) -> str:
    """Return which index answers with a web page, and the page's title; empty if none does, or nobody answers.

    A proxy, or a network that wants a login, sends its own page. To pip that is an index without this package.

    Args:
        output: what pip said.
        package: of which it found no version.
    """
    import html
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    if os.environ.get("PIP_NO_INDEX"):
        return ""
    named = INDEXES.search(output)
    for index in named[1].split(", ") if named else [PYPI]:
        address = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', package).lower()}/"
        try:
            try:
                answer = urllib.request.urlopen(address, timeout=ASK_S)
            except urllib.error.HTTPError as refusal:  # pages come with errors too
                answer = refusal
            with answer:
                text = answer.read(2**20).decode("utf-8", "replace")
                kind, status = answer.headers.get_content_type(), answer.status
        except (OSError, ValueError, HTTPException):  # one with a password, which pip doesn't print, ends here too
            continue
        is_index = re.search(rf"href=[^>]*{re.sub(r'[-_.]+', '[-_.]+', package)}-[0-9]", text, re.IGNORECASE)
        if kind == "text/html" and status != 404 and not is_index:  # 404 is how an index says that it lacks a package
            title = PAGE_TITLE.search(text)
            named_page = f", {shorten(html.unescape(title[1]), 60)!r}" if title and title[1].strip() else ""
            return f"instead of it a web page comes from {index}{named_page}"
    return ""


def half_installed(site: Path) -> Iterator[Path]:
    """Yield the dist-info folder of each package that an interrupt or a full disk left incomplete.

    pip writes RECORD last; it lists every file with its size. Compiled files and what a package changed itself are
    listed without one.
    """
    for folder in sorted(site.glob("*.dist-info")):
        try:
            rows = (folder / "RECORD").read_text(encoding="utf-8").splitlines()
            whole = (folder / "METADATA").stat().st_size > 0 and (folder / "INSTALLER").exists()
        except OSError:
            rows, whole = [], False
        if not whole or not all(_is_whole(site, row) for row in rows):
            yield folder


def _is_whole(site: Path, row: str) -> bool:
    """Say whether the file in a row of RECORD is there in full size; rows without a size always pass."""
    path, _, size = row.rsplit(",", 2) if row.count(",") >= 2 else (row, "", "")
    if not size.isdigit():
        return True
    try:
        return os.stat(os.path.join(site, path.strip('"'))).st_size == int(size)
    except OSError:
        return False


def remove_half_installed(site: Path) -> list[str]:
    """Take incomplete packages out of pip's sight, so that it installs them again; return their names."""
    removed = []
    for folder in half_installed(site):
        removed.append(package_name(folder.name.removesuffix(".dist-info")))
        shutil.rmtree(folder)
    for folder in site.glob("~*"):  # what pip had moved aside while it replaced a package
        shutil.rmtree(folder, ignore_errors=True)
    return removed


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock file ``path``; call ``waiting`` once if another process holds it. Yields its descriptor.

    The system frees the lock when its holder ends, however it ends. A file system without locks is used as it is.
    """
    with open(path, "a+b") as file:
        waited = False
        while not _try_lock(file.fileno()):
            if not waited:
                waiting()
            waited = True
            time.sleep(0.2)
        yield file.fileno()


def _try_lock(descriptor: int) -> bool:
    """Take the lock unless somebody has it."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]  # Windows only
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
    return True
