"""The learner's workspace, their own copy of the notebooks, and JupyterLab opened on it."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from course_utils.errors import EnvironmentProblem, UsageError
from course_utils.lessons import LESSONS
from course_utils.paths import NOTEBOOKS, atomic_path, course_first, workspace, write_new
from course_utils.text import plural
from course_utils.tools.environment import wait_for
from course_utils.tools.processes import PATIENT_THREADS
from course_utils.tools.start_page import NAME as START_PAGE
from course_utils.tools.start_page import write_start_page

SETTINGS = Path(__file__).with_name("jupyter")  # of JupyterLab, and the kernel that it starts
PLACES = ("COURSE_WORKSPACE", "COURSE_DATA", "COURSE_PROGRESS")  # kernels start elsewhere, so these become absolute


def prepare_workspace() -> list[Path]:
    """Make the workspace, and copy the lessons that it lacks; what is there stays as it is.

    Returns:
        The notebooks that were added.

    Raises:
        EnvironmentProblem: if the workspace can't be written to, or the checkout lacks a built notebook.
    """
    missing = [workspace() / f"{lesson.stem}.ipynb" for lesson in LESSONS]
    return [path for path in missing if not path.exists() and put_copy(original(path.stem), path)]


def original(stem: str) -> bytes:
    """Return the learner edition of a lesson as it is handed out: without results, for they answer the predictions.

    Raises:
        EnvironmentProblem: if the checkout lacks it, or has it damaged.
    """
    path = NOTEBOOKS / f"{stem}.ipynb"
    fix = "Restore it with `git checkout notebooks`, or make it with `python3 course.py build`."
    try:
        notebook = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise EnvironmentProblem(f"The notebook of lesson {stem} is missing: {path}.", fix=fix) from None
    except ValueError:
        raise EnvironmentProblem(f"The notebook of lesson {stem} is damaged: {path}.", fix=fix) from None
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def put_copy(content: bytes, path: Path) -> bool:
    """Write a new file, all of it or nothing; return False if there is one already, which stays.

    Raises:
        EnvironmentProblem: if the folder can't be written to.
    """
    try:
        return write_new(path, content)
    except FileExistsError:
        raise not_writable(path.parent, "a file is in the way") from None
    except OSError as error:
        raise not_writable(path.parent, error.strerror or str(error)) from error


def not_writable(folder: Path, reason: str) -> EnvironmentProblem:
    """Return the error for a workspace that does not take files."""
    return EnvironmentProblem(
        f"The workspace {folder} can't be written to: {reason}.",
        fix="Make room or change its permissions, or set COURSE_WORKSPACE to another folder.",
    )


def reset(stem: str) -> str:
    """Take a lesson afresh into the workspace and keep the learner's copy under a name with the time.

    Returns:
        A sentence that says what was done.

    Raises:
        EnvironmentProblem: if the workspace can't be written to, or the checkout lacks the notebook.
    """
    fresh, path = original(stem), workspace() / f"{stem}.ipynb"
    try:
        mine = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        put_copy(fresh, path)
        return f"{path} is new: there was no copy before."
    except OSError as error:
        raise EnvironmentProblem(
            f"Your copy {path} can't be read: {error.strerror or error}.", fix="Look at the file and its permissions."
        ) from error
    if mine == fresh:
        return f"{path} is unchanged since it was handed out; nothing to do."
    backup = keep_backup(mine, path)
    try:
        with atomic_path(path) as temporary:
            temporary.write_bytes(fresh)
    except OSError as error:
        raise not_writable(path.parent, error.strerror or str(error)) from error
    return f"{path} is fresh again; your copy is kept as {backup.name}. Reload the page if JupyterLab shows it."


def keep_backup(content: bytes, path: Path) -> Path:
    """Write ``content`` beside ``path`` under a name that nothing has yet, and return that name."""
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    backup, count = path.with_name(f"{path.stem}.backup-{stamp}.ipynb"), 1
    while not put_copy(content, backup):
        count += 1
        backup = path.with_name(f"{path.stem}.backup-{stamp}-{count}.ipynb")
    return backup


def open_lab(lesson: str | None = None, *, browser: bool = True, port: int | None = None) -> int:
    """Open JupyterLab on the workspace, at a lesson if given, else at the start page; return its exit code.

    On POSIX this process becomes JupyterLab, so that signals reach it directly and nothing is left behind.

    Args:
        lesson: stem of a lesson, such as ``01_tensors``.
        browser: open a browser window; otherwise the address is printed.
        port: TCP port; by default the first free one from 8888.

    Raises:
        EnvironmentProblem: if the workspace can't be made.
        UsageError: if ``port`` is taken.
    """
    if port is not None:
        check_port(port)
    added = prepare_workspace()
    if added:
        print(f"Copied {plural(len(added), 'lesson')} to your workspace, {workspace()}.")
    if lesson is None:
        put_start_page()
    print("JupyterLab starts; press Ctrl-C in this terminal to shut it down.", flush=True)
    command, env = lab_command(lesson, browser=browser, port=port), lab_environment()
    if os.name == "posix":
        _become(command, env)
    return wait_for(command, env)


def put_start_page() -> None:
    """Write the start page into the workspace.

    Raises:
        EnvironmentProblem: if it can't be written.
    """
    try:
        write_start_page()
    except OSError as error:
        raise not_writable(workspace(), error.strerror or str(error)) from error


def _become(command: list[str], env: dict[str, str]) -> NoReturn:
    sys.stderr.flush()
    os.execve(command[0], command, env)


def check_port(port: int) -> None:
    """Refuse a port that something listens on, before JupyterLab starts."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"Port {port} can't be used: {error.strerror}.",
                fix="Choose another one, or leave --port out to get a free one.",
            ) from error


