"""Which claims exist. Each lesson's module fills a ``Page``; here they are found by id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module, util
from typing import TypeAlias

from course_utils.errors import UsageError
from course_utils.lessons import LESSONS, Lesson
from course_utils.text import did_you_mean

Value: TypeAlias = bool | int | float | str
Evidence: TypeAlias = Mapping[str, Value]
Measure: TypeAlias = Callable[[], Evidence]
Rule: TypeAlias = Callable[[Evidence], str]

DOCS = "https://docs.pytorch.org/docs/stable/"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One sentence that people say, and how to find out.

    Args:
        id: a letter for the lesson and three digits, ``T004``.
        sentence: the claim, as people say it.
        lesson: the lesson's name, ``tensors``.
        measure: runs in seconds on a CPU and returns what it saw: name -> number, text or truth value.
        rule: from what was seen to a verdict (`course_utils.claims.verdicts`). It holds no verdict of its own: with
            other evidence it says something else.
        right: one sentence that says what is right instead; empty only where the sentence is plainly true.
        page: address of the page that says so.
        varies: the evidence or the verdict differs between machines or runs, as times do.
    """

    id: str
    sentence: str
    lesson: str
    measure: Measure
    rule: Rule
    right: str = ""
    page: str = ""
    varies: bool = False


class Page:
    """The claims of one lesson, in the order in which the module writes them down."""

    def __init__(self, lesson: str) -> None:
        self.lesson = lesson
        self.claims: list[Claim] = []

    def claim(
        self, claim_id: str, sentence: str, *, rule: Rule, right: str = "", page: str = "", varies: bool = False
    ) -> Callable[[Measure], Measure]:
        """Enter a claim whose measurement is the function below; sentences that say the same are stacked on one.

        ``page`` may be given as it follows the address of PyTorch's documentation.
        """
        address = page if "://" in page or not page else DOCS + page

        def enter(measure: Measure) -> Measure:
            # Stacked decorators run from the lowest to the highest: keep them in the order of reading.
            mates = [place for place, claim in enumerate(self.claims) if claim.measure is measure]
            claim = Claim(
                id=claim_id, sentence=sentence, lesson=self.lesson, measure=measure, rule=rule, right=right,
                page=address, varies=varies,
            )  # fmt: skip
            self.claims.insert(mates[0] if mates else len(self.claims), claim)
            return measure

        return enter


@cache
def claims_of(lesson: Lesson) -> tuple[Claim, ...]:
    """Return the claims of one lesson; none if nobody has written any yet."""
    module = f"course_utils.claims.{lesson.name}"
    if util.find_spec(module) is None:
        return ()
    return tuple(import_module(module).PAGE.claims)


def all_claims() -> tuple[Claim, ...]:
    """Return every claim of the course, lesson by lesson."""
    return tuple(claim for lesson in LESSONS for claim in claims_of(lesson))


def find_claim(claim_id: str) -> Claim:
    """Return the claim with this id, in small or capital letters.

    Raises:
        UsageError: if there is none; the message suggests the closest id.
    """
    known = {claim.id: claim for claim in all_claims()}
    wanted = str(claim_id).upper()
    if wanted not in known:
        raise UsageError(f"There is no claim called {claim_id!r}.", fix=did_you_mean(wanted, known))
    return known[wanted]
