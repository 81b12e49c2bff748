"""Facts about an answer: single checks, and the outcome they add up to."""

from __future__ import annotations

from dataclasses import dataclass

PASSED, WRONG, UNTRIED = "passed", "wrong", "untried"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        what: the expectation as a short statement, ``each row sums to 1``.
        passed: whether it holds.
        detail: what was seen instead, with numbers.
        hint: the idea to revisit; names the misconception where one is recognised.
    """

    what: str
    passed: bool
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Outcome:
    """What the checks of one exercise say about one answer.

    ``state`` is ``passed``, ``wrong`` or ``untried``; ``held`` lists what was seen to hold before the
    first miss; ``miss`` is that miss.
    """

    exercise_id: str
    state: str
    held: tuple[str, ...] = ()
    miss: Check | None = None

    @property
    def passed(self) -> bool:
        return self.state == PASSED

    @property
    def message(self) -> str:
        """All words a learner would see about the miss, on one line; empty if there is none."""
        if self.miss is None:
            return ""
        return " | ".join(part for part in (self.miss.what, self.miss.detail, self.miss.hint) if part)
