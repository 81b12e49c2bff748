"""Find or make the environment that the course runs in, then run the command there.

Standard library only, and quick: with an environment in place this decides in a few milliseconds. The record in
the environment's folder says what was installed; it counts as finished only once everything is there.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.errors import CourseError, EnvironmentProblem, UsageError, out_of_memory
from course_utils.paths import ROOT, course_first, write_text
from course_utils.text import did_you_mean
from course_utils.tools.commands import COMMANDS, CPU_COMMANDS, overview
from course_utils.tools.requirements import fingerprint, pins, unmet

if TYPE_CHECKING:
    from course_utils.tools.pip_progress import LiveLine

RECORD = "course-environment.json"
LOG = "course-setup.log"
LOCK = "course-setup.lock"
DOWNLOADS = "course-downloads"
KEPT = (RECORD, LOG, LOCK)  # when a broken environment is made again

INTERRUPTED = 130  # 128 + SIGINT, what shells expect

# On Linux 6.4 GB installed (measured); the largest batch of downloads lies there too, and once more in pip's cache.
NEEDED_GB = {"standard": 12.0, "cpu": 3.0, "rest": 1.0}


class Environment:
    """A virtual environment in ``folder`` with the record of what was put there."""

    def __init__(self, folder: Path, *, shared: bool) -> None:
        self.folder = folder
        self.shared = shared  # COURSE_VENV named it: several checkouts may use it
        windows = os.name == "nt"
        self.python = folder / ("Scripts/python.exe" if windows else "bin/python")

    @classmethod
    def from_settings(cls, settings: Mapping[str, str] = os.environ) -> Environment:
        """The one that ``COURSE_VENV`` names, with ``{requirements}`` filled in, or ``.venv`` beside course.py."""
        named = settings.get("COURSE_VENV", "").strip()
        if not named:
            return cls(ROOT / ".venv", shared=False)
        folder = os.path.expanduser(named.replace("{requirements}", fingerprint()))
        return cls(Path(os.path.abspath(folder)), shared=True)

    @property
    def log(self) -> Path:
        return self.folder / LOG

    @property
    def site(self) -> Path | None:
        """The folder of installed packages, or None if there is none yet."""
        pattern = "Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages"
        return next(self.folder.glob(pattern), None)

    def record(self) -> dict[str, object]:
        """Return what was noted about this environment; empty if nothing was, or if the note is damaged."""
        try:
            noted = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return noted if isinstance(noted, dict) else {}

    def note(self, *, cpu: bool, finished: bool) -> None:
        """Note what this environment is; with ``finished`` the next start trusts it."""
        record = {"cpu": cpu, "finished": finished, "root": str(ROOT)}
        if finished:
            record |= {"requirements": fingerprint(), "python": self.identity()}
        write_text(self.folder / RECORD, json.dumps(record, indent=2))

    def identity(self) -> list[object] | None:
        """Return path, size and time of the Python behind this environment; None if it is gone."""
        try:
            real = os.path.realpath(self.python)
            facts = os.stat(real)
        except OSError:
            return None
        return [real, facts.st_size, facts.st_mtime_ns]

    def is_ready(self) -> bool:
        """Say whether everything is installed, for these requirements, this checkout and the same Python."""
        record, identity = self.record(), self.identity()
        return (
            record.get("finished") is True
            and record.get("requirements") == fingerprint()
            and identity is not None
            and record.get("python") == identity
            and (self.shared or record.get("root") == str(ROOT))
            and (self.folder / "pyvenv.cfg").is_file()
        )

    def is_running(self) -> bool:
        """Say whether this process already runs in this environment."""
        try:
            return os.path.samefile(sys.prefix, self.folder)
        except OSError:
            return False


def start(args: Sequence[str]) -> int:
    """Make sure there is an environment, then run the command in it; return its exit code.

    On POSIX this process becomes the command, so it returns only if there was nothing to change to.
    """
    words, cpu = split_cpu(args)
    if cpu:
        os.environ["COURSE_CPU"] = "1"
    os.environ["PYTHONPATH"] = course_first(os.environ.get("PYTHONPATH"))
    folder = ROOT
    try:
        environment = Environment.from_settings()
        folder = environment.folder
        return prepare_and_run(environment, words)
    except CourseError as error:
        sys.stderr.write(f"{error.sentence}\n")
    except (OSError, MemoryError) as error:
        problem = out_of_memory(error) or system_error(error, folder)
        sys.stderr.write(f"{problem.sentence}\n")
    except KeyboardInterrupt:
        sys.stderr.write(
            f"\nSet-up was interrupted. What is done so far is kept in {folder}; the same command goes on from there.\n"
        )
        return INTERRUPTED
    return 2


def prepare_and_run(environment: Environment, words: Sequence[str]) -> int:
    """Set up what is missing, then run the command in the right Python."""
    was_handed_over = os.environ.pop("COURSE_STARTED", None) == str(environment.folder)
    if was_handed_over and not environment.is_running():
        raise EnvironmentProblem(
            f"The environment in {environment.folder} is damaged: its Python does not know where it belongs.",
            fix="Remove that folder and run the same command again.",
        )
    if not was_handed_over and (not environment.is_ready() or words[:1] == ["setup"]):
        if not words or words[0].startswith("-") or "--help" in words:
            return explain(wanted="--help" in words or "-h" in words)
        check_command(words[0])
        if not environment.shared and not environment.is_ready() and not unmet(pins()):
            return run_here(words)  # this Python has it all
        set_up(environment)
    return run_here(words) if environment.is_running() else hand_over(environment, words)


def split_cpu(args: Sequence[str]) -> tuple[list[str], bool]:
    """Take ``--cpu`` out of the arguments, wherever it stands before a ``--``, for the commands that know it."""
    own = list(args[: args.index("--")] if "--" in args else args)
    command = next((word for word in own if not word.startswith("-")), None)
    if "--cpu" not in own or (command is not None and command not in CPU_COMMANDS):
        return list(args), False
    return [word for word in own if word != "--cpu"] + list(args[len(own) :]), True


def explain(*, wanted: bool) -> int:
    """Print what the course can do while nothing is installed yet; return the exit code."""
    text = (
        f"Usage: python3 course.py COMMAND ...\n\nCommands:\n{overview()}\n\n"
        "The first command sets up the environment; after that, COMMAND --help tells its options."
    )
    print(text, file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


def check_command(name: str) -> None:
    """Refuse a misspelt command before gigabytes are installed for it."""
    if name not in COMMANDS:
        raise UsageError(f"There is no command {name!r}.", fix=did_you_mean(name, COMMANDS))


def hand_over(environment: Environment, words: Sequence[str]) -> int:
    """Run the command with the environment's Python: in this process, where the system can exchange its program."""
    command = [str(environment.python), str(ROOT / "course.py"), *words]
    child_env = {**os.environ, "COURSE_STARTED": str(environment.folder)}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if os.name == "posix":
            os.execve(command[0], command, child_env)
        return wait_for(command, child_env)
    except OSError:  # what we trusted is not a program any more
        set_up(environment, trusted=False)
        return wait_for(command, child_env)


