"""A cell that ran too early names the one that comes first; a slip of the pen gets only its error."""

from __future__ import annotations

import pytest
from jupyter_client.manager import start_new_kernel
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, writes

from course_utils.lessons import LESSONS
from course_utils.paths import NOTEBOOKS
from course_utils.tools import lab
from course_utils.tools.missing_names import card_for, cell_that_makes, names_made

CELLS = (
    new_markdown_cell("# A lesson\n\nText."),
    new_code_cell("# the set-up\nimport os.path as where, sys\nfrom math import pi"),
    new_markdown_cell("### How large is it?"),
    new_code_cell("!ls\nthis is no Python"),
    new_code_cell("sizes = [size for size in (1, 2)]\nlargest, (a, *rest) = max(sizes), sizes"),
)


@pytest.fixture
def notebook(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(writes(new_notebook(cells=list(CELLS))), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import a.b, c as d\nfrom e import f as g", {"a", "d", "g"}),
        ("def f(x):\n    inner = x\n    return inner", {"f"}),
        ("class C:\n    inside = 1", {"C"}),
        ("for i in range(3):\n    last = i", {"i", "last"}),
        ("with open('a') as file: text = file.read()", {"file", "text"}),
        ("a = b = 1\n(c, [d, *e]) = f\ng += 1\nh: int = 2\nif (k := 1): pass", set("abcdeghk")),
        ("print([i for i in {j: k for j, k in l}]); (lambda m: m)(1)", set()),
        ("x.y = 1; x[0] = 2", set()),
        ("no Python", set()),
        ("\0", set()),
    ],
)
def test_the_names_that_a_cell_makes(source, names):
    assert names_made(source) == names


def test_the_first_cell_that_makes_a_name_is_found_with_its_heading(notebook):
    assert cell_that_makes("where", notebook) == ("A lesson", "import os.path as where, sys")
    assert cell_that_makes("rest", notebook) == ("How large is it?", "sizes = [size for size in (1, 2)]")
    assert cell_that_makes("size", notebook) is None


def test_the_card_says_which_cell_and_how(notebook):
    text = card_for("largest", notebook).text
    assert "`largest` is made in another cell, which has not run" in text
    assert 'begins with `sizes = [size for size in (1, 2)]`, under "How large is it?"' in text
    assert "Run All Above Selected Cell" in text


@pytest.mark.parametrize("content", [None, "", "[]", '{"cells": 3}', '{"cells": [{"source": 3}]}', "\xff"])
def test_a_notebook_that_cannot_be_read_gets_no_card(tmp_path, content):
    path = tmp_path / "b.ipynb"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    assert card_for("a", path) is None
    assert card_for(None, path) is None


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_every_lesson_s_set_up_is_found(lesson):
    assert cell_that_makes("check", NOTEBOOKS / f"{lesson.stem}.ipynb") is not None


def test_a_kernel_of_the_lab_shows_the_error_and_then_the_card(notebook, monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_WORKSPACE", str(tmp_path))
    for name, value in (lab.lab_environment() | {"JPY_SESSION_NAME": str(notebook)}).items():
        monkeypatch.setenv(name, value)
    manager, client = start_new_kernel(startup_timeout=120)
    try:
        seen: list[tuple[str, dict]] = []
        for code in ("largest + 1", "lagrest", "1 / 0", "largest = 1"):
            reply = client.execute_interactive(
                code, timeout=120, output_hook=lambda message: seen.append((message["msg_type"], message["content"]))
            )
            assert reply["content"]["status"] == ("ok" if "=" in code else "error")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    said = [(kind, content) for kind, content in seen if kind in ("error", "display_data", "stream")]
    assert [kind for kind, _ in said] == ["error", "display_data", "error", "error"]
    assert [content["ename"] for kind, content in said if kind == "error"] == [
        "NameError", "NameError", "ZeroDivisionError",
    ]  # fmt: skip
    assert "`largest` is made in another cell" in said[1][1]["data"]["text/plain"]
    assert "How large is it?" in said[1][1]["data"]["text/html"]
