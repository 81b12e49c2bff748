"""``course.py site``: make the pages, have Sphinx set them, and put the whole folder in place at once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils import __version__
from course_utils.errors import CourseError, EnvironmentProblem, UsageError
from course_utils.lessons import LESSONS, Lesson
from course_utils.paths import atomic_folder
from course_utils.scratch import scratch_folder
from course_utils.text import human_bytes, plural
from course_utils.tools.site.links import broken
from course_utils.tools.site.pages import write_pages
from course_utils.tools.site.sections import write_sections

LOOK = Path(__file__).with_name("look")
TIMEOUT_S = 600.0
_NO_PAGES = (
    ".buildinfo",
    "objects.inv",
    "_static/webpack-macros.html",
    "_static/**/*.map",
)  # for tools, not for readers
SETTINGS: dict[str, Any] = {
    "project": "The PyTorch Workbook",
    "version": __version__,
    "html_title": "PyTorch Workbook",
    "language": "en",
    "extensions": ["myst_nb"],
    "nb_execution_mode": "off",  # the outputs are those of the build
    "nb_render_text_lexer": "none",
    "nb_render_markdown_format": "gfm",  # tables
    "myst_enable_extensions": [],  # "$" is a dollar: no formulas, and so no MathJax from elsewhere
    "suppress_warnings": ["myst.header", "mystnb.unknown_mime_type"],
    "html_theme": "pydata_sphinx_theme",
    "html_static_path": ["_static"],
    "html_css_files": ["course.css"],
    "templates_path": ["_templates"],
    "html_sidebars": {"**": ["course-nav"]},
    "html_copy_source": False,
    "html_show_sourcelink": False,
    "html_show_search_summary": False,  # it asks for other pages, which browsers refuse from a folder
    "html_use_index": False,
    "html_context": {"default_mode": "auto"},  # dark or light, as the reader's system has it
    "html_theme_options": {
        "logo": {"text": "PyTorch Workbook", "alt_text": "PyTorch Workbook, front page"},
        "navbar_center": [],
        "navbar_persistent": ["search-button-field"],
        "search_bar_text": "Search the course",
        "show_prev_next": True,
        "show_toc_level": 2,
        "secondary_sidebar_items": ["page-toc"],
        "footer_start": ["sphinx-version"],
        "footer_end": [],
        "back_to_top_button": True,
    },
}


@dataclass(frozen=True)
class Site:
    """What was written.

    Args:
        folder: holds ``index.html``.
        pages: HTML pages.
        size_bytes: of all files.
        warnings: what Sphinx complained about, one line each.
    """

    folder: Path
    pages: int
    size_bytes: int
    warnings: tuple[str, ...] = ()

    def summary(self) -> str:
        lines = [f"{plural(self.pages, 'page')}, {human_bytes(self.size_bytes)}. Open {self.folder / 'index.html'}."]
        return "\n".join([*self.warnings, *lines])


def site(out: Path, lessons: Sequence[Lesson] = LESSONS) -> Site:
    """Write the static HTML edition into ``out``, which works from there without a server or a network.

    Args:
        out: a folder that is empty or doesn't exist.
        lessons: those that get a page.

    Raises:
        UsageError: if ``out`` is a file or holds something.
        EnvironmentProblem: if it can't be written to, a notebook is missing, or Sphinx fails.
    """
    out = Path(out)
    _refuse_used(out)
    try:
        with scratch_folder("course-site") as work, atomic_folder(out) as made:
            warnings = _set(work, made, lessons)
            if problems := broken(made):
                more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
                raise EnvironmentProblem(
                    f"The site would not work by itself: {problems[0]}{more}.",
                    fix="Repair that link in the lesson's source or in docs/, build the lesson, and try again.",
                )
    except OSError as error:
        raise _not_writable(out, error) from error
    files = [path for path in out.rglob("*") if path.is_file()]
    pages = sum(path.suffix == ".html" for path in files)
    return Site(out, pages, sum(path.stat().st_size for path in files), tuple(warnings))


def _set(work: Path, made: Path, lessons: Sequence[Lesson]) -> list[str]:
    """Fill the folder ``made`` with the lessons' pages, by way of ``work``; return Sphinx's warnings."""
    pages = work / "pages"
    for folder in ("_static", "_templates"):
        (pages / folder).mkdir(parents=True)
    write_pages(pages, lessons)
    for path in LOOK.iterdir():
        shutil.copy(path, pages / ("_templates" if path.suffix == ".html" else "_static"))
    shutil.move(pages / "lesson.png", pages / "_static")
    settings = "".join(f"{name} = {value!r}\n" for name, value in SETTINGS.items())
    (pages / "conf.py").write_text(settings, encoding="utf-8")
    log = work / "warnings.txt"
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "--no-color", "-d", str(work / "doctrees"),
               "-w", str(log), str(pages), str(made)]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S,
            env={**os.environ, "TMPDIR": str(work)},  # where Sphinx leaves the full story of an error
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"Sphinx did not end within {TIMEOUT_S:.0f} s.", fix="Try again.") from None
    if done.returncode:
        raise EnvironmentProblem(
            f"Sphinx could not make the site: {_reason(done.stderr)}.",
            fix="Run `python3 course.py setup`, which repairs its packages.",
        )
    write_sections(made)
    for pattern in _NO_PAGES:
        for path in made.glob(pattern):
            path.unlink()
    return [line.replace(f"{pages}{os.sep}", "") for line in log.read_text(encoding="utf-8").splitlines() if line]


def _reason(messages: str) -> str:
    """Return the line of Sphinx's messages that names the error."""
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt): ", line)]
    return [*lines[:1], *named][-1].rstrip(".") if lines else "it gave no reason"


def _refuse_used(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file.", fix="Choose a folder with --out.")
    try:
        used = out.is_dir() and any(out.iterdir())
    except OSError as error:
        raise _not_writable(out, error) from error
    if used:
        raise UsageError(f"{out} holds something already.", fix="Empty it, or choose another folder with --out.")


def _not_writable(out: Path, error: OSError) -> CourseError:
    reason = error.strerror or str(error)
    return EnvironmentProblem(f"{out} can't be written to: {reason}.", fix="Make room, or choose another folder.")
