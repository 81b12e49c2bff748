"""Decide what a run does before it starts: which notebooks, with which parameters, where, how many at a time.

Whatever is wrong with a request is found here, before anything runs or is written.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from course_utils.errors import EnvironmentProblem, UsageError
from course_utils.lessons import LESSONS, find_lesson
from course_utils.paths import NOTEBOOKS, ROOT, course_first
from course_utils.text import did_you_mean
from course_utils.tools import processes
from course_utils.tools.edition import require
from course_utils.tools.notebooks import shape_problem
from course_utils.tools.outcomes import Notebook, source_of
from course_utils.tools.supervision import Limits

EDITIONS = ("learner", "solutions")
NOTEBOOK_TIMEOUT_S = 900.0  # a lesson takes under 60 s on two idle cores
CELL_TIMEOUT_S = 300.0
FULL_FACTOR = 10  # longer data and training with --full
MEMORY_PER_JOB_BYTES = 2 * 1024**3  # the most that a lesson may take; decides how many run at a time
MEMORY_SHARE = 0.8  # of the free memory that all kernels together may take
LEAST_MEMORY_BYTES = 1024**3  # below this limit no lesson that imports torch would run
# Linux shows an accelerator as one of these; without any, finding out takes no import of torch.
_ACCELERATOR_FILES = ("/dev/nvidia*", "/dev/kfd", "/dev/dxg", "/dev/dri/render*", "/dev/accel*")
_DEVICE_CHECK = """
import json, sys
from course_utils.devices import pick_device
from course_utils.errors import UsageError
try:
    print(json.dumps({"device": str(pick_device(sys.argv[1]))}))
except UsageError as error:
    print(json.dumps({"error": [error.what, error.got, error.expected, error.fix]}))
"""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What to run, and how."""

    lessons: tuple[str, ...] = ()  # names such as "01" or "tensors", or paths of notebooks; none means all lessons
    edition: str = "learner"  # or "solutions"
    device: str = "auto"  # parameter DEVICE; see devices.pick_device
    seed: int = 0  # parameter SEED
    full: bool = False  # parameter FAST is the opposite
    parameters: Mapping[str, Any] = field(default_factory=dict)  # further parameters, by name
    jobs: int | None = None  # notebooks at a time; None: as many as cores and memory allow
    timeout_s: float | None = None  # for one notebook; None: 15 min, ten times that with full
    cell_timeout_s: float | None = None  # for one cell; None: 5 min, ten times that with full
    job_timeout_s: float | None = None  # for the whole run; None: enough for every notebook to use up its own
    memory_mib: int | None = None  # for one kernel with all its children; None: its share of four fifths of the free
    out: Path | None = None  # new or empty folder for the results; None: runs/<date and time>
    cwd: Path | None = None  # working folder of the kernels; None: the folder of each notebook
    notebooks: Path = NOTEBOOKS  # where the lessons' notebooks are
    show_progress: bool = True
    environment: bool = False  # also write environment.json, the report of `course env`

    def __post_init__(self) -> None:
        if self.edition not in EDITIONS:
            raise UsageError(f"There is no edition called {self.edition!r}.", fix=did_you_mean(self.edition, EDITIONS))
        for name in ("jobs", "timeout_s", "cell_timeout_s", "job_timeout_s", "memory_mib"):
            value = getattr(self, name)
            if value is not None and not value > 0:  # this way round so that nan is refused too
                raise UsageError(f"The setting {name} must be above 0.", got=value, fix="leave it out for the default.")

    def limits(self, jobs: int) -> Limits:
        """Return what each of several notebooks that run at the same time may take."""
        factor = FULL_FACTOR if self.full else 1
        notebook_s = self.timeout_s or NOTEBOOK_TIMEOUT_S * factor
        share = processes.available_memory_bytes() * MEMORY_SHARE / jobs
        memory = self.memory_mib * 2**20 if self.memory_mib else max(LEAST_MEMORY_BYTES, int(share))
        return Limits(
            notebook_s=notebook_s,
            cell_s=min(notebook_s, self.cell_timeout_s or CELL_TIMEOUT_S * factor),
            memory_bytes=memory,
        )


def find_notebooks(options: RunOptions) -> dict[str, Path]:
    """Return the notebooks to run, by name.

    Raises:
        UsageError: if there is no such lesson or file, or a lesson's notebook has not been built.
        EnvironmentProblem: if this copy of the course has no solutions.
    """
    folder = options.notebooks if options.edition == "learner" else options.notebooks / "solutions"
    if options.edition == "solutions":
        require(folder, "solutions")
    found: dict[str, Path] = {}
    for word in options.lessons or [lesson.stem for lesson in LESSONS]:
        path = Path(word)
        if path.suffix != ".ipynb" or not path.is_file():
            path = folder / f"{find_lesson(path.name).stem}.ipynb"
        if not path.is_file():
            raise UsageError(
                f"The notebook {path.name} of the {options.edition} edition does not exist.",
                expected=f"a file in {folder}",
                fix="run `course build` to make the notebooks from their sources.",
            )
        path = path.resolve()
        if path not in found.values():
            same = sum(name.split("@")[0] == path.stem for name in found)
            found[f"{path.stem}@{same + 1}" if same else path.stem] = path
    return found


