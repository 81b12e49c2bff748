"""Make both editions of every lesson from its source, execute them, and say whether they are in step."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from course_utils.errors import CourseError, SourceError
from course_utils.paths import NOTEBOOKS, ROOT, write_text
from course_utils.sources import Cell, source_paths
from course_utils.text import human_bytes, plural
from course_utils.tools.edition import require
from course_utils.tools.isolation import plain_surroundings
from course_utils.tools.notebooks import shape_problem
from course_utils.tools.outputs import MAX_NOTEBOOK_BYTES, OutputError, clean_outputs, incomplete
from course_utils.tools.source import (
    EDITIONS,
    Notebook,
    agree_with_jupytext,
    check_source,
    find_source,
    insert_ids,
    make_editions,
    notebook_path,
    unlike_blanks,
)
from course_utils.tools.texts import write_catalogue

CELL_TIMEOUT_S = 300
START_TIMEOUT_S = 120  # a kernel under load on a cold disk
# What a notebook is made by, besides what it imports; the other tools have no say in what it shows.
_MAKERS = ("source.py", "source_rules.py", "outputs.py", "isolation.py", "build.py")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Built:
    """What became of one edition of one lesson."""

    notebook: Path
    action: str  # "built", "unchanged", "in step", "failed" or "drifted"
    problems: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class BuildResult:
    """What became of all that was asked for; ``ok`` if nothing failed or drifted."""

    notebooks: tuple[Built, ...]

    @property
    def ok(self) -> bool:
        return not any(built.problems for built in self.notebooks)

    def summary(self) -> str:
        """Return one line per notebook, each problem below its notebook, and the count."""
        lines = []
        for built in self.notebooks:
            time = f" in {built.seconds:.0f} s" if built.action == "built" else ""
            lines.append(f"{built.action:<9} {_shown(built.notebook)}{time}")
            lines += [f"          {line}" for problem in built.problems for line in problem.split("\n")]
        wrong = sum(1 for built in self.notebooks if built.problems)
        if wrong:
            lines.append(
                f"{wrong} of {plural(len(self.notebooks), 'notebook')} not in step: repair the source, then build."
            )
        else:
            lines.append(f"{plural(len(self.notebooks), 'notebook')} in step with the sources.")
        return "\n".join(lines)


def build(
    lessons: Sequence[str] = (), check: bool = False, jobs: int = 1, *, force: bool = False, folder: Path = NOTEBOOKS
) -> BuildResult:
    """Build both editions of ``lessons``, all by default; or, with ``check``, only compare them.

    Only what changed is executed: an edition stands if it is in step and what it was made of is the same. The
    catalogue of texts for translators is written anew (``tools.texts``).

    Args:
        lessons: names as ``find_source`` takes them.
        check: change nothing; tell how the notebooks differ from what their sources say.
        jobs: notebooks executed at the same time, each on one thread.
        force: execute everything.
        folder: holds ``source/``, the learner edition, and ``solutions/``.

    Raises:
        UsageError: if a lesson is unknown.
        EnvironmentProblem: if this copy of the course has no sources.
    """
    require(folder / "source", "sources")
    sources = [find_source(name, folder) for name in lessons] or source_paths(folder / "source")
    if check:
        built = [result for source in sources for result in _checked(source)]
        return BuildResult((*built, *(() if lessons else _orphans(folder, sources))))
    tasks: list[Callable[[], Built]] = []
    results: list[Built] = []
    for source in sources:
        try:
            insert_ids(source)
            agree_with_jupytext(source)
            cells, notebooks = check_source(source), make_editions(source)
        except SourceError as error:
            results.append(Built(source, "failed", (str(error),)))
            continue
        tasks += [_task(source, cells, edition, notebook, force) for edition, notebook in notebooks.items()]
    write_catalogue(folder)
    return BuildResult((*results, *_in_threads(tasks, jobs)))


def inputs_hash(source: Path) -> str:
    """Return a digest of all that decides a lesson's outputs: its source, the package, the pinned requirements."""
    package = ROOT / "course_utils"
    modules = [path for path in package.rglob("*.py") if path.parent.name != "tools" and path.name != "cli.py"]
    makers = [package / "tools" / name for name in _MAKERS]
    digest = hashlib.sha256()
    for path in [source, *sorted(modules), *makers, ROOT / "requirements.txt", NOTEBOOKS / "sanitize.cfg"]:
        digest.update(path.read_bytes() if path.exists() else b"")
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def drift(stored: Notebook, made: Notebook) -> list[str]:
    """Return how a stored notebook differs from what its source makes, outputs aside; one line per cell."""
    found = []
    if _settings(stored) != _settings(made):
        found.append("the notebook's own metadata differs")
    theirs = {cell.get("id"): cell for cell in stored.get("cells", [])}
    ours = {cell["id"]: cell for cell in made["cells"]}
    found += [f"cell {id!r} is missing" for id in ours if id not in theirs]
    found += [f"cell {id!r} is not in the source" for id in theirs if id not in ours]
    common = [id for id in ours if id in theirs]
    if common != [id for id in theirs if id in ours]:
        found.append("the cells stand in another order")
    for id in common:
        for part in ("cell_type", "source", "metadata"):
            if _joined(theirs[id].get(part)) != ours[id][part]:
                found.append(f"cell {id!r} differs in its {part.replace('cell_type', 'type')}")
    return found


