"""What a learner calls in a notebook, ``claim(id, guess)``, and the ledger as text for a terminal."""

from __future__ import annotations

from course_utils.cards import Card
from course_utils.claims.ledger import Value, find_claim
from course_utils.claims.running import Result, recorded_release, run_claim
from course_utils.claims.verdicts import CAVEAT, ERROR, FALSE, MEANING, NEEDS_CUDA, OPINION, OUTDATED, TRUE, VERDICTS
from course_utils.errors import CourseError
from course_utils.text import did_you_mean, shorten

# Whether one should believe the sentence: as it stands, with care, or not.
_KIND = {
    TRUE: "done", CAVEAT: "info", OUTDATED: "wrong", FALSE: "wrong", OPINION: "info", NEEDS_CUDA: "todo",
    ERROR: "wrong",
}  # fmt: skip


def claim(claim_id: str, guess: object = ...) -> None:
    """Show what people say, measure it here, and state the verdict with its evidence. Never raises.

    Args:
        claim_id: ``T004``; the lessons and ``course.py claims`` list them.
        guess: the verdict that you expect: ``true``, ``caveat``, ``outdated``, ``false`` or ``opinion``.
    """
    try:
        card(run_claim(find_claim(claim_id)), guess).show()
    except CourseError as error:
        Card("wrong", error.what, (("next", error.fix),)).show()


def card(result: Result, guess: object = ...) -> Card:
    """Return the card that tells a learner about a result."""
    rows = [("verdict", MEANING[result.verdict]), ("your guess", _guess_text(guess, result.verdict))]
    rows += [("seen", "\n".join(f"{what}: {value_text(value)}" for what, value in result.evidence.items()))]
    if result.correction:
        rows.append(("right is", result.correction))
    if result.differs:
        rows.append(("elsewhere", f"PyTorch {recorded_release()} on the authors' machine said {result.recorded!r}"))
    if result.verdict == ERROR:
        rows.append(("next", "Please report this text with what course.py env prints."))
    return Card(_KIND[result.verdict], f"{result.id}: “{result.sentence}”", tuple(rows))


def value_text(value: Value) -> str:
    """Return a piece of evidence in words: yes and no, numbers with at most four digits that count."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _guess_text(guess: object, verdict: str) -> str:
    if guess is ...:
        return "none yet"
    word = str(guess).strip().lower()
    if word not in VERDICTS:
        return f"{shorten(str(guess), 40)!r} is no verdict. {did_you_mean(word, VERDICTS)}"
    return f"{word}, as measured" if word == verdict else f"{word}, but the measurement says {verdict}"


def summary_text(results: list[Result]) -> str:
    """Return how many sentences got which verdict, most frequent first."""
    counts = {verdict: sum(result.verdict == verdict for result in results) for verdict in (*VERDICTS, ERROR)}
    parts = [f"{count} {verdict}" for verdict, count in sorted(counts.items(), key=lambda item: -item[1]) if count]
    seconds = sum(result.seconds for result in results)
    return f"{len(results)} claims measured in {seconds:.0f} s: {', '.join(parts)}."
