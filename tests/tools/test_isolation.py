"""Surroundings for kernels whose outputs are stored or compared: nothing of this machine or this hour gets in."""

from __future__ import annotations

from pathlib import Path

from course_utils.exercises.inputs import Inputs
from course_utils.tools.isolation import plain_surroundings


def test_checks_draw_the_same_inputs_in_every_kernel(monkeypatch):
    with plain_surroundings() as surroundings:
        monkeypatch.setenv("COURSE_CHECK_SEED", surroundings.env["COURSE_CHECK_SEED"])
    assert Inputs().seed == Inputs().seed


def test_the_readers_progress_and_shell_stay_outside(monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("COURSE_PROGRESS", "somewhere.json")
    with plain_surroundings() as surroundings:
        assert surroundings.env["COURSE_PROGRESS"] == "off"
        assert "PYTHONWARNINGS" not in surroundings.env
        assert surroundings.env["OMP_NUM_THREADS"] == "1"


def test_the_folder_is_gone_after_the_block():
    with plain_surroundings() as surroundings:
        assert surroundings.folder.is_dir()
    assert not surroundings.folder.exists()


def test_temporary_files_go_with_the_folder():
    with plain_surroundings() as surroundings:
        scratch = Path(surroundings.env["TMPDIR"])
        assert scratch.is_dir()
        (scratch / "left by a kernel that was killed").touch()
    assert not scratch.exists()
