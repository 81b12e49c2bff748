"""Environments for what the course is compared with: beside the course's own packages, and never among them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from course_utils.paths import ROOT

FOLDER = ROOT / "runs" / "peers"  # not in the repository
INSTALL_S = 600.0
SAME = ("torch", "numpy")  # a peer must run on the versions that the course runs on


class PeersMissing(Exception):
    """The packages can't be had here; the text says why in a sentence."""


def environment(packages: Sequence[str]) -> Path:
    """Return a Python that sees this interpreter's packages and, beside them, ``packages``; made on first use.

    PyTorch is not installed again: it would be gigabytes, and the comparison would be with another build.

    Raises:
        PeersMissing: if they can't be installed.
    """
    key = hashlib.sha256(" ".join([sys.version, *sorted(packages), version("torch")]).encode()).hexdigest()[:12]
    folder = FOLDER / key
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    ready = folder / "ready"
    if ready.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False, symlinks=sys.platform != "win32")
    own = sysconfig.get_path("purelib")
    theirs = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(theirs, "course.pth").write_text(own + "\n", encoding="utf-8")
    pins = [f"{name}=={version(name)}" for name in SAME]
    command = [str(python), "-m", "pip", "install", "--quiet", *packages, *pins]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeersMissing(f"{', '.join(packages)} can't be installed here: {type(error).__name__}.") from error
    if ended.returncode:
        said = (ended.stderr.strip() or "pip said nothing").splitlines()[-1][-200:]
        raise PeersMissing(f"{', '.join(packages)} can't be installed here: {said}")
    ready.touch()
    return python
