"""How much the training doctor finds, and how often it is wrong: ``python -m benchmarks.doctor FOLDER``.

The folder holds ``bugs/*/buggy.py`` with its repaired twin ``fixed.py``, and ``healthy/*/ok.py``. Each program has a
function ``make()`` that returns the parts of a set-up; those without one are counted apart.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import statistics
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from course_utils import doctor


@dataclass(frozen=True)
class Outcome:
    """What the doctor said about one program; ``report`` is None if it has no ``make()``."""

    path: Path
    report: doctor.Report | None

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"


def examined(path: Path) -> Outcome:
    """Import a program and examine what its ``make()`` returns; what it prints and warns is thrown away."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = _imported(path)
        report = doctor.examine(**module.make()) if hasattr(module, "make") else None
    return Outcome(path, report)


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"case_{path.parent.name}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def summary(sick: list[Outcome], healthy: list[Outcome]) -> str:
    """Return recall, false alarms and times as text, with what was missed and what was wrong."""
    judged = [outcome for outcome in sick if outcome.report is not None]
    quiet = [outcome for outcome in healthy if outcome.report is not None]
    loud = [outcome for outcome in judged if not outcome.report.is_healthy]
    noted = [outcome for outcome in judged if outcome.report.is_healthy and outcome.report.findings]
    missed = [outcome.name for outcome in judged if not outcome.report.findings]
    alarms = [outcome for outcome in quiet if not outcome.report.is_healthy]
    seconds = [outcome.report.seconds for outcome in judged + quiet] or [0.0]
    lines = [
        f"{len(loud)} of {len(judged)} faulty programs: an error or a warning; {len(noted)} more: only a note",
        f"{len(alarms)} of {len(quiet)} healthy programs: an error or a warning",
        f"seconds for one: median {statistics.median(seconds):.2f}, longest {max(seconds):.2f}",
        f"without make(): {len(sick) + len(healthy) - len(judged) - len(quiet)}",
    ]
    lines += [f"nothing found in: {', '.join(missed)}"] if missed else []
    lines += [f"only a note in: {', '.join(outcome.name for outcome in noted)}"] if noted else []
    lines += [f"false alarm in {o.name}: {', '.join(f.code for f in o.report.findings)}" for o in alarms]
    return "\n".join(lines)


def main(folder: Path) -> None:
    """Examine all programs of a folder and print the summary."""
    sick = [examined(path) for path in sorted(folder.glob("bugs/*/buggy.py"))]
    healthy = [examined(path) for path in sorted([*folder.glob("bugs/*/fixed.py"), *folder.glob("healthy/*/ok.py")])]
    if not sick and not healthy:
        raise SystemExit(f"There are no cases in {folder}: expected bugs/*/buggy.py, bugs/*/fixed.py, healthy/*/ok.py.")
    print(summary(sick, healthy))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m benchmarks.doctor FOLDER")
    main(Path(sys.argv[1]))
