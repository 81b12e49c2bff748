"""Folders for short-lived files that go away even if their maker is killed.

Who makes one holds a lock on it as long as it lives, however it ends. A folder that nobody holds is removed by the
next process that makes one in the same place. Where folders have no locks (Windows, some network disks) none is
removed that way: nobody can tell there whether it is still in use.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OURS = re.compile(r"[a-z0-9-]+~[a-z0-9_]{8}")  # a sign that nobody puts into a folder's name by chance
_swept: set[str] = set()


@contextmanager
def scratch_folder(kind: str, place: Path | None = None) -> Iterator[Path]:
    """Give a new folder, and remove it with all that is in it at the end of the block.

    Args:
        kind: what it is for, the first part of its name: small letters, digits and hyphens.
        place: where; by default the system's folder for temporary files.
    """
    place = Path(tempfile.gettempdir() if place is None else place)
    if str(place) not in _swept:
        _swept.add(str(place))
        sweep(place, lambda name: _OURS.fullmatch(name) is not None)
    with held_folder(place, f"{kind}~") as folder:
        yield folder


@contextmanager
def held_folder(place: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """Give a new folder that is held until the end of the block, and remove what has its name then."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=place))
        lock = _lock(folder, wait=True)
        if folder.is_dir():
            break
        _unlock(lock)  # it was swept before it was held
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _unlock(lock)


def sweep(place: Path, is_ours: Callable[[str], bool]) -> None:
    """Remove the folders of this user in ``place`` whose name is ours and that nobody holds."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if is_ours(entry.name) and entry.is_dir(follow_symlinks=False) and _is_own(entry):
                remove_abandoned(Path(entry.path))


def remove_abandoned(folder: Path, unknown: bool = False) -> None:
    """Remove a folder that nobody holds; where that can't be known, remove it if ``unknown`` is true."""
    try:
        lock = _lock(folder)
    except BlockingIOError:
        return
    if lock is not None or unknown:
        shutil.rmtree(folder, ignore_errors=True)
    _unlock(lock)


def _is_own(entry: os.DirEntry[str]) -> bool:
    try:
        return not hasattr(os, "getuid") or entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except OSError:
        return False


def _lock(folder: Path, wait: bool = False) -> int | None:
    """Take the lock of a folder; return its descriptor, or None where folders have no locks.

    Raises:
        BlockingIOError: if somebody has it, unless this is to ``wait``.
    """
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:
        os.close(handle)
        return None
    return handle


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)
