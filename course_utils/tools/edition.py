"""A learner edition lacks what holds the answers; commands that need it say so."""

from __future__ import annotations

from pathlib import Path

from course_utils.errors import EnvironmentProblem


def require(folder: Path, what: str) -> None:
    """Check that this copy of the course has a folder.

    Raises:
        EnvironmentProblem: if it hasn't, as a learner edition.
    """
    if not folder.is_dir():
        raise EnvironmentProblem(
            f"This is a learner edition: it has no {what}.", fix="Use a checkout of the course's repository for that."
        )
