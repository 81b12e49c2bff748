"""The README and its companions say what is true: commands, links, the map of lessons."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from benchmarks.__main__ import GROUPS
from course_utils.cli import cli
from course_utils.lessons import LESSONS
from course_utils.paths import ROOT
from course_utils.tools.commands import COMMANDS

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE-TEXT.md",
    "docs/reports.md",
    "docs/learners.md",
    "docs/instructors.md",
    "docs/claims.md",
    "benchmarks/README.md",
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"python3 course\.py[ \t]+([^\n`#|]+)")
PLACEHOLDERS = {"DIR": "there", "[LESSON]": "01", "[LESSON…]": "01", "LESSON": "01", "NN": "01"}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def commands_in(name: str) -> list[str]:
    return [" ".join(found.split()) for found in COMMAND.findall(text_of(name))]


CALLS = sorted({(name, call) for name in DOCUMENTS for call in commands_in(name)})


@pytest.mark.parametrize(("document", "call"), CALLS)
def test_each_command_line_is_understood_by_the_command_line(document, call):
    name, *rest = [PLACEHOLDERS.get(word, word) for word in shlex.split(call)]
    assert name in COMMANDS, f"{document}: {call}"
    command = cli.commands[name]
    try:
        with command.make_context(name, rest):
            pass
    except click.ClickException as error:
        pytest.fail(f"{document}: {call}: {error.format_message()}")


def test_the_two_commands_stand_in_a_block_of_their_own():
    assert "```\npython3 course.py run\npython3 course.py test\n```" in README


def test_table_of_commands_is_complete_and_has_no_others():
    table = re.findall(r"^\| `python3 course\.py ([\w-]+)", README, flags=re.MULTILINE)
    assert sorted(table) == sorted(COMMANDS)


@pytest.mark.parametrize("later", ["claims", "doctor", "grade", "release", "update", "site", "demo-class"])
def test_commands_that_do_not_exist_are_not_advertised(later):
    if later in COMMANDS:
        pytest.skip(f"{later} exists by now")
    assert not re.search(rf"course\.py {later}\b", "\n".join(map(text_of, DOCUMENTS)))


def test_map_of_lessons_is_the_list_of_lessons():
    rows = re.findall(
        r"^\| \[(\d\d) (.+?)\]\((\S+?)\) \| (.+?) \| \[(\d\d)\]\((\S+?)\) \|$", README, flags=re.MULTILINE
    )
    assert rows == [
        (
            lesson.number,
            lesson.title,
            f"notebooks/{lesson.stem}.ipynb",
            lesson.question,
            lesson.number,
            f"notebooks/solutions/{lesson.stem}.ipynb",
        )
        for lesson in LESSONS
    ]


def links_of(name: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", text_of(name))


LINKS = sorted({(name, link) for name in DOCUMENTS for link in links_of(name) if "://" not in link})


@pytest.mark.parametrize(("document", "link"), LINKS)
def test_each_link_leads_to_a_file(document, link):
    assert (Path(ROOT, document).parent / link.partition("#")[0]).exists()


@pytest.mark.parametrize("variable", re.findall(r"^\| `(COURSE_\w+)` \|", README, flags=re.MULTILINE))
def test_each_variable_is_read_by_the_code(variable):
    assert any(variable in path.read_text(encoding="utf-8") for path in (ROOT / "course_utils").rglob("*.py"))


def test_groups_of_benchmarks_are_those_of_the_command():
    table = re.findall(r"^\| `(\w+)` \|", text_of("benchmarks/README.md"), flags=re.MULTILINE)
    assert table == list(GROUPS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_no_local_paths_and_fit_the_line(document):
    text = text_of(document)
    assert not re.search(r"(?<![\w.])/(?:root|home|work|Users)/", text)
    prose = [line for line in text.splitlines() if not line.startswith(("|", "!["))]
    assert max(map(len, prose)) <= 120


def test_module_table_in_contributing_names_every_module():
    table = "\n".join(re.findall(r"^\| \d \| .+$", text_of("CONTRIBUTING.md"), flags=re.MULTILINE))
    package = ROOT / "course_utils"
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    folders = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert set(re.findall(r"`([\w/]+)`", table)) == modules | folders
