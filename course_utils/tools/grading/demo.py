"""A made class to try grading on: submissions of every kind, and the marks that each must get.

The answers stand beside the lessons' sources, in ``notebooks/source/demo/``, which the learner edition lacks. What a
submission earns is known from how it is made; nothing is run to find it out.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from course_utils.errors import CourseError, EnvironmentProblem, UsageError
from course_utils.exercises.registry import exercises_of
from course_utils.lessons import find_lesson
from course_utils.paths import NOTEBOOKS, SOURCES, atomic_folder, write_files
from course_utils.sources import Cell, answer_cell, read_cells, reference_code
from course_utils.text import plural
from course_utils.tools.edition import require
from course_utils.tools.grading.grade import Grade
from course_utils.tools.grading.report import csv_text

LESSON = "01_tensors"
COURSE = "COMP101-Sheet 1-4711"  # the folder that Moodle's archive holds
ENERGY, SNAPSHOT, WINDOWS = "tensors.energy", "tensors.snapshot", "tensors.windows"
HUGE_CHARS = 8_000_000
MAGICS = "%matplotlib inline\n!ls\nfiles = !ls\n%timeit 1 + 1"
_ZIP_TIME = (2026, 11, 3, 12, 0, 0)  # the same class gives the same archive

Notebook = dict[str, Any]


@dataclass(frozen=True)
class Made:
    """One made submission.

    Args:
        student: the name as Moodle writes it; Canvas writes it without spaces.
        kind: ``right``, ``wrong``, ``partial``, ``hostile`` or ``broken``.
        what: a few words on what is special about it.
        answers: exercise -> code of its cell; other cells stay as they were handed out.
        earned: exercises that must be passed.
        before: code of a cell at the top; ``after``: at the end.
        change: makes the file's content from the notebook, for what is broken.
        layout: ``moodle``, ``canvas`` or ``zip`` (Moodle's folders in an archive).
        file: the file's name without what Moodle or Canvas add.
    """

    student: str
    kind: str
    what: str
    answers: dict[str, str] = field(default_factory=dict)
    earned: frozenset[str] = frozenset()
    before: str = ""
    after: str = ""
    change: Callable[[Notebook], bytes] | None = None
    layout: str = "moodle"
    file: str = f"{LESSON}.ipynb"
    is_late: bool = False


@dataclass(frozen=True)
class DemoClass:
    """What was written."""

    folder: Path
    count: int

    def summary(self) -> str:
        """Return what is there and the next commands."""
        return (
            f"{plural(self.count, 'submission')} in {self.folder / 'submissions'}, what each is in about.csv.\n"
            f"Next: python3 course.py grade {self.folder / 'submissions'} --out grades\n"
            f"Then grades/grades.csv must be the same as {self.folder / 'expected.csv'}."
        )


def write_demo_class(out: Path) -> DemoClass:
    """Write the made class into a new or empty folder, all of it or nothing.

    Raises:
        UsageError: if ``out`` is there already and is no empty folder.
        EnvironmentProblem: if this is a learner edition, or ``out`` can't be written to.
    """
    require(SOURCES / "demo", "answers for a made class")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists already and is not empty.", fix="Name another folder with --out.")
    made = made_class()
    contents = contents_of(made)
    try:
        with atomic_folder(out) as unfinished:
            write_files(unfinished, contents)
    except OSError as error:
        raise _not_writable(out, error) from error
    return DemoClass(out, len(made))


def _not_writable(out: Path, error: OSError) -> CourseError:
    return EnvironmentProblem(f"{out} can't be written to: {error.strerror or error}.", fix="Choose another folder.")


def contents_of(made: Iterable[Made]) -> dict[str, bytes]:
    """Return the class's files by their name."""
    contents: dict[str, bytes] = {}
    packed: dict[str, bytes] = {}
    rows, grades = [], []
    for number, item in enumerate(made, start=1):
        student_id = str(52_000 + 17 * number)
        name, student = _placed(item, student_id, number)
        content = content_of(item)
        if item.layout == "zip":
            packed[name] = content
        else:
            contents[f"submissions/{name}"] = content
        rows.append([student, student_id, item.kind, item.what, len(item.earned)])
        grades.append(_expected(item, student, student_id))
    contents["submissions/section-b.zip"] = _zipped(packed)
    contents["expected.csv"] = csv_text(tuple(grades)).encode()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["student", "id", "kind", "what", "points"])
    writer.writerows(sorted(rows, key=lambda row: (row[2], row[3])))
    contents["about.csv"] = text.getvalue().encode()
    return contents


