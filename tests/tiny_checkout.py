"""A checkout as small as can be, to try the start-up part of course.py for real: one pin, one wheel, no network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from course_utils.paths import ROOT

STARTUP = (
    "course.py",
    "course_utils/__init__.py",
    "course_utils/errors.py",
    "course_utils/paths.py",
    "course_utils/scratch.py",
    "course_utils/text.py",
    "course_utils/tools/__init__.py",
    "course_utils/tools/commands.py",
    "course_utils/tools/environment.py",
    "course_utils/tools/installer.py",
    "course_utils/tools/pip_progress.py",
    "course_utils/tools/requirements.py",
)

# Stands in for the real command line: says where it runs and with what.
CLI = """
import json, os, sys

def run(words):
    import tiny
    facts = {"words": list(words), "prefix": sys.prefix, "tiny": tiny.VALUE,
             "pythonpath": os.environ["PYTHONPATH"].split(os.pathsep), "version": list(sys.version_info[:2])}
    print(json.dumps(facts))
    return int(os.environ.get("TINY_EXIT", "0"))
"""

# A build backend without dependencies, so that the editable installation needs no setuptools from an index.
BACKEND = """
import os, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "tiny_course-1-py3-none-any.whl"
    info = "tiny_course-1.dist-info/"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.writestr("tiny_course.pth", os.getcwd())
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: tiny-course\\nVersion: 1\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name

build_wheel = build_editable
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "tiny_backend"\nbackend-path = ["."]\n'


def make_checkout(folder: Path) -> Path:
    """Write the tiny checkout into ``folder``: the real start-up files, a stand-in for everything else."""
    for name in STARTUP:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    texts = {
        "course_utils/cli.py": CLI,
        "tiny_backend.py": BACKEND,
        "pyproject.toml": PYPROJECT,
        "requirements.txt": "-c constraints.txt\n\n# One pin.\ntiny==1.0\n",
        "constraints.txt": "tiny==1.0\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def make_wheel(folder: Path, name: str = "tiny", version: str = "1.0") -> Path:
    """Write a wheel with one module into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"VALUE = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{file},,{len(text)}" for file, text in files.items()]
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in {**files, f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,"])}.items():
            wheel.writestr(file, text)
    return path


# In place of the standard library's module, which takes five seconds to unpack pip. With TINY_PAUSE it stops for
# a second when it is half done.
QUICK_VENV = """
import os, shutil, sys, time

template, folder = {template!r}, sys.argv[-1]
shutil.copy(os.path.join(template, "pyvenv.cfg"), folder)
time.sleep("TINY_PAUSE" in os.environ)
shutil.copytree(template, folder, symlinks=True, dirs_exist_ok=True)
"""


def make_quick_venv(folder: Path, template: Path | None = None) -> Path:
    """Return a folder for ``PYTHONPATH`` in which ``python -m venv`` copies an environment that has only pip.

    Args:
        folder: where to make it.
        template: a finished environment of a tiny checkout to take it from; by default a new one is made.
    """
    bare = folder / "template"
    if template is None:
        subprocess.run([sys._base_executable, "-m", "venv", bare], check=True)  # type: ignore[attr-defined]
    else:
        shutil.copytree(
            template, bare, symlinks=True, ignore=shutil.ignore_patterns("tiny*", "course-*")
        )
    (folder / "path").mkdir()
    (folder / "path/venv.py").write_text(QUICK_VENV.format(template=str(bare)), encoding="utf-8")
    return folder / "path"


def tiny_env(wheels: Path, **more: str) -> dict[str, str]:
    """Return the environment variables of a start that finds its packages in ``wheels`` and nowhere else."""
    ours = ("PIP_", "COURSE_", "PYTHON", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    return env | more


def begin(
    checkout: Path, *words: str, env: dict[str, str], python: str | Path = sys.executable, cwd: Path | None = None
) -> subprocess.Popen[str]:
    """Start ``course.py`` and return the process."""
    return subprocess.Popen(
        [str(python), str(checkout / "course.py"), *words],
        env=env,
        cwd=cwd or checkout,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a start and return its exit code, standard output and standard error."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def facts(out: str) -> dict[str, object]:
    """Return what the stand-in command line said."""
    return json.loads(out.splitlines()[-1])
