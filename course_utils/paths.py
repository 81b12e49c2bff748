"""Where files are, and how they are written so that nobody ever reads half of one."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from course_utils.scratch import held_folder, remove_abandoned

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
SOURCES = NOTEBOOKS / "source"
SOLUTIONS = NOTEBOOKS / "solutions"
DATA = ROOT / "data"
STALE_S = 3600.0  # a temporary file that is older belongs to nobody: whoever wrote it was killed


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
    with _temporary_beside(path) as temporary:
        yield temporary
        _to_disk(path, temporary)
        os.replace(temporary, path)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Give a new folder beside ``path`` to fill; on success it gets that name, else it is removed.

    An empty folder of that name gives way; any other is an ``OSError``.
    """
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path)
    with held_folder(path.parent, prefix=f".{path.name}.", suffix=".tmp") as unfinished:
        yield unfinished
        unfinished.chmod(0o755)
        if path.is_dir():
            path.rmdir()
        os.replace(unfinished, path)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files below a folder, by their names in it."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_new(path: Path, content: bytes) -> bool:
    """Write a file that isn't there yet, all of it or nothing; return False, and change nothing, if there is one.

    Of two that try at once, one gets the name.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        return False
    with _temporary_beside(path) as temporary:
        temporary.write_bytes(content)
        _to_disk(path, temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if os.path.lexists(path):
                return False
            os.rename(temporary, path)
    return True


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """Give a new, empty file beside ``path``; whatever still has its name at the end is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
    remove_stale(path)


def _to_disk(path: Path, temporary: Path) -> None:
    """Wait until the disk has ``temporary``, and give it the permissions that ``path`` has or would have."""
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    _keep_mode(path, temporary)


def remove_stale(path: Path) -> None:
    """Remove what writers of ``path`` left half done when they were killed: folders nobody holds, files of long ago."""
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.name.startswith(f".{path.name}.") and entry.name.endswith(".tmp"):
                with suppress(OSError):
                    is_old = time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_S
                    if entry.is_dir(follow_symlinks=False):
                        remove_abandoned(Path(entry.path), unknown=is_old)
                    elif is_old:
                        os.unlink(entry.path)


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
