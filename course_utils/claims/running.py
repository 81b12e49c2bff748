"""From a claim to a result: run its measurement, apply its rule. A failure is a result too."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from functools import cache
from io import StringIO
from pathlib import Path

import torch

from course_utils.claims.ledger import Claim, Value
from course_utils.claims.verdicts import ERROR, TRUE, VERDICTS
from course_utils.display import error_text
from course_utils.exercises.judge import standard_settings
from course_utils.seeding import seeded

SEED = 0
RECORD = Path(__file__).with_name("record.json")


@dataclass(frozen=True)
class Result:
    """What one measurement said, in the form of ``course.py claims --json``.

    ``evidence`` is what was seen; ``correction`` says what is right instead, with its page, unless the verdict is
    ``true``. ``recorded`` is the verdict on the authors' machine, empty if there is none.
    """

    id: str
    lesson: str
    verdict: str
    evidence: dict[str, Value]
    correction: str
    seconds: float
    sentence: str = ""
    recorded: str = ""
    torch: str = field(default_factory=lambda: release())

    @property
    def differs(self) -> bool:
        """Whether the authors' machine came to another verdict."""
        return bool(self.recorded) and self.recorded != self.verdict

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def release() -> str:
    """Return PyTorch's version without the build's suffix, ``2.14.1``."""
    return torch.__version__.split("+")[0]


def run_claim(claim: Claim) -> Result:
    """Measure one claim. Random states and PyTorch's global settings are as before afterwards.

    An error in the measurement gives the verdict ``error``, with the message as evidence.
    """
    start = time.perf_counter()
    quiet = StringIO()
    try:
        with (
            standard_settings(),
            seeded(SEED),
            warnings.catch_warnings(),
            redirect_stdout(quiet),
            redirect_stderr(quiet),
        ):
            warnings.simplefilter("ignore")
            evidence = dict(claim.measure())
            verdict = claim.rule(evidence)
        if verdict not in VERDICTS:
            raise ValueError(f"the rule of {claim.id} said {verdict!r}, which is no verdict")
    except Exception as error:
        evidence, verdict = {"error": error_text(error)}, ERROR
    seconds = time.perf_counter() - start
    return Result(
        id=claim.id, lesson=claim.lesson, verdict=verdict, evidence=evidence, correction=_correction(claim, verdict),
        seconds=round(seconds, 3), sentence=claim.sentence, recorded=recorded().get(claim.id, ""),
    )  # fmt: skip


def run_claims(claims: Iterable[Claim]) -> Iterator[Result]:
    """Measure claims one after the other; each result comes as soon as it is there."""
    for claim in claims:
        yield run_claim(claim)


def _correction(claim: Claim, verdict: str) -> str:
    if verdict in (TRUE, ERROR) or not claim.right:
        return ""
    return f"{claim.right} ({claim.page})" if claim.page else claim.right


@cache
def recorded() -> dict[str, str]:
    """Return the verdicts of the authors' machine by id; empty if there is no record."""
    return dict(_record().get("verdicts", {}))


@cache
def recorded_release() -> str:
    """Return the release of PyTorch that the record was made with."""
    return str(_record().get("torch", ""))


@cache
def _record() -> dict[str, object]:
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def record_text(results: Iterable[Result]) -> str:
    """Return the record as the text of its file: release and verdicts, sorted by id."""
    verdicts = {result.id: result.verdict for result in sorted(results, key=lambda result: result.id)}
    return json.dumps({"torch": release(), "verdicts": verdicts}, indent=1) + "\n"
