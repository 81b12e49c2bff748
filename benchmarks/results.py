"""Facts of a benchmark run: what was measured, how often, and whether it meets its goal."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from course_utils.paths import write_text
from course_utils.text import table

FILE = Path(__file__).with_name("results.json")
HEADER = ("what", "median", "spread", "goal", "verdict", "beside")
PACKAGES = ("torch", "torchvision", "numpy", "jupyterlab", "papermill", "ipykernel")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One quantity.

    Args:
        name: what was measured.
        unit: of all its numbers.
        runs: every measurement; empty if it could not be measured.
        goal: the largest value that is good, or the smallest where ``higher_is_better``; None where there is no goal.
        others: the same quantity for a peer, by its name.
        note: why there are no runs, or how to read them.
    """

    name: str
    unit: str
    runs: Sequence[float]
    goal: float | None = None
    higher_is_better: bool = False
    others: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def ours(self) -> float | None:
        return median(self.runs) if self.runs else None

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal; None without a goal. What could not be measured does not meet it."""
        if self.goal is None:
            return None
        if self.ours is None:
            return False
        return self.ours >= self.goal if self.higher_is_better else self.ours <= self.goal

    def to_dict(self) -> dict[str, Any]:
        """Return the result in the shape of ``results.json``."""
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours,
            "others": self.others,
            "goal": self.goal,
            "met": self.met,
            "higher_is_better": self.higher_is_better,
            "runs": list(self.runs),
            "note": self.note,
        }


def machine() -> dict[str, Any]:
    """Return what the numbers depend on besides the course."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def versions() -> dict[str, str]:
    """Return the versions that matter here."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def as_json(results: Sequence[Result], facts: dict[str, Any]) -> str:
    """Return the text of ``results.json``."""
    content = {"machine": facts, "versions": versions(), "results": [result.to_dict() for result in results]}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def as_text(results: Sequence[Result]) -> str:
    """Return a table for a terminal, a line for each result."""
    return table([_row(result) for result in results], HEADER)


def as_markdown(results: Sequence[Result], facts: dict[str, Any]) -> str:
    """Return the page ``results.md``: the table, and the machine it comes from."""
    rows = [HEADER, ("---",) * len(HEADER), *map(_row, results)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    where = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in {**facts, **versions()}.items())
    return "\n".join(["# What was measured", "", *lines, "", f"Measured on: {where}.", ""])


def _row(result: Result) -> tuple[str, ...]:
    ours = "not measured" if result.ours is None else f"{result.ours:.4g} {result.unit}"
    spread = f"{min(result.runs):.4g} to {max(result.runs):.4g}" if len(result.runs) > 1 else ""
    sign = "≥" if result.higher_is_better else "≤"
    goal = "" if result.goal is None else f"{sign} {result.goal:g}"
    verdict = {True: "met", False: "MISSED", None: ""}[result.met]
    peers = ", ".join(f"{peer} {value:.4g}" for peer, value in result.others.items())
    return (result.name, ours, spread, goal, verdict, peers or result.note)


def save(results: Sequence[Result], facts: dict[str, Any], path: Path = FILE) -> None:
    """Write ``results.json`` and, beside it, the same for people: ``results.md``."""
    write_text(path, as_json(results, facts))
    write_text(path.with_suffix(".md"), as_markdown(results, facts))


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()
