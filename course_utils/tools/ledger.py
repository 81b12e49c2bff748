"""The claims ledger as a command and as a page of the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.claims.ledger import Claim, all_claims, claims_of, find_claim
from course_utils.claims.render import summary_text, value_text
from course_utils.claims.running import RECORD, Result, record_text, recorded, recorded_release, run_claims
from course_utils.claims.verdicts import CAVEAT, ERROR, FALSE, MEANING, NEEDS_CUDA, OPINION, OUTDATED, TRUE
from course_utils.errors import UsageError
from course_utils.lessons import LESSONS, find_lesson
from course_utils.paths import ROOT, write_text
from course_utils.text import plural, shorten

if TYPE_CHECKING:
    from rich.console import RenderableType

PAGE = ROOT / "docs" / "claims.md"
RELEASES = RECORD.with_name("releases")  # one file for each release that was measured beside the pinned one

_COLOUR = {
    TRUE: "green", CAVEAT: "yellow", OUTDATED: "magenta", FALSE: "red", OPINION: "cyan", NEEDS_CUDA: "bright_black",
    ERROR: "bold red",
}  # fmt: skip


def chosen(names: Sequence[str]) -> list[Claim]:
    """Return the claims meant by ids and lessons, each once, in the ledger's order; all of them for no name.

    Raises:
        UsageError: if a name is neither a claim nor a lesson.
    """
    if not names:
        return list(all_claims())
    wanted: set[str] = set()
    for name in names:
        try:
            wanted.add(find_claim(name).id)
        except UsageError as unknown:
            try:
                wanted |= {claim.id for claim in claims_of(find_lesson(name))}
            except UsageError:
                raise unknown from None
    return [claim for claim in all_claims() if claim.id in wanted]


def measure(names: Sequence[str], *, quiet: bool = False) -> list[Result]:
    """Measure the chosen claims; prints each as soon as it is known unless ``quiet``."""
    claims = chosen(names)
    if quiet:
        return list(run_claims(claims))
    from rich.console import Console

    console = Console(highlight=False)
    results: list[Result] = []
    for result in run_claims(claims):
        if not results or result.lesson != results[-1].lesson:
            console.print(f"\n[bold]{result.lesson}[/bold]")
        results.append(result)
        console.print(_entry(result))
    console.print(f"\n{summary_text(results)}")
    return results


def _entry(result: Result) -> RenderableType:
    """Return one result as columns: id, verdict, and what there is to say about it."""
    from rich.table import Table
    from rich.text import Text

    seen = "; ".join(f"{what}: {value_text(value)}" for what, value in result.evidence.items())
    words = Text(result.sentence)
    words.append(f"\nseen: {seen}", style="dim")
    if result.correction:
        words.append(f"\nright is: {result.correction}")
    if result.differs:
        words.append(f"\non PyTorch {recorded_release()} it was {result.recorded}", style="bold")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=4)
    grid.add_column(width=10)
    grid.add_column(ratio=1)
    grid.add_row(result.id, Text(result.verdict, style=_COLOUR[result.verdict]), words)
    return grid


def store(results: Iterable[Result]) -> list[Path]:
    """Write the record of verdicts and the page made from it; return their paths."""
    results = list(results)
    write_text(RECORD, record_text(results))
    write_text(PAGE, page_text({result.id: result.verdict for result in results}, results[0].torch))
    return [RECORD, PAGE]


def store_release(path: Path) -> list[Path]:
    """Keep the verdicts of another release, from a file that ``course.py claims --json`` wrote there; renew the page.

    Raises:
        UsageError: if the file is no such list, or holds the release that the record is of.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        release, verdicts = entries[0]["torch"], {entry["id"]: entry["verdict"] for entry in entries}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{path.name} holds no claims.", got=shorten(str(error), 80), fix="python3 course.py claims --json > FILE"
        ) from None
    if release == recorded_release():
        raise UsageError(
            f"{path.name} was measured with PyTorch {release}, as the record was.",
            fix="Measure in an environment with another release.",
        )
    kept = RELEASES / f"{release}.json"
    kept.parent.mkdir(exist_ok=True)
    write_text(kept, json.dumps(dict(sorted(verdicts.items())), indent=1) + "\n")
    write_text(PAGE, stored_page_text())
    return [kept, PAGE]


def other_releases() -> dict[str, dict[str, str]]:
    """Return the verdicts of other releases, oldest first: release -> id -> verdict."""
    paths = sorted(RELEASES.glob("*.json"), key=lambda path: [int(part) for part in path.stem.split(".")])
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def stored_page_text() -> str:
    """Return the page as it must be for the ledger and the stored record."""
    return page_text(recorded(), recorded_release())


def page_text(verdicts: dict[str, str], torch: str) -> str:
    """Return the documentation page: each lesson's claims with verdict and correction, without what varies."""
    lines = [
        "# What people say about PyTorch",
        "",
        f"Sentences that articles, courses and colleagues repeat, each measured with PyTorch {torch} on a CPU. The",
        "verdicts below are what the measurements said there; `python3 course.py claims` measures them on your",
        "machine, `python3 course.py claims T004` one of them. Made by `python3 course.py claims --store`.",
        "",
        *(f"- **{verdict}**: {MEANING[verdict]}" for verdict in MEANING if verdict != ERROR),
    ]
    for lesson in LESSONS:
        claims = claims_of(lesson)
        if not claims:
            continue
        lines += ["", f"## {lesson.number} {lesson.title}", "", "| id | what people say | verdict | right is |"]
        lines += ["| --- | --- | --- | --- |"]
        for claim in claims:
            verdict = verdicts.get(claim.id, "not measured")
            right = "" if verdict == TRUE else claim.right + (f" [Documentation]({claim.page})" if claim.page else "")
            lines.append(f"| {claim.id} | {_cell(claim.sentence)} | {verdict} | {_cell(right)} |")
    lines += _changes(verdicts, torch)
    return "\n".join(lines) + "\n"


def _changes(verdicts: dict[str, str], torch: str) -> list[str]:
    """Return the section about claims whose verdict depends on the release; nothing if no other was measured."""
    others = other_releases()
    if not others:
        return []
    columns = [*others.items(), (torch, verdicts)]
    rows = []
    for claim in all_claims():
        said = [column.get(claim.id, "not measured") for _, column in columns]
        if not claim.varies and len(set(said) - {"not measured"}) > 1:
            rows.append(f"| {claim.id} | {_cell(claim.sentence)} | {' | '.join(said)} |")
    return [
        "",
        "## What changed between releases",
        "",
        f"{plural(len(rows), 'sentence')} got another verdict with another release. `error` means that the measurement",
        "needs something that the release lacks. What depends on the machine is left out. In an environment with",
        "the other release: `python -m course_utils claims --json > other.json`; then here:",
        "`python3 course.py claims --release other.json`.",
        "",
        f"| id | what people say | {' | '.join(name for name, _ in columns)} |",
        f"| --- | --- |{' --- |' * len(columns)}",
        *rows,
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
