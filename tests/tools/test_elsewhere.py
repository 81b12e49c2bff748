"""A notebook that another program opens: its kernel starts in the notebook's folder, and course.py has no part in it.

That is how VS Code, Binder and a plain JupyterLab start one. The course is found because it is installed as a package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from course_utils.paths import ROOT

FACTS = """
import json, os
import course_utils
from course_utils.data import load_digits28
from course_utils.exercises.progress import progress_path
print(json.dumps([course_utils.__file__, len(load_digits28().train), os.getcwd(), str(progress_path())]))
"""


def foreign_environment() -> dict[str, str]:
    """Return the variables of a program that knows nothing of the course."""
    ours = ("COURSE_", "PYTHONPATH", "JUPYTER", "JPY_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def test_a_kernel_of_another_program_finds_the_course_and_its_data(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", "import course_utils; print(course_utils.__file__)"],
        cwd=tmp_path, env=foreign_environment(), capture_output=True, text=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    if not found or not Path(found).is_relative_to(ROOT):
        pytest.skip("this environment has another checkout's package, or none; `course.py setup` installs it")
    manager, client = start_new_kernel(startup_timeout=120, env=foreign_environment(), cwd=str(tmp_path))
    said: list[str] = []
    try:
        reply = client.execute_interactive(
            FACTS, timeout=120, output_hook=lambda message: said.append(message["content"].get("text", ""))
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply["content"]
    file, images, folder, progress = json.loads("".join(said))
    assert Path(file).is_relative_to(ROOT)
    assert images > 1000
    assert Path(folder).samefile(tmp_path)
    assert Path(progress) == ROOT / "workspace" / "progress.json"
