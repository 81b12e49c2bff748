"""Compare notebooks with a fresh run of themselves, through nbval, strictly.

Each notebook gets its own pytest process in the surroundings that built it, with the plugin in ``patience``: a machine
under load is no reason for a verdict. One command compares the lessons, here ten times with every core busy:

    python -m course_utils.tools.regression --repeat 10 --load notebooks/01_tensors.ipynb
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from course_utils.errors import CourseError, EnvironmentProblem, UsageError
from course_utils.paths import NOTEBOOKS
from course_utils.text import plural
from course_utils.tools.isolation import plain_surroundings
from course_utils.tools.outputs import SANITIZE
from course_utils.tools.processes import core_count

TIMEOUT_S = 600
START_TIMEOUT_S = 120
_BURN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# pytest must not read the project's settings: they make warnings errors, nbval's and jupyter's own among them.
_PYTEST_SETTINGS = "[pytest]\n"


@dataclass(frozen=True)
class Comparison:
    """What nbval says of one notebook; ``report`` is its text, empty of colours."""

    notebook: Path
    ok: bool
    seconds: float
    report: str

    @property
    def sentence(self) -> str:
        name = Path(*self.notebook.parts[-2:])  # the editions have one file name
        return f"{'same' if self.ok else 'DIFFERS':<8} {name} in {self.seconds:.0f} s"


def compare(notebook: Path, timeout_s: float = TIMEOUT_S, sanitize: Path = SANITIZE, threads: int = 1) -> Comparison:
    """Run ``notebook`` afresh and compare every output with what it stores, cells marked as varying excepted.

    Args:
        notebook: an executed notebook; it is not changed.
        timeout_s: for the whole notebook; then the run and everything it started is killed.
        sanitize: what may differ.
        threads: of the numeric libraries; the outputs were made with one.

    Raises:
        EnvironmentProblem: if nbval can't run at all.
    """
    notebook = Path(notebook).resolve()
    started = perf_counter()
    with plain_surroundings(threads) as plain, tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        settings = plain.folder / "pytest.ini"
        settings.write_text(_PYTEST_SETTINGS, encoding="utf-8")
        env = {**plain.env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins cost time and change what runs
        command = [
            *(sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", str(notebook.parent), "--noconftest"),
            *("-p", "nbval.plugin", "-p", "course_utils.tools.patience", "-p", "no:cacheprovider"),
            *("--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(sanitize)),
            *("--nbval-cell-timeout", str(timeout_s), "--nbval-kernel-startup-timeout", str(START_TIMEOUT_S)),
            *("-q", "--no-header", "--color=no", "-rN", str(notebook)),
        ]
        try:
            status = subprocess.run(
                command,
                env=env,
                cwd=notebook.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=timeout_s,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None  # pytest is killed; its kernel and what that started end with the surroundings
        log.seek(0)
        report = _ANSI.sub("", log.read())
    if status is None:
        report += f"\n{notebook.name} did not end within {timeout_s:g} s; the run was killed."
    elif status not in (0, 1):
        raise EnvironmentProblem(
            f"nbval could not run {notebook.name} (pytest's exit status {status}).",
            got=report[-400:],
            fix="`python course.py setup` repairs the environment.",
        )
    return Comparison(notebook, status == 0, perf_counter() - started, report)


def all_notebooks(folder: Path = NOTEBOOKS) -> list[Path]:
    """Return the notebooks of both editions, learner edition first."""
    return [*sorted(folder.glob("*.ipynb")), *sorted((folder / "solutions").glob("*.ipynb"))]


@contextmanager
def busy_cores(count: int | None = None) -> Iterator[None]:
    """Keep ``count`` cores busy (all by default) while the block runs; the load ends with this process too."""
    burners = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(count or core_count())]
    try:
        yield
    finally:
        for process in burners:
            process.kill()
            process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the notebooks that are named, all by default; return 0 if every comparison was the same."""
    parser = argparse.ArgumentParser(prog="python -m course_utils.tools.regression", description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: both editions of every lesson")
    parser.add_argument("--repeat", type=int, default=1, help="how often each is compared")
    parser.add_argument("--threads", type=int, default=1, help="of the numeric libraries; outputs are made with one")
    parser.add_argument("--load", action="store_true", help="keep every core busy meanwhile")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds for one comparison")
    options = parser.parse_args(arguments)
    notebooks = options.notebooks or all_notebooks()
    for notebook in notebooks:
        if not notebook.is_file():
            raise UsageError(f"There is no notebook {str(notebook)!r}.", fix="`course build` makes the notebooks.")
    different = total = 0
    with busy_cores() if options.load else nullcontext():
        for round_number in range(1, options.repeat + 1):
            for notebook in notebooks:
                result = compare(notebook, options.timeout, threads=options.threads)
                total += 1
                different += not result.ok
                print(f"{round_number:>3}  {result.sentence}", flush=True)
                if not result.ok:
                    print(result.report, flush=True)
    print(f"{plural(total, 'comparison')}, {different} different.")
    return 0 if total and not different else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the comparison ends its processes on the way out
    try:
        raise SystemExit(main())
    except CourseError as error:
        print(error.sentence, file=sys.stderr)
        raise SystemExit(2) from None
