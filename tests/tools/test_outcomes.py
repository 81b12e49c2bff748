"""From how a notebook ended to its status and one sentence."""

from __future__ import annotations

import pytest

from course_utils.tools.outcomes import Ending, exit_text, judge, marked_notebook


def notebook(*statuses: str | None) -> dict:
    """Return a notebook as saved: a cell for each status that papermill noted, None for a cell it never saw."""
    cells = [
        {
            "cell_type": "code",
            "id": f"c{index}",
            "source": ["x = ", "1"],
            "metadata": {"papermill": {"status": status}} if status else {},
            "execution_count": index + 1 if status == "completed" else None,
            "outputs": [],
        }
        for index, status in enumerate(statuses)
    ]
    return {"cells": [*cells, {"cell_type": "markdown", "id": "m", "metadata": {}, "source": "end"}]}


def verdict(ending: Ending, *statuses: str | None) -> tuple[str, str | None]:
    seen = judge(ending, notebook(*statuses), name="n", edition="learner")
    return seen.status, seen.error


def test_a_notebook_passes_only_if_every_cell_ran():
    assert verdict(Ending(how="complete"), "completed", "completed") == ("passed", None)
    assert verdict(Ending(how="complete"), "completed", "pending", None) == (
        "failed",
        "2 cells never ran (2, 3), although no error was reported.",
    )


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (Ending(how="error", cell=1, ename="E", evalue="no"), ("failed", "Cell 2 (id 'c1') raised E: no.")),
        (Ending(how="error", cell=1, ename="E"), ("failed", "Cell 2 (id 'c1') raised E.")),
        (Ending(how="start", facts="no ipykernel"), ("died", "The kernel did not start: no ipykernel")),
        (
            Ending(how="dead", cell=1, exit_code=-9),
            ("died", "The kernel ended in cell 2 (id 'c1'): signal SIGKILL; often the machine was out of memory."),
        ),
        (
            Ending(how="notebook-timeout", cell=0, facts="15 min"),
            ("timeout", "The notebook ran longer than 15 min; it was in cell 1 (id 'c0')."),
        ),
        (Ending(how="interrupted"), ("skipped", "The run was interrupted in an early stage.")),
    ],
)
def test_each_ending_has_a_status_and_a_sentence(ending, expected):
    assert verdict(ending, "completed", "failed") == expected


@pytest.mark.parametrize(
    ("code", "part"),
    [
        (0, "exit status 0"),
        (-11, "SIGSEGV; compiled code crashed"),
        (-15, "SIGTERM"),
        (-7, "SIGBUS; often /dev/shm was full"),
        (-99, "number 99"),
        (None, "not"),
    ],
)
def test_how_a_process_ended_is_said_in_words(code, part):
    assert part in exit_text(code)


def test_a_notebook_that_was_never_saved_has_an_outcome_too():
    seen = judge(Ending(how="lost", facts="signal SIGKILL"), None, name="n", edition="learner")
    assert (seen.status, seen.notebook, seen.cell) == ("died", None, None)


def test_a_failed_notebook_says_so_at_its_top_and_at_the_cell():
    before = notebook("completed", "failed")
    seen = judge(Ending(how="error", cell=1, ename="E", evalue="no"), before, name="n", edition="learner")
    cells = marked_notebook(before, seen, 1)["cells"]
    assert [cell["id"] for cell in cells] == ["run-error", "c0", "run-error-cell", "c1", "m"]
    assert "Cell 2 (id 'c1') raised E: no." in cells[0]["source"][0]
    assert all("papermill-error-cell-tag" in cells[index]["metadata"]["tags"] for index in (0, 2))
    assert len(before["cells"]) == 3


@pytest.mark.parametrize(
    ("ending", "part"),
    [
        ({"ename": "RuntimeError", "evalue": "unable to allocate shared memory(shm) for file </torch_1>"}, "/dev/shm"),
        ({"ename": "OSError", "evalue": "Read-only file system", "traceback": "_multiprocessing.SemLock("}, "/dev/shm"),
        ({"ename": "MemoryError"}, "not enough memory"),
        ({"ename": "ImportError", "evalue": "libtorch_cpu.so: failed to map segment"}, "not enough memory"),
        ({"ename": "ValueError", "evalue": "memory"}, ""),
        ({"how": "complete", "traceback": "SemLock"}, ""),
    ],
)
def test_what_the_machine_lacked_is_a_note(ending, part):
    notes = judge(Ending(**{"how": "error", "cell": 0} | ending), None, name="n", edition="learner").notes
    assert [part in note for note in notes] == ([True] if part else [])
