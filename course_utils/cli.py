"""The command line: each command parses, calls one function, prints one summary and exits with a code.

Exit codes: 0 done, 1 the thing checked is not right, 2 wrong usage or environment, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from course_utils.errors import CourseError, out_of_memory
from course_utils.text import did_you_mean, without_passwords
from course_utils.tools.commands import COMMANDS, CPU_COMMANDS

try:
    import click
except ModuleNotFoundError as error:
    sys.stderr.write(
        f"The package {error.name!r} is missing, so this Python has no course environment yet. "
        "Start with `python3 course.py setup` in the course's folder.\n"
    )
    raise SystemExit(2) from None

INTERRUPTED = 130  # 128 + SIGINT, what shells expect


class CourseGroup(click.Group):
    """Lists commands in the order of ``COMMANDS`` and helps after a misspelt one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise click.UsageError(f"There is no command {args[0]!r}. {did_you_mean(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


class LessonName(click.ParamType):
    """A lesson by ``01_tensors``, ``01``, ``1`` or ``tensors``; the value is its stem, ``01_tensors``."""

    name = "lesson"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from course_utils.lessons import find_lesson

        try:
            return find_lesson(value).stem
        except CourseError as error:
            self.fail(error.sentence, param, ctx)


LESSON = LessonName()
# Options that are not ours are passed on. No -h here: in a cluster such as -khash it would be taken for ours.
FORWARD = {"ignore_unknown_options": True, "help_option_names": ["--help"]}


def command(name: str, **settings: Any) -> Any:
    """Make a command of the group whose one-line help is the one in ``COMMANDS``."""

    def decorate(function: Any) -> click.Command:
        if name in CPU_COMMANDS:
            function = click.option(
                "--cpu", is_flag=True, expose_value=False, help="When setting up: PyTorch's smaller CPU build (Linux)."
            )(function)
        return cli.command(name, short_help=COMMANDS[name], **settings)(function)

    return decorate


@click.group(cls=CourseGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--cpu", is_flag=True, expose_value=False, help="When setting up: PyTorch's smaller CPU build (Linux).")
def cli() -> None:
    """The PyTorch Workbook: lessons that run, check your answers, and measure what they say.

    A lesson is named by its number or its name: 01, 1, tensors and 01_tensors mean the same.
    """


@command("setup")
def setup_command() -> None:
    """Create or repair the environment, then say what it has.

    The environment is the folder .venv beside course.py, or the one that COURSE_VENV names.
    """
    from course_utils.tools import envreport

    report = envreport.collect()
    click.echo(envreport.as_text(report))
    raise SystemExit(1 if report["problems"] else 0)


@command("lab")
@click.argument("lesson", type=LESSON, required=False)
@click.option("--no-browser", is_flag=True, help="Print the address, open no browser window.")
@click.option("--port", type=click.IntRange(1, 65535), help="Listen on this port; by default the first free one.")
def lab_command(lesson: str | None, no_browser: bool, port: int | None) -> None:
    """Open JupyterLab on your own copy of the notebooks, at LESSON if given.

    Your copy is the folder workspace/ (COURSE_WORKSPACE moves it). It is made on first use and never
    overwritten; lessons that it lacks are added. Ctrl-C in this terminal shuts JupyterLab down.
    """
    from course_utils.tools import lab

    raise SystemExit(lab.open_lab(lesson, browser=not no_browser, port=port))


@command("reset")
@click.argument("lesson", type=LESSON)
def reset_command(lesson: str) -> None:
    """Take LESSON afresh into your workspace; your copy is kept beside it as a backup."""
    from course_utils.tools import lab

    click.echo(lab.reset(lesson))


@command("release")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Where the folder and the zip go.",
)
def release_command(out: Path) -> None:
    """Write the learner edition, without solutions, as a folder and a zip to hand out."""
    from course_utils.tools import release

    click.echo(release.release(out).summary())


@command("grade")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, metavar="DIR",
              help="Where grades, feedback and the class page go.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), help="Submissions at the same time; by default as many as fit.")
@click.option("--dask", metavar="ADDRESS",
              help="Grade on a Dask cluster, whose scheduler is at ADDRESS, as tcp://host:8786.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Decides the inputs of the checks.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=1), default=120.0, show_default=True,
              metavar="SECONDS", help="Deadline for each submission.")  # fmt: skip
@click.option("--cell-timeout", "cell_s", type=click.FloatRange(min=1), default=30.0, show_default=True,
              metavar="SECONDS", help="Processor time for each cell; six times as much by the clock.")  # fmt: skip
@click.option("--pseudonyms", is_flag=True, help="Names stand in the tables for the gradebook and nowhere else.")
def grade_command(
    folder: Path,
    out: Path,
    jobs: int | None,
    dask: str | None,
    seed: int,
    timeout_s: float,
    cell_s: float,
    pseudonyms: bool,
) -> None:
    """Grade the notebooks in FOLDER, in whatever layout and state they are.

    Each runs apart from everything else; the exercises are checked with inputs that nobody has seen. An interrupted
    run goes on where it was. The exit status is 0 if every submission was graded to its end.

    On a cluster, each worker is a `dask worker ADDRESS` in the environment of a checkout of this same version. Workers
    may come and go. Who can reach the scheduler can run code on the workers: keep it on a network of your own.
    """
    if dask is not None and jobs is not None:
        raise click.UsageError("The workers decide how many they grade at a time; give --dask without --jobs.")
    from dataclasses import replace

    from course_utils.tools.grading.confine import Allowance
    from course_utils.tools.grading.grade import Grade, GradeOptions
    from course_utils.tools.grading.grade import grade as grade_class

    def on_grade(done: Grade) -> None:
        name = "a student" if pseudonyms else done.student
        click.echo(f"{name}, {done.lesson or done.file}: {done.points} of {done.max_points} ({done.status})")

    allowance = replace(Allowance(), seconds=timeout_s, cpu_seconds=timeout_s, cell_seconds=min(cell_s, timeout_s))
    options = GradeOptions(
        folder=folder, out=out, jobs=jobs, dask=dask, seed=seed, allowance=allowance, pseudonyms=pseudonyms
    )
    result = grade_class(options, on_grade, lambda text: click.echo(text, err=True))
    click.echo(result.summary())
    if result.interrupted:
        raise SystemExit(INTERRUPTED)
    raise SystemExit(0 if all(item.status == "graded" for item in result.grades) else 1)


@command("demo-class")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR",
              help="A new or empty folder.")  # fmt: skip
