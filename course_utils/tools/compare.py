"""What changed between two runs: status, outputs, claims, times. For "does the course still work on the new PyTorch".

Outputs are compared as nbval compares them: after the replacements of ``sanitize.cfg``, cells that are marked as
varying excepted, pictures by their descriptions. Times are shown and never count as a change.
"""

from __future__ import annotations

import difflib
import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_utils.errors import UsageError
from course_utils.text import plural, shorten, table
from course_utils.tools.outcomes import ERROR_TAG, Notebook, source_of
from course_utils.tools.outputs import merged_streams, sanitize_patterns, sanitized
from course_utils.tools.report import plain

IGNORED = {"nbval-ignore-output", "nbval-skip"}
IGNORED_COMMENT = re.compile(r"^\s*#\s*(?:NBVAL_IGNORE_OUTPUT|NBVAL_SKIP)\b", re.MULTILINE)
NOT_OURS = {"injected-parameters", ERROR_TAG}  # cells that running adds
# What nbval leaves out of its comparison, and pictures.
SKIPPED = re.compile(r"image/.*|application/vnd\.jupyter\.widget-view\+json")
SLOWER, SLOWER_S = 1.5, 2.0  # a notebook is called slower or faster if it is so by this factor and these seconds
MAX_DIFF_LINES = 60  # of one cell
_VERDICT = re.compile(r"^\S+ ([A-Z]{1,3}\d{2,4}): .*\n(?:.*\n)*?\s*verdict:\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that changed."""

    kind: str  # status, output, claim, source, cell, notebook, run
    run: str  # of a matrix; empty otherwise
    notebook: str
    cell: str  # its id; empty where it is about the whole notebook
    what: str  # a sentence
    diff: tuple[str, ...] = ()  # lines that begin with "-", "+" or " "

    @property
    def place(self) -> str:
        return " ".join(part for part in (self.run, self.notebook, self.cell) if part)


@dataclass(frozen=True, kw_only=True)
class Time:
    """How long a notebook took in both runs, in seconds."""

    run: str
    notebook: str
    before: float
    after: float

    @property
    def remark(self) -> str:
        """Return ``slower`` or ``faster`` if the difference is more than a busy machine makes."""
        low, high = sorted((self.before, self.after))
        if high - low < SLOWER_S or high < low * SLOWER:
            return ""
        return "slower" if self.after > self.before else "faster"


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Two runs side by side."""

    before: Path
    after: Path
    facts: tuple[tuple[str, str, str], ...]  # what differed in how they were made: name, before, after
    differences: tuple[Difference, ...]
    times: tuple[Time, ...]
    cells: int  # code cells whose outputs were compared
    ignored: int  # and those marked as varying

    @property
    def changed(self) -> bool:
        """Whether anything but times and the facts of the environment changed."""
        return bool(self.differences)

    def verdict(self) -> str:
        """Return the outcome in a sentence."""
        compared = f"{plural(len(self.times), 'notebook')}, {plural(self.cells, 'cell')} compared, {self.ignored} vary"
        if not self.changed:
            return f"Nothing changed ({compared})."
        kinds = [item.kind for item in self.differences]
        counted = ", ".join(f"{_NOUNS[kind]} {kinds.count(kind)}" for kind in dict.fromkeys(kinds))
        return f"{plural(len(kinds), 'change')}: {counted} ({compared})."

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "changed": self.changed,
            "before": str(self.before),
            "after": str(self.after),
            "facts": [{"name": name, "before": a, "after": b} for name, a, b in self.facts],
            "differences": [{**asdict(item), "diff": list(item.diff)} for item in self.differences],
            "times": [{**asdict(item), "remark": item.remark} for item in self.times],
            "cells": self.cells,
            "ignored": self.ignored,
        }

    def summary(self) -> str:
        """Return the comparison as text."""
        lines = []
        if self.facts:
            lines += [table([(name, a, b) for name, a, b in self.facts], ("made with", "before", "after")), ""]
        rows = [
            (" ".join(filter(None, (t.run, t.notebook))), f"{t.before:.1f}", f"{t.after:.1f}", t.remark)
            for t in self.times
        ]
        lines += [table(rows, ("notebook", "s before", "s after", "")), ""]
        for item in self.differences:
            lines += [f"{item.place}: {item.what}", *(f"    {line}" for line in item.diff)]
        return "\n".join([*lines, self.verdict()])

    def to_html(self) -> str:
        """Return the comparison as a page."""
        escape = html.escape

        def row(*cells: object) -> str:
            return "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"

        def lines(diff: tuple[str, ...]) -> str:
            kinds = {"-": "old", "+": "new"}
            marked = (f'<span class="{kinds.get(line[:1], "")}">{escape(line)}</span>' for line in diff)
            return "<pre>" + "\n".join(marked) + "</pre>" if diff else ""

        facts = "".join(row(*fact) for fact in self.facts)
        times = "".join(row(t.run, t.notebook, f"{t.before:.1f}", f"{t.after:.1f}", t.remark) for t in self.times)
        changes = "\n".join(
            f"<section><h3>{escape(item.place)}</h3><p>{escape(item.what)}</p>{lines(item.diff)}</section>"
            for item in self.differences
        )
        return _PAGE.format(
            title=escape(self.verdict()),
            kind="bad" if self.changed else "good",
            places=f"{escape(self.before.name)} and {escape(self.after.name)}",
            facts=_HTML_TABLE.format(head=_heads("made with", "before", "after"), rows=facts) if facts else "",
            times=_HTML_TABLE.format(head=_heads("run", "notebook", "seconds before", "seconds after", ""), rows=times),
            changes=changes,
        )


_NOUNS = {
    "status": "status", "output": "outputs", "claim": "claims", "source": "code", "cell": "cells",
    "notebook": "notebooks", "run": "runs",
}  # fmt: skip


def _heads(*names: str) -> str:
    return "".join(f"<th>{name}</th>" for name in names)


_HTML_TABLE = "<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>
<style>
:root {{ color-scheme: light dark }} body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto;
padding: 0 1rem }} td, th {{ text-align: left; padding: .3rem 1rem .3rem 0; vertical-align: top }}
h1 {{ font-size: 1.5rem; padding-left: .8rem; border-left: .4rem solid }} h1.good {{ border-color: #1a7f37 }}
h1.bad {{ border-color: #c4231b }} h3 {{ font-size: 1rem }} pre {{ overflow-x: auto; font-size: .85rem; padding: .6rem;
border: 1px solid #8884 }} .old {{ color: #c4231b }} .new {{ color: #1a7f37 }}
</style></head>
<body><h1 class="{kind}">{title}</h1>
<p>{places}</p>
{facts}
{times}
{changes}
</body></html>
"""


def compare_runs(before: Path, after: Path) -> RunComparison:
    """Compare the folders of two runs, or of two matrices, run by run.

    Raises:
        UsageError: if one of them holds no finished run.
    """
    old, new = _reports(before), _reports(after)
    found = _Found()
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            where = "before" if name in old else "after"
            found.differences.append(
                Difference(
                    kind="run", run=name or "(single)", notebook="", cell="", what=f"This run is only there {where}."
                )
            )
            continue
        _compare_reports(name, old[name], new[name], found)
    return RunComparison(
        before=before.resolve(),
        after=after.resolve(),
        facts=tuple(dict.fromkeys(found.facts)),
        differences=tuple(found.differences),
        times=tuple(found.times),
        cells=found.cells,
        ignored=found.ignored,
    )


class _Found:
    def __init__(self) -> None:
        self.facts: list[tuple[str, str, str]] = []
        self.differences: list[Difference] = []
        self.times: list[Time] = []
        self.cells = self.ignored = 0


def _reports(folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Return the runs in a folder: name (empty for a single one) to its folder and its report."""
    try:
        report = _json(folder / "report.json")
        if "runs" not in report:
            return {"": (folder, {**report, "notebooks": list(report["notebooks"])})}
        names = [str(run["folder"]) for run in report["runs"]]
        return {name: (folder / name, _json(folder / name / "report.json")) for name in names}
    except FileNotFoundError as error:
        what = f"it has no {Path(error.filename).relative_to(folder)}" if folder.is_dir() else "there is no such folder"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"its report.json can't be read ({type(error).__name__})"
    raise UsageError(
        f"{folder} holds no run that has ended: {what}.",
        fix="Name a folder that `course run` wrote; `course run --resume DIR` finishes one that was killed.",
    )


def _json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise TypeError("no object")
    return content


def _compare_reports(
    run: str, old: tuple[Path, dict[str, Any]], new: tuple[Path, dict[str, Any]], found: _Found
) -> None:
    for part in ("versions", "parameters"):
        found.facts += list(_facts(old[1].get(part, {}), new[1].get(part, {})))
    found.facts += list(_facts(*({name: side[1].get(name) for name in ("device", "threads")} for side in (old, new))))
    pairs = [{(entry["name"], entry["edition"]): entry for entry in side[1]["notebooks"]} for side in (old, new)]
    several = len({edition for side in pairs for _, edition in side}) > 1
    for name, edition in dict.fromkeys([*pairs[0], *pairs[1]]):
        label = f"{name} ({edition})" if several else name
        first, second = (side.get((name, edition)) for side in pairs)
        if first is None or second is None:
            where = "before" if second is None else "after"
            found.differences.append(
                Difference(kind="notebook", run=run, notebook=label, cell="", what=f"It ran only {where}.")
            )
            continue
        found.times.append(Time(run=run, notebook=label, before=first["seconds"], after=second["seconds"]))
        found.differences += _status_change(run, label, first, second)
        books = [_notebook(side[0], entry) for side, entry in ((old, first), (new, second))]
        if books[0] is not None and books[1] is not None:
            _compare_notebooks(run, label, books[0], books[1], found)


def _facts(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield name, str(old.get(name, "none")), str(new.get(name, "none"))


def _status_change(run: str, label: str, first: dict[str, Any], second: dict[str, Any]) -> Iterator[Difference]:
    if (first["status"], first["error"]) == (second["status"], second["error"]):
        return
    if first["status"] == second["status"]:
        what = f"It {second['status']} in another way."
    else:
        what = f"It was {first['status']} and is {second['status']} now."
    diff = [f"{sign} {entry['error']}" for sign, entry in (("-", first), ("+", second)) if entry["error"]]
    yield Difference(kind="status", run=run, notebook=label, cell="", what=what, diff=tuple(diff))


def _notebook(folder: Path, entry: dict[str, Any]) -> Notebook | None:
    """Return an executed notebook; a path that leads out of its run's folder is not followed."""
    if not entry.get("notebook"):
        return None
    path = (folder / entry["notebook"]).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        return None
    return _json(path)


def _cells(notebook: Notebook) -> dict[str, dict[str, Any]]:
    """Return the code cells by id, without those that running adds."""
    cells = [
        cell
        for cell in notebook["cells"]
        if cell["cell_type"] == "code" and not NOT_OURS & set(cell["metadata"].get("tags", []))
    ]
    return {str(cell.get("id", number)): cell for number, cell in enumerate(cells)}


def _compare_notebooks(run: str, label: str, old: Notebook, new: Notebook, found: _Found) -> None:
    first, second = _cells(old), _cells(new)

    def differs(kind: str, cell: str, what: str, diff: tuple[str, ...] = ()) -> None:
        found.differences.append(Difference(kind=kind, run=run, notebook=label, cell=cell, what=what, diff=diff))

    for cell_id in dict.fromkeys([*first, *second]):
        if cell_id not in first or cell_id not in second:
            differs("cell", cell_id, f"This cell is only there {'before' if cell_id in first else 'after'}.")
            continue
        a, b = first[cell_id], second[cell_id]
        if source_of(a) != source_of(b):
            differs("source", cell_id, "The cell's code changed.", _diff(source_of(a), source_of(b)))
        verdicts = _verdicts(a), _verdicts(b)
        for claim in dict.fromkeys([*verdicts[0], *verdicts[1]]):
            before, after = (side.get(claim, "none") for side in verdicts)
            if before != after:
                differs("claim", cell_id, f"Claim {claim} was {before!r} and is {after!r} now.", _output_diff(a, b))
        if _varies(a) or _varies(b):
            found.ignored += 1
            continue
        found.cells += 1
        if verdicts[0] == verdicts[1] and (diff := _output_diff(a, b)):
            differs("output", cell_id, "The cell's output changed.", diff)


def _varies(cell: dict[str, Any]) -> bool:
    return bool(IGNORED & set(cell["metadata"].get("tags", [])) or IGNORED_COMMENT.search(source_of(cell)))


def _verdicts(cell: dict[str, Any]) -> dict[str, str]:
    text = "\n".join(value for _, value in _outputs(cell))
    return {match[1]: match[2].strip() for match in _VERDICT.finditer(text)}


def _outputs(cell: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a cell shows, as pairs of a kind and its text, without what may differ between two runs."""
    patterns = sanitize_patterns()
    shown: list[tuple[str, str]] = []
    outputs = [{**o, "text": _text(o["text"])} if o["output_type"] == "stream" else o for o in cell.get("outputs", [])]
    for output in merged_streams(outputs):
        if output["output_type"] == "stream":
            shown.append((output["name"], output["text"]))
        elif output["output_type"] == "error":
            shown.append(("error", f"{output['ename']}: {output['evalue']}"))
        else:
            data = {mime: value for mime, value in output["data"].items() if not SKIPPED.fullmatch(mime)}
            shown += [(mime, _text(data[mime])) for mime in sorted(data, key=lambda mime: (mime != "text/plain", mime))]
    return [(kind, sanitized(plain(text), patterns)) for kind, text in shown]


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "".join(value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _output_diff(a: dict[str, Any], b: dict[str, Any]) -> tuple[str, ...]:
    """Return how the outputs of two cells differ, told by their plain text if that differs; empty if they don't."""
    old, new = _outputs(a), _outputs(b)
    if old == new:
        return ()
    readable = [
        [text for kind, text in side if kind in ("stdout", "stderr", "text/plain", "error")] for side in (old, new)
    ]
    if readable[0] != readable[1]:
        return _diff("\n".join(readable[0]), "\n".join(readable[1]))
    kinds = [[kind for kind, _ in side] for side in (old, new)]
    if kinds[0] != kinds[1]:
        return _diff("\n".join(kinds[0]), "\n".join(kinds[1]))
    pair = next((x, y) for x, y in zip(old, new, strict=True) if x != y)
    return _diff(*(f"{kind}: {shorten(text, 300)}" for kind, text in pair))


def _diff(old: str, new: str) -> tuple[str, ...]:
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=1))[2:]
    kept = [line for line in lines if not line.startswith("@@")]
    if len(kept) > MAX_DIFF_LINES:
        kept = [*kept[:MAX_DIFF_LINES], f"  … {len(kept) - MAX_DIFF_LINES} more lines"]
    return tuple(kept) or ("  (only the ends of lines differ)",)