def stored_problems(stored: Notebook) -> list[str]:
    """Return which outputs of a stored notebook are missing or can't be what a build left."""
    code = [cell for cell in stored.get("cells", []) if cell.get("cell_type") == "code"]
    found = [f"cell {cell.get('id')!r} {problem}" for cell in code for problem in incomplete(cell)]
    counts = [cell.get("execution_count") for cell in code]
    if not found and counts != list(range(1, len(code) + 1)):
        found.append("its cells were not executed once each from top to bottom")
    return found


def _in_threads(tasks: list[Callable[[], Built]], jobs: int) -> list[Built]:
    """Run ``tasks``, ``jobs`` at a time. An interrupt ends their kernels at once and goes through.

    A single task has a thread too: in the main thread, nbclient takes the interrupt for itself.
    """
    from course_utils.tools import processes

    pool = ThreadPoolExecutor(jobs)
    try:
        with processes.ends_interrupt():
            return list(pool.map(lambda task: task(), tasks))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        processes.end_below(os.getpid())
        raise
    finally:
        pool.shutdown()


def _task(source: Path, cells: list[Cell], edition: str, notebook: Notebook, force: bool) -> Callable[[], Built]:
    return lambda: _build_one(source, cells, edition, notebook, force)


def _build_one(source: Path, cells: list[Cell], edition: str, notebook: Notebook, force: bool) -> Built:
    target = notebook_path(source, edition)
    inputs = inputs_hash(source)
    stored = _read(target)
    if not force and stored is not None:
        recorded = stored.get("metadata", {}).get("course", {}).get("inputs")
        if recorded == inputs and not drift(stored, notebook) and not stored_problems(stored):
            return Built(target, "unchanged")
    started = perf_counter()
    try:
        notebook["metadata"]["course"]["inputs"] = inputs
        target.parent.mkdir(parents=True, exist_ok=True)  # it is the kernel's working folder
        text = _executed(source, cells, edition, notebook, target.parent)
    except CourseError as error:
        return Built(target, "failed", (str(error),), perf_counter() - started)
    write_text(target, text)
    return Built(target, "built", (), perf_counter() - started)


def _executed(source: Path, cells: list[Cell], edition: str, notebook: Notebook, folder: Path) -> str:
    """Execute ``notebook`` and return the text of its file.

    Raises:
        SourceError: naming the source's line and the cell that failed or whose output can't be stored.
    """
    import nbformat

    by_id = {cell.id: cell for cell in cells}
    node = nbformat.from_dict(notebook)
    _run(node, by_id, edition, folder)
    count = 0
    for cell in node.cells:
        if cell.cell_type != "code":
            continue
        count += 1
        if cell.execution_count is None:
            raise by_id[cell.id].error("was not executed.", "no cell may end the kernel, as sys.exit does.")
        cell.execution_count = count
        cell.metadata.pop("execution", None)  # time stamps
        try:
            cell.outputs = [nbformat.from_dict(output) for output in clean_outputs(cell.outputs, count)]
        except OutputError as error:
            raise by_id[cell.id].error(f"{error.what} ({edition} edition)", error.fix) from error
    node.metadata = nbformat.from_dict(notebook["metadata"])  # nbclient wrote versions and widget state into it
    nbformat.validate(node)
    text = nbformat.writes(node).rstrip("\n") + "\n"
    if len(text.encode()) > MAX_NOTEBOOK_BYTES:
        largest = max(node.cells, key=lambda cell: len(json.dumps(cell)))
        size = human_bytes(len(text.encode()))
        raise by_id[largest.id].error(
            f"is the largest of a notebook of {size}.", "draw less; GitHub shows no such file."
        )
    return text


