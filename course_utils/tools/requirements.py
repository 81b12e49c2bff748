"""What the course needs installed: the pins, their fingerprint, and whether they are met. Standard library only."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from course_utils.errors import EnvironmentProblem
from course_utils.paths import ROOT

FILES = ("requirements.txt", "constraints.txt")
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;]+)(?:\s*;\s*(.+))?")
_MARKER = re.compile(r"""python_version\s*(>=|<)\s*["'](\d+)\.(\d+)["']""")


def fingerprint(root: Path = ROOT) -> str:
    """Return 12 hexadecimal digits that change when a requirement file does, whatever its line ends."""
    from hashlib import sha256

    digest = sha256()
    for name in FILES:
        digest.update(name.encode() + b"\0" + b"\n".join((root / name).read_bytes().splitlines()) + b"\0")
    return digest.hexdigest()[:12]


def pins(root: Path = ROOT, python: Sequence[int] = sys.version_info) -> dict[str, str]:
    """Return the direct requirements that hold for this Python: normalized name to exact version.

    Raises:
        EnvironmentProblem: if a line is not ``name==version``, with at most one ``python_version`` condition.
    """
    found = {}
    for line in (root / "requirements.txt").read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if not line or line.startswith("-"):
            continue
        pin = _PIN.fullmatch(line)
        if pin is None or not (pin[3] is None or _MARKER.fullmatch(pin[3].strip())):
            raise EnvironmentProblem(
                "requirements.txt has a line that course.py can't read.",
                got=line,
                expected='name==version, or name==version ; python_version >= "3.11"',
                fix="Write the requirement in that form.",
            )
        if pin[3] is None or _holds(pin[3].strip(), python):
            found[normalized(pin[1])] = pin[2]
    return found


def _holds(marker: str, python: Sequence[int]) -> bool:
    operator, major, minor = _MARKER.fullmatch(marker).groups()  # type: ignore[union-attr]  # pins() has matched it
    at_least = (python[0], python[1]) >= (int(major), int(minor))
    return at_least if operator == ">=" else not at_least


def normalized(name: str) -> str:
    """Return a package name as indexes compare it: lower case, runs of ``-_.`` as one dash."""
    return re.sub(r"[-_.]+", "-", name).lower()


def unmet(pinned: dict[str, str], places: Iterable[str] | None = None) -> dict[str, str | None]:
    """Return the pins that are not installed: name to the version found instead, or None.

    A local build counts as its release, so torch 2.14.1+cpu meets 2.14.1.

    Args:
        pinned: normalized name to version, as from ``pins``.
        places: folders to look in, such as a site-packages; ``sys.path`` by default.
    """
    from importlib.metadata import distributions

    where = {} if places is None else {"path": list(places)}
    missed: dict[str, str | None] = {}
    for name, version in pinned.items():
        first = next(iter(distributions(name=name, **where)), None)
        found = first.version if first else None
        if (found or "").partition("+")[0] != version:
            missed[name] = found
    return missed