def read_notebook(path: Path) -> Notebook:
    """Return a notebook file's content.

    Raises:
        UsageError: if the file holds no notebook.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        reason = shape_problem(notebook)
    except (OSError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
    if reason:
        raise UsageError(f"The file {path.name} is no notebook of format 4.", got=reason, fix="open it in JupyterLab.")
    return notebook


def check_parameters(path: Path, parameters: Mapping[str, Any], asked: set[str]) -> None:
    """Make sure that a notebook takes all these parameters; else setting them would do nothing.

    Raises:
        UsageError: if it has no cell tagged ``parameters`` or the cell does not define one of them.
    """
    cells = [cell for cell in read_notebook(path)["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    if not cells:
        raise UsageError(
            f"The notebook {path.name} has no cell tagged 'parameters'.",
            expected=f"one that gives {', '.join(parameters)} their usual values",
            fix="tag the cell that assigns them; without the tag its values would win over the run's.",
        )
    known = assigned_names(source_of(cells[0]))
    for name in parameters:
        if name not in known:
            raise UsageError(
                f"The notebook {path.name} has no parameter called {name!r}.",
                expected=f"one of {', '.join(sorted(known))}" if known else "",
                fix=did_you_mean(name, known) + (" Or name only lessons that have it." if name in asked else ""),
            )


def assigned_names(source: str) -> set[str]:
    """Return the names that a cell assigns at its top level; none if it is no Python."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    targets = [
        target
        for line in body
        if isinstance(line, (ast.Assign, ast.AnnAssign))
        for target in (line.targets if isinstance(line, ast.Assign) else [line.target])
    ]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def parameter_value(text: str) -> Any:
    """Return the value meant by the text of a ``-p NAME VALUE``: a number, true, false, none, a list, or the text."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def plain_value(value: Any) -> Any:
    """Return a parameter's value as something that JSON carries and papermill writes as Python."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_value(entry) for entry in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def find_device(name: str) -> str:
    """Return the device that notebooks will use.

    Raises:
        UsageError: if there is no such device here.
        EnvironmentProblem: if PyTorch can't be asked.
    """
    if name == "cpu" or (name == "auto" and not _may_have_accelerator()):
        return "cpu"
    answer = subprocess.run(
        [sys.executable, "-c", _DEVICE_CHECK, name],  # in a process of its own: torch is slow to import and to leave
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": course_first(os.environ.get("PYTHONPATH"))},
    )
    try:
        facts = json.loads(answer.stdout)
    except ValueError:
        reason = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        raise EnvironmentProblem(
            "PyTorch can't be asked for its devices.", got=reason, fix="run `course setup` to repair the environment."
        ) from None
    if "error" in facts:
        what, got, expected, fix = facts["error"]
        raise UsageError(what, got=got or None, expected=expected, fix=fix)
    return facts["device"]


def _may_have_accelerator() -> bool:
    if not sys.platform.startswith("linux"):
        return True
    return any(next(Path("/").glob(pattern.lstrip("/")), None) for pattern in _ACCELERATOR_FILES)


def share_cores(options: RunOptions, notebooks: int, device: str) -> tuple[int, int]:
    """Return how many notebooks run at a time, and how many threads each may use; together no more than the cores.

    On an accelerator one runs at a time, unless more are asked for: they would share its memory.
    """
    cores = processes.core_count()
    wanted = options.jobs
    if wanted is None:
        fit = processes.available_memory_bytes() // MEMORY_PER_JOB_BYTES
        wanted = min(cores, fit) if device == "cpu" else 1
    count = max(1, min(wanted, cores, notebooks))
    return count, cores // count


def new_folder(out: Path | None) -> Path:
    """Make the folder for the results; an earlier run's folder is never used again.

    Raises:
        UsageError: if ``out`` holds files already.
        EnvironmentProblem: if the folder can't be made.
    """
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            if any(out.iterdir()):
                raise UsageError(f"The folder {out} is not empty.", fix="name a new folder for the results.")
            return out.resolve()
        stem = ROOT / "runs" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        for attempt in range(1, 100):
            folder = stem if attempt == 1 else stem.with_name(f"{stem.name}-{attempt}")
            try:
                folder.mkdir(parents=True)
                return folder
            except FileExistsError:
                continue
        raise FileExistsError(f"{stem} and 98 more exist")
    except OSError as error:
        raise EnvironmentProblem(
            "The folder for the results can't be made.",
            got=str(error),
            fix="name another place with --out.",
        ) from error
