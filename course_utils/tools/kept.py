"""What a run keeps on disk while it goes on, so that an interrupted one can be resumed, even after it was killed.

``run.json`` in the folder of the results says what was asked. ``.done/NAME.json`` in a run's own folder holds the
outcome of a notebook as soon as it has ended, with a key made of everything that decides about it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from course_utils.errors import EnvironmentProblem, UsageError
from course_utils.paths import write_text
from course_utils.tools.fingerprints import code_digest
from course_utils.tools.outcomes import FAILED, PASSED, CellFacts, Outcome
from course_utils.tools.plan import RunOptions, plain_value
from course_utils.tools.supervision import Job

PLAN = "run.json"
DONE = ".done"
LOCK = ".lock"
# A notebook that ran out of time or lost its kernel may fare better on a machine with less to do: it runs again.
FINAL = (PASSED, FAILED)


def save_plan(top: Path, runs: Sequence[RunOptions], *, is_matrix: bool) -> None:
    """Write down what was asked; each run's own folder is ``out``, inside ``top``."""
    write_text(
        top / PLAN, json.dumps({"matrix": is_matrix, "runs": [_to_json(run, top) for run in runs]}, indent=1) + "\n"
    )


def load_plan(top: Path) -> tuple[list[RunOptions], bool]:
    """Return the runs that a folder of results was made for, and whether they are a matrix.

    Raises:
        UsageError: if it is no such folder.
    """
    try:
        content = json.loads((top / PLAN).read_text(encoding="utf-8"))
        return [_from_json(entry, top.resolve()) for entry in content["runs"]], bool(content["matrix"])
    except FileNotFoundError:
        reason = f"it has no {PLAN}" if top.is_dir() else "there is no such folder"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"its {PLAN} can't be read ({type(error).__name__})"
    raise UsageError(
        f"No run can be resumed in {top}: {reason}.",
        fix="Name the folder that the interrupted run wrote its results to.",
    )


def _to_json(run: RunOptions, top: Path) -> dict[str, Any]:
    entry = {item.name: getattr(run, item.name) for item in fields(run) if item.name != "show_progress"}
    lessons = [str(Path(word).resolve()) if Path(word).is_file() else word for word in run.lessons]
    out = run.out.relative_to(top).as_posix() if run.out is not None else "."
    paths = {name: None if entry[name] is None else str(entry[name].resolve()) for name in ("cwd", "notebooks")}
    return {**entry, **paths, "lessons": lessons, "out": out, "parameters": plain_value(run.parameters)}


def _from_json(entry: Mapping[str, Any], top: Path) -> RunOptions:
    paths = {name: None if entry[name] is None else Path(entry[name]) for name in ("cwd", "notebooks")}
    return RunOptions(**{**entry, **paths, "lessons": tuple(entry["lessons"]), "out": top / entry["out"]})


def job_key(job: Job, device: str, versions: Mapping[str, str]) -> str:
    """Return a digest of all that decides about a notebook's outcome."""
    asked = {"edition": job.edition, "parameters": job.parameters, "device": device, "versions": dict(versions)}
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    digest.update(code_digest().encode() + job.source.read_bytes())
    return digest.hexdigest()


def keep(job: Job, outcome: Outcome, key: str) -> None:
    """Keep the outcome of a notebook that has ended, unless the machine or a person decided about its end.

    Raises:
        EnvironmentProblem: if it can't be written.
    """
    path = _done(job)
    if outcome.status not in FINAL:
        path.unlink(missing_ok=True)
        return
    entry = {**asdict(outcome), "notebook": outcome.notebook.name if outcome.notebook else None}
    try:
        write_text(path, json.dumps({"key": key, "outcome": entry}, ensure_ascii=False) + "\n")
    except OSError as error:
        raise EnvironmentProblem(
            f"What came of {job.name} can't be written to {path.parent}: {error.strerror}.",
            fix="Make room, then go on with `course run --resume DIR`.",
        ) from error


def kept(job: Job, key: str) -> Outcome | None:
    """Return the outcome that an earlier start kept; None if there is none, or anything has changed since."""
    try:
        content = json.loads(_done(job).read_text(encoding="utf-8"))
        entry = content["outcome"]
        if content["key"] != key or entry["notebook"] is None or not job.output.exists():
            return None
        cell = CellFacts(**entry["cell"]) if entry["cell"] else None
        return replace(Outcome(**{**entry, "cell": cell, "notes": tuple(entry["notes"])}), notebook=job.output)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _done(job: Job) -> Path:
    return job.output.parent / DONE / f"{job.output.stem}.json"


@contextmanager
def only_one(top: Path) -> Iterator[None]:
    """Make sure that no other process runs into this folder meanwhile.

    Raises:
        UsageError: if one does.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(top / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f"Another process is running notebooks into {top}.", fix="Wait for its end, or name another folder."
        ) from None
    try:
        yield
    finally:
        lock.release()
