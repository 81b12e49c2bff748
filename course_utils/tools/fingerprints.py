"""What results depend on besides what is asked: the course's own code and notebooks, as a few digits."""

from __future__ import annotations

import hashlib
from functools import cache

from course_utils.paths import NOTEBOOKS, ROOT


@cache
def code_digest() -> str:
    """Return a digest of the course's Python files, the same on every machine that has the same ones."""
    digest = hashlib.sha256()
    package = ROOT / "course_utils"
    for path in sorted(package.rglob("*.py"), key=lambda path: path.as_posix()):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + _lines(path.read_bytes()) + b"\0")
    return digest.hexdigest()


@cache
def course_digest() -> str:
    """Return a digest of the code and of the notebooks that are handed out."""
    digest = hashlib.sha256(code_digest().encode())
    for path in sorted(NOTEBOOKS.glob("*.ipynb"), key=lambda path: path.name):
        digest.update(path.name.encode() + b"\0" + _lines(path.read_bytes()) + b"\0")
    return digest.hexdigest()


def _lines(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n")  # a checkout on Windows may have its own line ends