def demo_class_command(out: Path) -> None:
    """Write a made class to try grading on: right, wrong, hostile and broken submissions, and their marks.

    DIR/submissions is for `course grade`; DIR/expected.csv is what grades.csv must then be; DIR/about.csv says what
    each submission is. The hostile ones are for `course grade` only: do not open them in JupyterLab.
    """
    from course_utils.tools.grading import demo

    click.echo(demo.write_demo_class(out).summary())


@command("update")
@click.option(
    "--from",
    "old",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Take the notebooks and the progress of an earlier workspace first.",
)
def update_command(old: Path | None) -> None:
    """Carry your workspace over to this edition: your answers stay, the lessons' new text comes in.

    Where both you and the course changed a cell, yours stays and the course's stands below it. Each notebook
    that changes is kept as a backup beside it. Close the notebooks in JupyterLab first, or reload them after.
    """
    from course_utils.tools import update

    done = update.update(old)
    click.echo(update.summary(done))
    raise SystemExit(1 if any(item.action == "failed" for item in done) else 0)


class Seeds(click.ParamType):
    """Whole numbers: ``3``, ``0,1,2`` or ``0-9``; the value is a tuple."""

    name = "seeds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        import re

        if isinstance(value, tuple):
            return value
        found: list[int] = []
        for part in str(value).split(","):
            if (span := re.fullmatch(r"(\d+)-(\d+)", part.strip())) and int(span[1]) <= int(span[2]) < int(
                span[1]
            ) + 1000:
                found += range(int(span[1]), int(span[2]) + 1)
            elif re.fullmatch(r"-?\d+", part.strip()):
                found.append(int(part))
            else:
                self.fail(f"{value!r} is no seed; give a whole number, or several as 0,1,2 or 0-9.", param, ctx)
        return tuple(found)


