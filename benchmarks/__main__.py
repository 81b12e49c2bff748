"""Measure, print a table, write ``benchmarks/results.json``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from benchmarks import measure, speed
from benchmarks.grading import grading
from benchmarks.results import FILE, Result, as_text, machine, save
from benchmarks.watching import watching

Group = Callable[[int], Iterator[Result]]
GROUPS: dict[str, tuple[Group, int]] = {  # with how often each is measured
    "imports": (measure.imports, 9),
    "starts": (measure.starts, 9),
    "digits": (measure.digits, 5),
    "training": (speed.training, 15),
    "data": (speed.data, 15),
    "checks": (speed.checks, 9),
    "growth": (speed.growth, 9),
    "watching": (watching, 9),
    "lessons": (measure.lessons, 3),
    "grading": (grading, 3),
}


def measure_all(names: Sequence[str], quick: bool) -> list[Result]:
    """Return the results of the named groups; a line of progress goes to standard error before each group."""
    results: list[Result] = []
    for name in names:
        group, repeats = GROUPS[name]
        click.echo(f"measuring {name} …", err=True)
        results += group(1 if quick else repeats)
    return results


@click.command(name="bench")
@click.argument("groups", type=click.Choice(list(GROUPS)), nargs=-1)
@click.option("--quick", is_flag=True, help="Measure each thing once, to see that it works; writes no file.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help=f"By default benchmarks/{FILE.name}.")
def bench(groups: tuple[str, ...], quick: bool, out: Path | None) -> None:
    """Measure the course's speed and size beside its goals: all GROUPS by default.

    Close other programs first: every number here grows with the load of the machine. The exit status is 0 if
    every goal is met.
    """
    names = list(dict.fromkeys(groups)) or list(GROUPS)
    facts = machine()
    results = measure_all(names, quick)
    click.echo(as_text(results))
    if out or (not quick and len(names) == len(GROUPS)):
        save(results, facts, out or FILE)
        click.echo(f"\nwritten to {out or FILE}")
    raise SystemExit(1 if any(result.met is False for result in results) else 0)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        code = bench.main(args=list(sys.argv[1:] if args is None else args), prog_name="bench", standalone_mode=False)
    except SystemExit as ending:
        return int(ending.code or 0)
    except click.ClickException as error:
        click.echo(error.format_message(), err=True)
        return 2
    return code or 0


if __name__ == "__main__":
    raise SystemExit(main())