def _placed(item: Made, student_id: str, number: int) -> tuple[str, str]:
    """Return where the file lies and what the student is called there."""
    if item.layout == "canvas":
        student = "".join(sign for sign in item.student.lower() if sign.isalnum())
        late = "_LATE" if item.is_late else ""
        return f"canvas/{student}{late}_{student_id}_{880_000 + number}_{item.file}", student
    return f"{COURSE}/{item.student}_{student_id}_assignsubmission_file_/{item.file}", item.student


def _zipped(contents: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, content)
    return whole.getvalue()


def _expected(item: Made, student: str, student_id: str) -> Grade:
    known = exercises_of(find_lesson(LESSON))
    has_lesson = item.file.endswith(".ipynb")
    return Grade(
        student=student, lesson=LESSON if has_lesson else "", file=item.file, status="", points=len(item.earned),
        max_points=len(known), exercises=(), seconds=0.0, student_id=student_id,
    )  # fmt: skip


def content_of(item: Made) -> bytes:
    """Return a submission's file."""
    notebook = handed_out()
    for cell in notebook["cells"]:
        code = item.answers.get(cell["metadata"].get("exercise", ""))
        if code is not None:
            cell["source"] = code
    if item.before:
        notebook["cells"].insert(0, code_cell(item.before, "own-before"))
    if item.after:
        notebook["cells"].append(code_cell(item.after, "own-after"))
    return item.change(notebook) if item.change else as_bytes(notebook)