def lab_command(lesson: str | None, *, browser: bool, port: int | None) -> list[str]:
    """Return the command that starts JupyterLab: on this machine only, with its access token."""
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.root_dir": str(workspace().absolute()),
        "ServerApp.answer_yes": "True",  # Ctrl-C shuts down without asking again
        "ServerApp.open_browser": str(browser),
        "ServerApp.allow_root": "True",  # usual in containers; the address is local and needs the token
        "Application.log_level": "WARN",
        "LabApp.default_url": f"/lab/tree/{f'{lesson}.ipynb' if lesson else START_PAGE}",
    }
    if port is not None:
        options |= {"ServerApp.port": str(port), "ServerApp.port_retries": "0"}
    return [sys.executable, "-m", "jupyterlab", *(f"--{name}={value}" for name, value in options.items())]


def _has_home(env: Mapping[str, str]) -> bool:
    """Say whether there is a home folder that JupyterLab can write to; in a container there often is none."""
    home = env.get("HOME") or os.path.expanduser("~")
    return os.path.isdir(home) and os.access(home, os.W_OK | os.X_OK)


def lab_environment() -> dict[str, str]:
    """Return the environment variables of JupyterLab and so of its kernels."""
    env = dict(os.environ)
    for name in PLACES:
        if env.get(name) and env[name].strip().lower() != "off":
            env[name] = os.path.abspath(os.path.expanduser(env[name]))
    if os.name == "posix" and not _has_home(env):
        home = workspace().absolute() / ".home"
        home.mkdir(parents=True, exist_ok=True)
        env["HOME"] = str(home)
    # Defaults, so that what the reader has chosen in JupyterLab before still wins.
    settings = [str(SETTINGS), *filter(None, [env.get("JUPYTER_CONFIG_PATH")])]
    return {**PATIENT_THREADS, **env} | {
        "PYTHONPATH": course_first(env.get("PYTHONPATH")),
        "JUPYTER_CONFIG_PATH": os.pathsep.join(settings),
        # First, so that no other kernel called python3 takes its place: this one explains missing names.
        "JUPYTER_PATH": os.pathsep.join([str(SETTINGS), *filter(None, [env.get("JUPYTER_PATH")])]),
    }
