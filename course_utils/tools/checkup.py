"""The training doctor as a command, and the page of the documentation made from its rules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course_utils.display import error_text
from course_utils.doctor.examination import examine
from course_utils.doctor.findings import NOTE, RULES, SEVERITIES, WARNING
from course_utils.doctor.limits import FOUND, LIMITS
from course_utils.doctor.report import Report
from course_utils.doctor.rules import THEMES, load
from course_utils.errors import CourseError, UsageError
from course_utils.paths import ROOT, write_text
from course_utils.text import did_you_mean

PAGE = ROOT / "docs" / "doctor.md"
DEFAULT = "make"
_MEANING = {
    "error": "certain, and training suffers",
    WARNING: "certain; how much harm it does depends",
    NOTE: "it may be meant; the message says what speaks against it",
}


def check_up(target: str) -> Report:
    """Examine the set-up that a function in a file returns.

    Args:
        target: ``FILE.py`` or ``FILE.py:FUNCTION``; the function takes no arguments and returns a dict of the parts
            that `doctor.examine` takes. ``make`` by default.

    Raises:
        UsageError: if there is no such file or function, or the file or function fails on its own.
    """
    name, _, function = target.rpartition(":") if ".py:" in target else (target, "", "")
    path, wanted = Path(name).resolve(), function or DEFAULT
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"There is no Python file {name!r}.", fix="course.py doctor FILE.py[:FUNCTION]")
    make = _function(path, wanted)
    try:
        parts = make()
    except Exception as error:
        raise UsageError(
            f"{wanted}() in {path.name} failed: {error_text(error)}", fix="Run the file by itself."
        ) from error
    if not isinstance(parts, dict):
        raise UsageError(
            f"{wanted}() in {path.name} returned no dict.",
            got=type(parts).__name__,
            expected="the parts by name: model, loader, loss_fn, optimizer, …",
            fix="return dict(model=model, loader=loader, loss_fn=loss_fn, optimizer=optimizer)",
        )
    try:
        return examine(**parts)
    except TypeError as error:
        raise UsageError(f"{wanted}() in {path.name} returned parts of a wrong kind: {error_text(error)}") from error


def _function(path: Path, wanted: str) -> Callable[[], Any]:
    """Import a file beside its neighbours and return one of its functions."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # workers and pickles look it up there
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except CourseError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{path.name} can't be imported: {error_text(error)}", fix="Run the file by itself."
        ) from error
    found = getattr(module, wanted, None)
    if not callable(found):
        functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise UsageError(
            f"{path.name} has no function {wanted!r}.",
            fix=did_you_mean(wanted, functions) or "write make(), which returns a dict of the parts",
        )
    return found


def store() -> Path:
    """Write the page that is made from the rules; return its path."""
    write_text(PAGE, page_text())
    return PAGE


def page_text() -> str:
    """Return the documentation page: every finding by theme, what is observed, and which healthy programs pass."""
    load()
    clinics = _clinics()
    lines = [
        "# The training doctor",
        "",
        "`doctor.examine(model=…, loader=…, loss_fn=…, optimizer=…)` runs your set-up for a few steps on its own",
        "batches, puts everything back, and says what is wrong. `python3 course.py doctor FILE.py` does so with what",
        "the function `make` in a file returns. `with doctor.watch(model) as watching:` around your own loop, over",
        "`watching(loader)`, says what goes wrong while it runs. Made from the rules by",
        "`python -m course_utils.tools.checkup`.",
        "",
        *(f"- **{severity}**: {_MEANING[severity]}" for severity in SEVERITIES),
    ]
    for theme in THEMES:
        module = f"course_utils.doctor.rules.{theme}"
        rules = [rule for rule in RULES.values() if rule.check.__module__ == module]
        if not rules:
            continue
        lines += ["", f"## {theme.capitalize()}"]
        for rule in sorted(rules, key=lambda rule: rule.code):
            lines += [
                "",
                f"### {rule.code}",
                "",
                f"{rule.title} ({rule.severity}; lesson {rule.lesson})",
                "",
                f"- looks at: {rule.looks}",
                f"- passes: {rule.quiet}",
                f"- repair: `{rule.fix}`",
                *(f"- clinic: {text}" for text in clinics.get(rule.code, ())),
            ]
    return "\n".join([*lines, *_known(), *_limits()]) + "\n"


def _clinics() -> dict[str, list[str]]:
    """Return, by finding, the clinic items whose program has the fault."""
    from course_utils.exercises.registry import CLINIC, all_exercises

    found: dict[str, list[str]] = {}
    for item in all_exercises():
        if item.kind == CLINIC and item.finding:
            found.setdefault(item.finding, []).append(f"{item.title} (`{item.id}`)")
    return found


def _known() -> list[str]:
    """Return the section that leads from a known mistake to the findings that tell it."""
    lines = ["", "## Known mistakes and their findings", ""]
    for theme, faults in FOUND.items():
        lines += [f"{theme}:", ""]
        lines += [f"- {fault}: {', '.join(f'`{code}`' for code in codes)}" for fault, codes in faults.items()]
        lines.append("")
    return lines[:-1]


def _limits() -> list[str]:
    """Return the section about mistakes that no rule tells."""
    lines = ["", "## What it cannot see", ""]
    lines += ["Mistakes that leave no trace in an examination, or none that healthy programs don't leave too."]
    for limit in LIMITS:
        lines += ["", f"- **{limit.fault}** (lesson {limit.lesson})", f"  {limit.reason} Instead: {limit.instead}"]
    return lines


if __name__ == "__main__":
    print(store().relative_to(ROOT))