def handed_out() -> Notebook:
    """Return the learner edition of the lesson, without outputs."""
    notebook: Notebook = json.loads((NOTEBOOKS / f"{LESSON}.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    return notebook


def code_cell(code: str, cell_id: str) -> dict[str, Any]:
    """Return a cell of the student's own."""
    return {
        "cell_type": "code", "id": cell_id, "metadata": {}, "source": code, "outputs": [], "execution_count": None,
    }  # fmt: skip


def as_bytes(notebook: Notebook) -> bytes:
    """Return a notebook as Jupyter writes it."""
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


class Answers:
    """The answers that submissions are made of: the reference, and those of ``notebooks/source/demo/``."""

    def __init__(self) -> None:
        self.ids = [exercise.id for exercise in exercises_of(find_lesson(LESSON))]
        self.cells: list[Cell] = read_cells(SOURCES / "demo" / "tensors.py")
        self.reference = {name: reference_code(answer_cell(name)) for name in self.ids}

    def code(self, cell: Cell) -> str:
        """Return an answer's code with the call of ``check`` that its cell was handed out with."""
        reference = self.reference[cell.exercise or ""]
        return f"{cell.text}\n\n\n{reference[reference.index('check(') :]}"

    def of(self, tag: str, number: int) -> dict[str, str]:
        """Return for each exercise its answer with this tag and number; the last one where there are fewer."""
        found: dict[str, str] = {}
        for name in self.ids:
            mine = [c for c in self.cells if c.exercise == name and tag in c.tags and "junk" not in c.tags]
            found[name] = self.code(mine[min(number, len(mine) - 1)])
        return found

    def named(self, *cell_ids: str) -> dict[str, str]:
        """Return the answers in the cells with these ids, by exercise."""
        chosen = {cell.id: cell for cell in self.cells}
        return {str(chosen[name].exercise): self.code(chosen[name]) for name in cell_ids}

    def tagged(self, tag: str) -> list[tuple[str, str]]:
        """Return name and code of the cells with a tag."""
        return [(str(cell.id), cell.text) for cell in self.cells if tag in cell.tags and cell.kind == "code"]


def made_class() -> list[Made]:
    """Return the submissions of the class."""
    answers = Answers()
    made = [*_honest(answers), *_junk(answers), *_hostile(answers), *_broken(answers)]
    layouts = cycle(("moodle", "canvas", "zip", "moodle", "canvas"))
    return [
        replace(item, layout=layout, is_late=layout == "canvas" and item.kind == "partial")
        for item, layout in zip(made, layouts, strict=False)
    ]


def _honest(answers: Answers) -> list[Made]:
    reference, everything = answers.reference, frozenset(answers.ids)
    clinic = {name for name in answers.ids if "clinic" in name}
    half = set(answers.ids[::2])
    mixed = {**answers.of("wrong", 0), **{name: reference[name] for name in half}}

    def part(names: Iterable[str]) -> dict[str, str]:
        return {name: reference[name] for name in names}

    right = [
        Made("Amina Diallo", "right", "the reference answers", reference, everything),
        Made("Björn Åkesson", "right", "in other ways", answers.of("right", 0), everything),
        Made("Zoë O'Neill-García", "right", "in still other ways", answers.of("right", 1), everything),
    ]
    odd = [
        Made(name, "right", what, reference, everything, before=code)
        for name, (what, code) in zip(("Nguyễn Thị Lan", "Chidi Okafor"), answers.tagged("odd"), strict=True)
    ]
    odd.append(Made("陈晓雨", "right", "with magics", reference, everything, before=MAGICS))
    wrong = [
        Made("Łukasz Wójcik", "wrong", "a misconception in each", answers.of("wrong", 0)),
        Made("Fatma Yılmaz", "wrong", "another misconception in each", answers.of("wrong", 1)),
        Made("Ivan Petrenko", "wrong", "a third misconception", answers.of("wrong", 2)),
        Made("Sofia Pappa", "wrong", "every second one", mixed, frozenset(half)),
        Made("J. R. Smith III", "wrong", "two old habits", reference | answers.named("energy-uint8", "best-tensors"),
             everything - {ENERGY, "tensors.best"}),
        Made("Priya Raman", "wrong", "squares in uint8", reference | answers.named("energy-uint8"),
             everything - {ENERGY}),
    ]  # fmt: skip
    partial = [
        Made("Tomás de la Cruz", "partial", "the first half", part(answers.ids[:8]), frozenset(answers.ids[:8])),
        Made("Aiko Tanaka", "partial", "the clinic only", part(clinic), frozenset(clinic)),
        Made("Noor al-Hassan", "partial", "nothing tried"),
        Made("Group 3-Mei Lindqvist", "partial", "of a group", part(half), frozenset(half)),
    ]
    return [*right, *odd, *wrong, *partial]


def _junk(answers: Answers) -> list[Made]:
    names = {
        "equals-everything": "an object that equals everything", "a-scalar": "a scalar that broadcasts",
        "a-sample": "a hard-coded sample", "nothing": "no output at all",
    }  # fmt: skip
    students = ("Kwame Mensah", "Lena Hoffmann", "Oluwaseun Ade", "Petra Novák")
    good = {WINDOWS: answers.reference[WINDOWS]}
    return [
        Made(student, "wrong", what, {**answers.named(cell), **good}, frozenset({WINDOWS}))
        for student, (cell, what) in zip(students, names.items(), strict=True)
    ]


def _hostile(answers: Answers) -> list[Made]:
    cheaters = ("Rosa Marín", "Sven Dahl", "Tariq Aziz", "Uma Joshi", "Viktor Kern", "Wanda Grant", "Ximena Paz")
    violent = (
        "Yusuf Demir", "Zara Cole", "Anton Weiss", "Bella Rossi", "Carl Jonsson", "Dina Farouk", "Emil Varga",
        "Fiona Burke", "Goran Ilić",
    )  # fmt: skip
    made = []
    for name, (what, code) in zip(cheaters, answers.tagged("cheat"), strict=True):
        energy = "stolen" if "solutions" in what else "nothing"
        made.append(Made(name, "hostile", what, answers.named(energy, "junk-snapshot"), before=code))
    good = {WINDOWS: answers.reference[WINDOWS]}
    made += [
        Made(name, "hostile", what, good, frozenset({WINDOWS}), before=code)
        for name, (what, code) in zip(violent, answers.tagged("violent"), strict=True)
    ]
    return made


def _broken(answers: Answers) -> list[Made]:
    reference, everything = answers.reference, frozenset(answers.ids)
    kept = answers.ids[:6]
    renamed = reference[ENERGY].replace("energy", "mean_squared_pixel").split("check(")[0]
    solved: dict[str, Any] = {"answers": reference, "earned": everything}
    return [
        Made("Hanna Virtanen", "broken", "missing cells", {n: reference[n] for n in kept}, frozenset(kept),
             change=lambda notebook: as_bytes(without_exercises(notebook, set(answers.ids) - set(kept)))),
        Made("Idris Bello", "broken", "a renamed function without its check", {ENERGY: renamed}, frozenset({ENERGY})),
        Made("Jana Horák", "broken", "cleared outputs, no ids", change=without_ids, **solved),
        Made("Kofi Asante", "broken", "JSON that is cut off", reference, change=lambda book: as_bytes(book)[:30_000]),
        Made("Leila Ben Said", "broken", "another kernel's metadata", change=of_another_kernel, **solved),
        Made("Marek Dvořák", "broken", "Windows line ends and a mark", change=from_windows, **solved),
        Made("Nadia Rahman", "broken", "cells out of order", change=out_of_order, **solved),
        Made("Omar Haddad", "broken", "huge outputs", change=with_huge_outputs, **solved),
        Made("Paula Gómez", "broken", "the old format 3", change=in_format_3, **solved),
        Made("Quinn Taylor", "broken", "an answer's cell twice", change=with_a_blank_copy, **solved),
        Made("Ravi Shah", "broken", "another course's notebook", change=lambda _: as_bytes(of_another_course())),
        Made("Sara Lund", "broken", "no notebook", change=lambda _: b"def energy(images): ...\n", file="answers.py"),
    ]  # fmt: skip


# What is broken: each makes a file's content from a notebook


def without_exercises(notebook: Notebook, missing: set[str]) -> Notebook:
    """Leave out the cells of exercises."""
    cells = [cell for cell in notebook["cells"] if cell["metadata"].get("exercise") not in missing]
    return {**notebook, "cells": cells}


def without_ids(notebook: Notebook) -> bytes:
    """Leave out ids and the course's metadata, as some editors do."""
    for cell in notebook["cells"]:
        del cell["id"]
        cell["metadata"] = {}
    return as_bytes({**notebook, "metadata": {}, "nbformat_minor": 4})


def of_another_kernel(notebook: Notebook) -> bytes:
    """Name a kernel that no other machine has."""
    metadata = {
        "kernelspec": {"name": "py39_new", "display_name": "my env", "language": "R"},
        "language_info": {"name": "R"}, "colab": {"provenance": []},
    }  # fmt: skip
    return as_bytes({**notebook, "metadata": metadata})


def from_windows(notebook: Notebook) -> bytes:
    """Put Windows line ends into the cells and the file, and a byte-order mark before it."""
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"]).replace("\n", "\r\n")
    return b"\xef\xbb\xbf" + as_bytes(notebook).replace(b"\n", b"\r\n")


def out_of_order(notebook: Notebook) -> bytes:
    """Turn the order of the cells around; one answer needs a helper that then comes after it."""
    for cell in notebook["cells"]:
        if cell["metadata"].get("exercise") == WINDOWS:
            cell["source"] = "step = one\n" + "".join(cell["source"]).replace("size, 1)", "size, step)")
    notebook["cells"].insert(0, code_cell("one = 1", "own-helper"))
    return as_bytes({**notebook, "cells": notebook["cells"][::-1]})


def with_huge_outputs(notebook: Notebook) -> bytes:
    """Give a cell an output of several megabytes."""
    first = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    first["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "x" * HUGE_CHARS}]
    return as_bytes(notebook)


def in_format_3(notebook: Notebook) -> bytes:
    """Write the notebook as Jupyter did before 2015."""
    cells = []
    for cell in notebook["cells"]:
        old = copy.deepcopy(cell)
        old.pop("id", None)
        if cell["cell_type"] == "code":
            old |= {"input": old.pop("source"), "language": "python", "prompt_number": old.pop("execution_count")}
        cells.append(old)
    book = {
        "metadata": {"name": ""},
        "nbformat": 3,
        "nbformat_minor": 0,
        "worksheets": [{"cells": cells, "metadata": {}}],
    }
    return as_bytes(book)


def with_a_blank_copy(notebook: Notebook) -> bytes:
    """Put the handed-out cell of an answer after the answer's."""
    blank = next(cell for cell in handed_out()["cells"] if cell["metadata"].get("exercise") == ENERGY)
    places = [number for number, cell in enumerate(notebook["cells"]) if cell.get("id") == blank["id"]]
    notebook["cells"].insert(places[0] + 1, blank)
    return as_bytes(notebook)


def of_another_course() -> Notebook:
    """Return a notebook that is none of the course's."""
    cells = [code_cell("print('my essay on Goethe')", "essay")]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
