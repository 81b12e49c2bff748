"""Where files are, and how they are written so that nobody ever reads half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
SOURCES = NOTEBOOKS / "source"
SOLUTIONS = NOTEBOOKS / "solutions"
DATA = ROOT / "data"


def workspace() -> Path:
    """Return the folder of the learner's own notebooks; ``COURSE_WORKSPACE`` moves it."""
    return Path(os.environ.get("COURSE_WORKSPACE") or ROOT / "workspace")


def derived_data() -> Path:
    """Return the folder of what is derived from packaged data; ``COURSE_DATA`` moves it."""
    return Path(os.environ.get("COURSE_DATA") or DATA / "derived")


def course_first(places: str | None) -> str:
    """Return a value for ``PYTHONPATH``: this checkout first and once, then what its present value ``places`` names."""
    others = [place for place in (places or "").split(os.pathsep) if place and place != str(ROOT)]
    return os.pathsep.join([str(ROOT), *others])


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` to write to; on success it replaces ``path``, else it is removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        _keep_mode(path, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _keep_mode(path: Path, temporary: Path) -> None:
    """Give ``temporary`` the permissions a plain ``open(path, "w")`` would have left (mkstemp makes 0600)."""
    try:
        mode = path.stat().st_mode & 0o777
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    os.chmod(temporary, mode)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8 with Unix line ends, all of it or nothing."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