def _run(node: Any, by_id: dict[str | None, Cell], edition: str, folder: Path) -> None:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    from course_utils.tools.kernels import GuardedKernelManager

    started: list[Cell] = []
    with plain_surroundings() as plain:
        client = NotebookClient(
            node,
            km=GuardedKernelManager(folder=plain.folder),
            timeout=CELL_TIMEOUT_S,
            startup_timeout=START_TIMEOUT_S,
            shutdown_kernel="immediate",
            record_timing=False,
            store_widget_state=False,
            resources={"metadata": {"path": str(folder)}},
            on_cell_start=lambda cell, cell_index: started.append(by_id[cell.id]),
        )
        try:
            asyncio.run(_executing(client, plain.env))
        except CellExecutionError as error:
            raise _failure(started[-1], edition, node) from error
        except CellTimeoutError as error:
            what = f"did not end within {CELL_TIMEOUT_S} s in the {edition} edition."
            raise started[-1].error(what, "make it quicker; the old notebook stays.") from error
        except DeadKernelError as error:
            what = f"ended the kernel in the {edition} edition."
            raise started[-1].error(what, "look for exits and crashes; the old notebook stays.") from error


async def _executing(client: Any, env: dict[str, str]) -> None:
    # An interrupt kills the kernel, and what nbclient left watching it would complain with a traceback.
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    await client.async_execute(env=env, cleanup_kc=True)


def _failure(cell: Cell, edition: str, node: Any) -> SourceError:
    """Return the error for a cell that raised, with the line of the source where the cell's own code did."""
    executed = next(found for found in node.cells if found.get("id") == cell.id)
    output = next(output for output in executed.outputs if output.output_type == "error")
    trace = _ANSI.sub("", "\n".join(output.traceback))
    lines = re.findall(r"Cell In\[\d+\], line (\d+)", trace)
    # In an exercise the editions have other lines than the source: name the cell's header only.
    offset = int(lines[0]) if lines and not cell.is_answer else 0
    what = f"failed in the {edition} edition: {output.ename}: {_ANSI.sub('', output.evalue)}"
    return cell.error(what, "repair the cell; the old notebook stays as it was.", offset=offset)


def _checked(source: Path) -> Iterator[Built]:
    try:
        notebooks = make_editions(source)
        answers = [cell for cell in check_source(source) if cell.is_answer]
    except SourceError as error:
        yield Built(source, "failed", (str(error),))
        return
    stored = {edition: _read(notebook_path(source, edition)) for edition in EDITIONS}
    for edition, made in notebooks.items():
        target, notebook = notebook_path(source, edition), stored[edition]
        if notebook is None:
            yield Built(target, "drifted", ("there is no such notebook, or it can't be read",))
            continue
        problems = [*drift(notebook, made), *stored_problems(notebook)]
        for cell in answers:
            texts = {name: _source_of(stored[name], cell.id) for name in EDITIONS}
            if edition in unlike_blanks(cell, **texts):
                problems.append(f"cell {cell.id!r} differs from the source outside of its marked blanks")
        yield Built(target, "drifted" if problems else "in step", tuple(problems))


def _orphans(folder: Path, sources: list[Path]) -> Iterator[Built]:
    """Yield notebooks that no source makes."""
    known = {notebook_path(source, edition) for source in sources for edition in EDITIONS}
    for place in (folder, folder / "solutions"):
        for path in sorted(place.glob("*.ipynb")):
            if path not in known:
                yield Built(path, "drifted", ("no source makes this notebook; remove it",))


def _read(path: Path) -> Notebook | None:
    """Return a stored notebook; None if there is none, or if the file holds something else."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return None if shape_problem(notebook, with_ids=True) else notebook


def _source_of(notebook: Notebook | None, id: str | None) -> str:
    cells = notebook["cells"] if notebook else []
    return next((_joined(cell["source"]) for cell in cells if cell.get("id") == id), "")


def _joined(value: Any) -> Any:
    """Return the text that nbformat stores as a list of lines."""
    return "".join(value) if isinstance(value, list) else value


def _settings(notebook: Notebook) -> dict[str, Any]:
    metadata = {**notebook.get("metadata", {})}
    metadata["course"] = {name: value for name, value in metadata.get("course", {}).items() if name != "inputs"}
    return {"metadata": metadata, "format": (notebook.get("nbformat"), notebook.get("nbformat_minor"))}


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(*path.parts[-2:]))