def wait_for(command: Sequence[str], child_env: Mapping[str, str]) -> int:
    """Run ``command`` and return its exit code; Ctrl-C reaches it directly and is for it to answer."""
    import subprocess

    with subprocess.Popen(list(command), env=dict(child_env)) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def run_here(words: Sequence[str]) -> int:
    """Run the command in this process."""
    from course_utils.cli import run

    return run(words)


def set_up(environment: Environment, *, trusted: bool = True) -> None:
    """Make, resume or repair the environment, one process at a time.

    Args:
        environment: where.
        trusted: believe the record that says everything is there, once a quick look agrees.

    Raises:
        EnvironmentProblem: for each foreseen way this can fail, with the next step.
    """
    from course_utils.tools.installer import locked
    from course_utils.tools.pip_progress import LiveLine

    line = LiveLine(sys.stderr)
    claim(environment)
    with locked(
        environment.folder / LOCK, lambda: line.say("Another start is setting up the course; waiting for it.")
    ) as lock:
        try:
            install_all(environment, line, lock, trusted)
        finally:
            line.close()


def claim(environment: Environment) -> None:
    """Make the folder, and refuse one that holds something else than an environment."""
    folder = environment.folder
    if folder.is_dir() and environment.shared:
        foreign = [entry.name for entry in folder.iterdir() if entry.name not in (*KEPT, DOWNLOADS)]
        if foreign and not environment.record() and "pyvenv.cfg" not in foreign:
            raise EnvironmentProblem(
                f"COURSE_VENV names {folder}, which holds other things, such as {sorted(foreign)[0]!r}.",
                fix="Name a new or an empty folder.",
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    except (FileExistsError, NotADirectoryError):
        raise EnvironmentProblem(
            f"The environment can't be made in {folder}: a file is in the way.",
            fix="Move that file away, or set COURSE_VENV to a folder.",
        ) from None


def install_all(environment: Environment, line: LiveLine, lock: int, trusted: bool) -> None:
    """Bring the environment to the finished state; the caller holds the lock."""
    from course_utils.tools import installer

    started = time.monotonic()
    pinned = pins()
    site = environment.site
    cpu = wants_cpu(environment, line)
    if trusted and environment.is_ready() and starts(environment) and is_whole(site, pinned):
        if cpu and environment.record().get("cpu") is not True:
            line.say(
                "PyTorch's standard build is there already and works without a GPU too; "
                f"for the smaller one remove {environment.folder} and start again."
            )
        return  # another start has just done it, or `setup` found nothing to repair
    environment.note(cpu=cpu, finished=False)
    if not starts(environment):
        clear(environment)
        check_space(environment, pinned, cpu)
        line.say(f"Setting up the course in {environment.folder} (Ctrl-C is safe: the same command goes on).")
        line.show("making a virtual environment")
        installer.make_venv(environment.folder, environment.log, keep_open=(lock,))
    else:
        check_space(environment, pinned, cpu)
        line.say(f"Completing the course's environment in {environment.folder}.")
    site = environment.site
    assert site is not None  # make_venv has just made it, or its Python has started
    installer.remove_half_installed(site)
    for step, title in steps(pinned, cpu, unmet(pinned, [str(site)])):
        line.say(f"Installing {title}.")
        run_pip(environment, step, pinned, line, lock)
    still_unmet = unmet(pinned, [str(site)])
    if still_unmet:
        raise EnvironmentProblem(
            f"pip was content, but these are not in {environment.folder}: {', '.join(sorted(still_unmet))}.",
            fix="Look for settings that send packages elsewhere: `pip config list`, and variables named PIP_….",
        )
    environment.note(cpu=cpu, finished=True)
    line.say(f"The environment is complete; it took {time.monotonic() - started:.0f} s.")


def is_whole(site: Path | None, pinned: Mapping[str, str]) -> bool:
    """Say whether the pinned packages are in ``site`` and no package there is incomplete."""
    from course_utils.tools.installer import half_installed

    return site is not None and not unmet(pinned, [str(site)]) and not any(half_installed(site))


def wants_cpu(environment: Environment, line: LiveLine) -> bool:
    """Say whether to install PyTorch's CPU build: as asked now, else as asked when this environment was begun."""
    import platform

    asked = os.environ.get("COURSE_CPU", "").strip().lower()
    if asked in ("0", "no", "false"):
        return False
    wanted = asked != "" or environment.record().get("cpu") is True
    if wanted and not (sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")):
        if asked:
            line.say("--cpu makes no difference here: the choice exists on Linux x86-64 only.")
        return False
    return wanted


def starts(environment: Environment) -> bool:
    """Say whether the environment's Python starts, is of a supported version, and has pip."""
    import subprocess

    probe = "import sys, pip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))"
    try:
        done = subprocess.run(
            [environment.python, "-I", "-c", probe], stdin=subprocess.DEVNULL, capture_output=True, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and environment.site is not None


def clear(environment: Environment) -> None:
    """Empty the folder of an environment that does not start; what set-up itself keeps there stays."""
    import shutil

    for entry in environment.folder.iterdir():
        if entry.name in KEPT:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def check_space(environment: Environment, pinned: Mapping[str, str], cpu: bool) -> None:
    """Refuse to begin what the disk has no room for."""
    import shutil

    from course_utils.tools.installer import disk_full

    site = environment.site
    has_torch = "torch" not in pinned or bool(site and not unmet({"torch": pinned["torch"]}, [str(site)]))
    standard = "standard" if sys.platform == "linux" else "cpu"  # elsewhere PyPI's build has no CUDA in it
    needed_gb = NEEDED_GB["rest" if has_torch else "cpu" if cpu else standard]
    if shutil.disk_usage(environment.folder).free < needed_gb * 1e9:
        raise disk_full(environment.folder, needed_gb)


def steps(pinned: Mapping[str, str], cpu: bool, lacking: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """Return the steps still to take, each with what it installs in words.

    PyTorch comes first and alone, so that an interrupt later on costs the smaller part.
    """
    todo = []
    if {"torch", "torchvision"} & lacking.keys():
        todo.append(
            ("cpu torch", f"PyTorch {pinned['torch']}, CPU build") if cpu else ("torch", f"PyTorch {pinned['torch']}")
        )
    todo.append(("rest", "the other packages"))
    if os.access(ROOT, os.W_OK):  # pip writes its notes about the checkout into it
        todo.append(("course", "the course itself"))
    return todo


def run_pip(environment: Environment, step: str, pinned: Mapping[str, str], line: LiveLine, lock: int) -> None:
    """Run one step of the installation in the environment.

    The downloads go to the environment's own disk, and pip keeps the lock open: should this process be killed,
    the next start waits until the orphaned pip is done.
    """
    import shutil

    from course_utils.tools import installer
    from course_utils.tools.pip_progress import PipProgress

    downloads = environment.folder / DOWNLOADS
    shutil.rmtree(downloads, ignore_errors=True)
    downloads.mkdir()
    progress = PipProgress(downloads, environment.site)
    child_env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    child_env |= {"TMPDIR": str(downloads), "TEMP": str(downloads), "PIP_USER": "0", "PYTHONUTF8": "1"}
    try:
        code, lines = installer.run_logged(
            [environment.python, "-m", "pip", *installer.pip_arguments(step, ROOT, pinned)],
            environment.log,
            env=child_env,
            on_line=progress.read,
            on_tick=lambda: line.show(f"  {progress.text()}"),
            keep_open=(lock,),
        )
    finally:
        shutil.rmtree(downloads, ignore_errors=True)
    if code != 0:
        raise installer.pip_failure(lines, environment.folder, environment.log, installer.page_in_place_of_index)


def system_error(error: OSError, folder: Path) -> EnvironmentProblem:
    """Return the error for what the operating system refused during set-up."""
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        from course_utils.tools.installer import disk_full

        return disk_full(folder)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return EnvironmentProblem(
            f"This folder can't be written to: {error.filename or folder}.",
            fix="Copy the course to a folder of your own, or set COURSE_VENV to a folder that you can write to, "
            "for example COURSE_VENV=~/course-venv, and run the same command again.",
        )
    return EnvironmentProblem(
        f"The system refused a step of the set-up: {error.strerror or error} ({error.filename or folder}).",
        fix="Solve that, then run the same command again; it goes on from where it was.",
    )
