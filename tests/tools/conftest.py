"""One build of the sample lesson for all tests of the authoring tools; each test works on a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from course_utils.tools.build import build
from tests.lesson_files import copy_lesson


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    copy_lesson(folder)
    result = build(folder=folder, jobs=2)
    assert result.ok, result.summary()
    return folder


@pytest.fixture
def lesson_folder(built_once: Path, tmp_path: Path) -> Path:
    """Return a folder with the lesson's source and both of its notebooks."""
    return Path(shutil.copytree(built_once, tmp_path / "notebooks"))
