"""A bad machine: odd paths, locales, homes and folders, a full disk. A command works, or says why not in a sentence."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_utils.paths import ROOT
from tests.faults.campaign import report, size

pytestmark = pytest.mark.faults
LONG = "a 'quoted' \"folder\" 课程 & $HOME; " + "x" * 150
# Variables that are set (None: taken away), and whether the command can do its work then.
MACHINES: dict[str, tuple[dict[str, str | None], bool]] = {
    "an odd, long path": ({"COURSE_WORKSPACE": f"{{here}}/{LONG}"}, True),
    "locale C": ({"LC_ALL": "C", "LANG": None, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, True),
    "a Chinese locale": ({"LC_ALL": "zh_CN.GB18030", "LANG": "zh_CN.GB18030"}, True),
    "no home": ({"HOME": None, "USER": None, "LOGNAME": None, "XDG_CACHE_HOME": None}, True),
    "a home that isn't there": ({"HOME": "/nowhere/at/all", "XDG_CACHE_HOME": "/nowhere/cache"}, True),
    "another time zone": ({"TZ": "Pacific/Chatham"}, True),
    "a workspace where nothing can be made": ({"COURSE_WORKSPACE": "/proc/course"}, False),
    "a workspace that is a file": ({"COURSE_WORKSPACE": "{here}/file"}, False),
    "a full disk": ({"COURSE_WORKSPACE": "{here}/disk/mine"}, False),
    "a folder with modules of our names": ({}, True),
}
SAMPLE = ("an odd, long path", "a full disk")
COMMANDS = {"reset": ["reset", "01"], "update": ["update"], "progress": ["progress", "--json"]}
WORKS_ANYHOW = ("progress",)  # it only reads


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[bool]:
    """Mount a disk of 64 KiB on a folder; gives whether that is possible here."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(os.name != "posix", reason="paths and disks of POSIX")
@pytest.mark.parametrize("machine", MACHINES)
def test_a_command_works_on_a_bad_machine_or_says_why_not(machine, tmp_path):
    if machine not in SAMPLE and not size(0, 1):
        pytest.skip("a part of course.py test --faults")
    changes, works = MACHINES[machine]
    (tmp_path / "file").write_text("a file")
    cwd = tmp_path / "cwd"
    (cwd / "course_utils").mkdir(parents=True)
    for name in ("torch.py", "click.py", "course_utils/__init__.py"):
        (cwd / name).write_text("raise SystemExit('the wrong module')")
    env = {**os.environ, "COURSE_WORKSPACE": str(tmp_path / "mine")}
    env.pop("COURSE_PROGRESS", None)
    env.pop("PYTHONPATH", None)
    for name, value in changes.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value.replace("{here}", str(tmp_path))
    with full_disk(tmp_path / "disk") if machine == "a full disk" else contextlib.nullcontext(True) as possible:
        if not possible:
            pytest.skip("no disk can be mounted here")
        for name, words in list(COMMANDS.items())[: size(1, 9)]:
            done = subprocess.run(
                [sys.executable, str(ROOT / "course.py"), *words], cwd=cwd, env=env, capture_output=True, timeout=120
            )
            said = (done.stdout + done.stderr).decode("utf-8", errors="replace")
            assert "Traceback" not in said, said
            assert "did not foresee" not in said, said
            assert done.returncode == (0 if works or name in WORKS_ANYHOW else 2), f"{name}: {said}"
            if done.returncode == 2:
                assert 20 < len(done.stderr) < 1000
        if machine == "a full disk":
            assert not list((tmp_path / "disk").rglob("*.ipynb")), "half a notebook is left"
    report(f"machine, {machine}", "works" if works else "a sentence, nothing half-written")