@command("run")
@click.argument("lessons", metavar="[LESSON]...", type=LESSON, nargs=-1)
@click.option(
    "--edition",
    type=click.Choice(["learner", "solutions"]),
    default="learner",
    show_default=True,
    help="With blanks, or with the reference answers.",
)
@click.option(
    "--device",
    "devices",
    type=click.Choice(["auto", "cpu", "cuda"]),
    multiple=True,
    help="Where the lessons compute; by default auto.",
)
@click.option(
    "--seed",
    "seeds",
    type=Seeds(),
    multiple=True,
    metavar="SEEDS",
    help="Seed of every lesson, by default 0; several as 0,1,2 or 0-9.",
)
@click.option("--full", is_flag=True, help="Longer, prettier runs (sets FAST = False).")
@click.option(
    "-p",
    "--parameter",
    "parameters",
    nargs=2,
    multiple=True,
    metavar="NAME VALUE",
    help="Set a variable of the parameters cell; may be repeated.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Lessons at the same time; by default as many as cores and memory allow.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Deadline for each notebook.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where executed notebooks and reports go; by default a new folder in runs/.",
)
@click.option(
    "--resume",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Go on with the interrupted run whose results are in DIR; takes --jobs and nothing else.",
)
@click.option(
    "--compare",
    type=click.Path(file_okay=False, path_type=Path),
    nargs=2,
    metavar="BEFORE AFTER",
    help="Run nothing; say what changed between the results in two folders. Takes --out and --json.",
)
@click.option("--json", "as_json", is_flag=True, help="With --compare: for programs.")
@click.pass_context
def run_command(
    context: click.Context,
    seeds: tuple[tuple[int, ...], ...],
    devices: tuple[str, ...],
    resume: Path | None,
    compare: tuple[Path, Path] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Execute lessons from top to bottom, all of them by default, and write a report.

    The folder of --out gets the executed notebooks, report.html, report.json and junit.xml. The exit status
    is 0 only if every cell of every lesson ran.

    Several seeds, devices or values of a parameter make a matrix: every combination runs, each into a folder of
    its own. For example: course run 05 --seed 0-4 --device cpu --device cuda -p LR 0.1 -p LR 0.01

    With --compare, statuses, outputs and verdicts on claims are compared, except for outputs that are marked as
    varying; times are shown. The exit status is 1 if anything changed.
    """
    from course_utils.tools import matrix, runner

    if compare is not None:
        _only(context, "compare", "out", "as_json", reason="--compare runs nothing")
        raise SystemExit(_compare(*compare, out=options["out"], as_json=as_json))
    if as_json:
        raise click.UsageError("--json goes with --compare; a run writes report.json.")
    report: runner.RunReport | matrix.MatrixReport
    if resume is not None:
        _only(context, "resume", "jobs", reason="--resume goes on with what was asked then")
        report = matrix.resume(resume, jobs=options["jobs"])
    else:
        values: dict[str, list[Any]] = {}
        for name, text in options.pop("parameters"):
            values.setdefault(name, []).append(runner.parameter_value(text))
        seeds_flat = tuple(seed for group in seeds for seed in group)
        axes = matrix.Matrix(
            seeds=seeds_flat, devices=devices, parameters={name: tuple(found) for name, found in values.items()}
        )
        usual = runner.RunOptions(
            **options,
            seed=seeds_flat[0] if seeds_flat else 0,
            device=devices[0] if devices else "auto",
            parameters={name: found[0] for name, found in values.items()},
            environment=True,
        )
        report = runner.run_course(usual) if axes.is_one else matrix.run_matrix(usual, axes)
    click.echo(report.summary())
    raise SystemExit(INTERRUPTED if report.interrupted else 0 if report.ok else 1)


def _only(context: click.Context, *names: str, reason: str) -> None:
    """Refuse other options than the named ones."""
    given = {name for name in context.params if name not in names and _was_given(context, name)}
    words = [param.opts[-1] for param in context.command.params if param.name in given]
    if words:
        raise click.UsageError(f"{reason}; leave out {', '.join(words)}.")


def _was_given(context: click.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def _compare(before: Path, after: Path, *, out: Path | None, as_json: bool) -> int:
    """Compare two runs, print it, write a page, and return the exit code."""
    from course_utils.paths import write_text
    from course_utils.tools.compare import compare_runs

    result = compare_runs(before, after)
    page = (out or after) / "compare.html"
    try:
        write_text(page, result.to_html())
    except OSError as error:
        raise CourseError(
            f"{page} can't be written: {error.strerror}.", fix="Name another place with --out."
        ) from error
    click.echo(to_json(result.to_json()) if as_json else f"{result.summary()} Page: {page}")
    return 1 if result.changed else 0


@command("test", context_settings=FORWARD)
@click.argument("pytest_args", nargs=-1, type=click.UNPROCESSED)
def test_command(pytest_args: tuple[str, ...]) -> None:
    """Run the tests; PYTEST_ARGS go to pytest as they are, such as -k seeding or tests/test_data.py.

    --faults runs the whole fault campaign, which breaks the course on purpose; a usual run has a sample of it.
    --browser works through every lesson in JupyterLab with Chromium; a usual run does so with one lesson.
    """
    from course_utils.tools import testing

    raise SystemExit(testing.run_tests(pytest_args))


@command("progress")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def progress_command(as_json: bool) -> None:
    """Show what you have solved, by lesson and exercise."""
    from course_utils.exercises.progress import summary

    lessons = summary()
    click.echo(to_json(lessons) if as_json else progress_text(lessons))


@command("claims")
@click.argument("names", metavar="[ID|LESSON]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--store", is_flag=True, help="Keep the verdicts as the course's record (for authors).")
@click.option(
    "--release",
    type=click.Path(path_type=Path),
    help="Keep the verdicts of another release, a --json file (for authors).",
)
def claims_command(names: tuple[str, ...], as_json: bool, store: bool, release: Path | None) -> None:
    """Measure what people say about PyTorch on this machine, by ID or LESSON, everything by default.

    The exit status is 1 if a measurement failed; a sentence that turns out false is no failure.
    """
    from course_utils.tools import ledger

    if store and names:
        raise click.UsageError("The record holds all claims; give --store without names.")
    if release is not None:
        if names or as_json or store:
            raise click.UsageError("--release reads a file and measures nothing; give it alone.")
        click.echo(f"Stored in {', '.join(str(path) for path in ledger.store_release(release))}.")
        return
    results = ledger.measure(names, quiet=as_json)
    if as_json:
        click.echo(to_json([result.to_dict() for result in results]))
    if store:
        click.echo(f"Stored in {', '.join(str(path) for path in ledger.store(results))}.", err=as_json)
    raise SystemExit(1 if any(result.verdict == "error" for result in results) else 0)


@command("doctor")
@click.argument("target", metavar="FILE.py[:FUNCTION]")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor_command(target: str, as_json: bool) -> None:
    """Examine the training set-up that a function of a file returns, by default make().

    The exit status is 1 if there is an error or a warning; notes don't count.
    """
    from course_utils.tools import checkup

    report = checkup.check_up(target)
    click.echo(to_json(report.to_dict()) if as_json else str(report))
    raise SystemExit(0 if report.is_healthy else 1)


@command("env")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def env_command(as_json: bool) -> None:
    """Report versions, device, threads and data of this machine, to read or to paste into a bug report."""
    from course_utils.tools import envreport

    report = envreport.collect()
    click.echo(to_json(report) if as_json else envreport.as_text(report))


@command("site")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR",
              help="Where the pages go; an empty folder, or one that doesn't exist.")  # fmt: skip
def site_command(out: Path) -> None:
    """Write the course as web pages: to read and to search in a browser, without a server or a network.

    The pages are the notebooks as they were built, with hints and solutions folded, what people say about PyTorch,
    and the doctor's catalogue. A learner edition has no solutions, and its pages have none.
    """
    from course_utils.tools.site import write

    click.echo(write.site(out).summary())


@command("build")
@click.argument("lessons", metavar="[LESSON]...", type=LESSON, nargs=-1)
@click.option("--check", is_flag=True, help="Change nothing; say whether notebooks and sources are in step.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Notebooks at the same time.")
@click.option("--force", is_flag=True, help="Execute everything, also what has not changed.")
def build_command(lessons: tuple[str, ...], check: bool, jobs: int, force: bool) -> None:
    """Make both editions of each LESSON from its source, all by default, and execute them."""
    from course_utils.tools import build

    result = build.build(lessons, check=check, jobs=jobs, force=force)
    click.echo(result.summary())
    raise SystemExit(0 if result.ok else 1)


@command("bench", context_settings=FORWARD)
@click.argument("bench_args", nargs=-1, type=click.UNPROCESSED)
def bench_command(bench_args: tuple[str, ...]) -> None:
    """Measure the course's speed and size on this machine, beside its goals."""
    from benchmarks.__main__ import main as bench

    raise SystemExit(bench(list(bench_args)))


def to_json(value: object) -> str:
    """Return ``value`` as JSON to read and to parse."""
    import json

    return json.dumps(value, indent=2, ensure_ascii=False)


def progress_text(lessons: Sequence[dict[str, Any]]) -> str:
    """Return the learner's progress: a table of lessons, then what was tried and is not right yet."""
    from course_utils.text import table

    def done(items: Sequence[dict[str, str]]) -> str:
        return f"{sum(item['state'] == 'done' for item in items)} of {len(items)}"

    rows = [(lesson["lesson"], done(lesson["exercises"]), done(lesson["clinic"])) for lesson in lessons]
    text = table(rows, header=("lesson", "exercises", "clinic"))
    items = [item for lesson in lessons for item in [*lesson["exercises"], *lesson["clinic"]]]
    tried = [f"  {item['id']}: {item['title']}" for item in items if item["state"] == "tried"]
    return "\n".join([text, *(["", "Tried, not right yet:", *tried] if tried else [])])


def run(args: Sequence[str]) -> int:
    """Run one command and return its exit code; every failure becomes one sentence on standard error."""
    try:
        code = cli.main(args=list(args), prog_name="course", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        help_wanted.show()
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        more = f" See `{context.command_path} --help`." if context else ""
        return complain(f"{error.format_message()}{more}")
    except (KeyboardInterrupt, click.Abort):
        complain("Interrupted.")
        return INTERRUPTED
    except CourseError as error:
        return complain(error.sentence)
    except BrokenPipeError:  # the reader of our output went away, as in `course env | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        problem = out_of_memory(error)
        return complain(problem.sentence if problem else unexpected(error))


def complain(sentence: str) -> int:
    """Write ``sentence`` to standard error and return the exit code for wrong usage or environment."""
    click.echo(sentence, err=True)
    return 2


def unexpected(error: Exception) -> str:
    """Return the sentence for an error that nobody foresaw; its traceback goes to a file."""
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("course_utils"):
        return f"The package {error.name!r} is missing. Run `python3 course.py setup`, which repairs the environment."
    with tempfile.NamedTemporaryFile("w", prefix="course-", suffix=".log", delete=False, encoding="utf-8") as log:
        log.write(without_passwords("".join(traceback.format_exception(error))))
    return (
        "The command failed with an error the course did not foresee: "
        f"{type(error).__name__}: {without_passwords(str(error))}. "
        f"The full story is in {log.name}; please add it, and what `course env` prints, to a bug report."
    )


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; ``args`` are those of the process by default."""
    raise SystemExit(run(sys.argv[1:] if args is None else args))


if __name__ == "__main__":
    main()
