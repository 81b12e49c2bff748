"""One command, many runs: every combination of seeds, devices and parameters, each in a folder of its own."""

from __future__ import annotations

import html
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from course_utils.errors import EnvironmentProblem, UsageError
from course_utils.paths import write_text
from course_utils.text import plural, table
from course_utils.tools.kept import load_plan, save_plan
from course_utils.tools.plan import RunOptions, new_folder
from course_utils.tools.report import RunReport
from course_utils.tools.runner import Prepared, execute, prepare

MAX_RUNS = 1000  # more are a slip of the hand
MAX_NAME = 80  # characters of a folder's name


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """What varies. An axis with one value does not; an empty one keeps the value of the options."""

    seeds: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    parameters: Mapping[str, tuple[Any, ...]] | None = None  # name to its values

    @property
    def is_one(self) -> bool:
        """Whether this is a single run."""
        return all(len(values) < 2 for values in (self.seeds, self.devices, *(self.parameters or {}).values()))

    def runs(self, options: RunOptions) -> list[tuple[str, RunOptions]]:
        """Return each combination with its name, the last axis changing fastest.

        Raises:
            UsageError: if there are too many.
        """
        axes: dict[str, tuple[Any, ...]] = {
            "seed": tuple(dict.fromkeys(self.seeds)) or (options.seed,),
            "device": tuple(dict.fromkeys(self.devices)) or (options.device,),
        }
        count = len(axes["seed"]) * len(axes["device"])
        for name, values in (self.parameters or {}).items():
            axes[f"-p {name}"] = tuple({repr(value): value for value in values}.values())
            count *= len(axes[f"-p {name}"])
        if count > MAX_RUNS:
            raise UsageError(f"These are {count:,} runs; at most {MAX_RUNS:,} go together.", fix="Name fewer values.")
        found, taken = [], set()
        for values in itertools.product(*axes.values()):
            point = dict(zip(axes, values, strict=True))
            parts = [_part(name.removeprefix("-p "), point[name]) for name in axes if len(axes[name]) > 1]
            stem = "_".join(parts)[:MAX_NAME] or "run"
            name = next(n for i in itertools.count(1) if (n := stem if i == 1 else f"{stem}-{i}") not in taken)
            taken.add(name)
            ours = {name[3:]: value for name, value in point.items() if name.startswith("-p ")}
            found.append(
                (
                    name,
                    replace(
                        options,
                        seed=point["seed"],
                        device=point["device"],
                        parameters={**options.parameters, **ours},
                    ),
                )
            )
        return found


def _part(name: str, value: Any) -> str:
    text = re.sub(r"[^\w.+-]+", "-", str(value)).strip("-.")[:30] or "x"
    return f"{name}-{text}"


@dataclass(frozen=True, kw_only=True)
class MatrixReport:
    """All runs of a matrix, in order."""

    runs: tuple[tuple[str, RunReport], ...]
    out: Path
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether every notebook of every run ran to its end without an error."""
        return bool(self.runs) and all(report.ok for _, report in self.runs)

    def verdict(self) -> str:
        """Return the outcome in a few words."""
        good = sum(report.ok for _, report in self.runs)
        total = plural(len(self.runs), "run")
        return f"{total} passed" if self.ok else f"{good} of {total} passed"

    def summary(self) -> str:
        """Return a line for each run, the errors below, and where to read more."""
        rows = [(name, report.verdict(), f"{report.seconds:.1f}") for name, report in self.runs]
        lines = [table(rows, ("run", "what came of it", "seconds")), ""]
        lines += [
            f"{name}/{outcome.name}: {outcome.error}"
            for name, report in self.runs
            for outcome in report.outcomes
            if outcome.error
        ]
        lines.append(f"{self.verdict()}. Report: {self.out / 'report.html'}")
        if self.interrupted:
            lines.append(f"Interrupted. `course run --resume {self.out}` goes on where this stopped.")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the facts of all runs; ``notebooks`` has those of a single run's report, with the run's name."""
        runs, notebooks = [], []
        for name, report in self.runs:
            content = report.to_json()
            mine = content.pop("notebooks")
            runs.append({"name": name, "folder": name, **content})
            notebooks += [{"run": name, **entry} for entry in mine]
        return {"runs": runs, "notebooks": notebooks, "ok": self.ok, "interrupted": self.interrupted}

    def to_html(self) -> str:
        """Return a page with a line for each run, which leads to that run's report."""
        rows = "\n".join(
            f'<tr><td><a href="{html.escape(name)}/report.html">{html.escape(name)}</a></td>'
            f'<td class="{"good" if report.ok else "bad"}">{html.escape(report.verdict())}</td>'
            f"<td>{report.seconds:.1f}</td><td>{html.escape(report.device)}</td></tr>"
            for name, report in self.runs
        )
        return _PAGE.format(title=html.escape(self.verdict()), rows=rows)


_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>
<style>:root {{ color-scheme: light dark }} body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem;
margin: 2rem auto; padding: 0 1rem }} td, th {{ text-align: left; padding: .3rem 1rem .3rem 0 }}
.good {{ color: #1a7f37 }} .bad {{ color: #c4231b; font-weight: 600 }}</style></head>
<body><h1>{title}</h1>
<table><thead><tr><th>Run</th><th>What came of it</th><th>Seconds</th><th>Device</th></tr></thead>
<tbody>
{rows}
</tbody></table></body></html>
"""


def run_matrix(options: RunOptions, matrix: Matrix) -> MatrixReport:
    """Execute every combination into a folder of its own below the folder for the results.

    Raises:
        UsageError: if any of the runs could not start; then none does.
        EnvironmentProblem: if notebooks can't be run here at all, or results can't be written.
    """
    named = matrix.runs(options)
    prepared = prepare([run for _, run in named])
    top = new_folder(options.out)
    runs = [replace(run, out=top / name) for name, run in named]
    save_plan(top, runs, is_matrix=True)
    return _execute(prepared, [top / name for name, _ in named], top)


def resume(folder: Path, *, jobs: int | None = None, show_progress: bool = True) -> RunReport | MatrixReport:
    """Go on with a run or a matrix that was interrupted or killed; what is done is not repeated.

    A notebook runs again if it, the course or a library has changed since, or if it ran out of time or died.

    Args:
        folder: where the results are.
        jobs: another number of notebooks at a time.

    Raises:
        UsageError: if nothing can be resumed there, or another process runs into the folder.
        EnvironmentProblem: if notebooks can't be run here at all, or results can't be written.
    """
    runs, is_matrix = load_plan(folder)
    runs = [replace(run, jobs=jobs or run.jobs, show_progress=show_progress) for run in runs]
    top = folder.resolve()
    if not is_matrix:
        return execute(prepare(runs), [top], top)[0]
    return _execute(prepare(runs), [run.out for run in runs if run.out is not None], top)


def _execute(prepared: Sequence[Prepared], folders: Sequence[Path], top: Path) -> MatrixReport:
    try:
        for folder in folders:
            folder.mkdir(exist_ok=True)
        reports = execute(prepared, folders, top)
        named = tuple((folder.name, report) for folder, report in zip(folders, reports, strict=True))
        result = MatrixReport(runs=named, out=top, interrupted=any(report.interrupted for report in reports))
        write_text(top / "report.json", json.dumps(result.to_json(), indent=1, ensure_ascii=False) + "\n")
        write_text(top / "report.html", result.to_html())
    except OSError as error:
        raise EnvironmentProblem(
            f"The results can't be written to {top}: {error.strerror}.",
            fix="Make room, or name another place with --out.",
        ) from error
    return result
