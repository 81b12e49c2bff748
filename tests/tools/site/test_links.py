"""Pages of a site that lead nowhere, or load something from elsewhere, are found."""

from __future__ import annotations

import pytest

from course_utils.tools.site.links import broken

WHOLE = '<p id="top"><a href="b.html#there">b</a> <a href="#top">up</a> <a href="https://pytorch.org/docs">docs</a></p>'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.html").write_text(WHOLE, encoding="utf-8")
    (tmp_path / "b.html").write_text('<h2 id="there">There</h2>', encoding="utf-8")
    (tmp_path / "style.css").write_text("a { background: url(data:image/png;base64,AA) }", encoding="utf-8")
    return tmp_path


def test_a_whole_folder_has_nothing_broken(folder):
    assert broken(folder) == []


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<a href="c.html">c</a>', "b.html links to c.html, and there is no such file"),
        ('<a href="a.html#gone">a</a>', "b.html links to a.html#gone, and that page has no such place"),
        ('<a href="#gone">here</a>', "b.html links to #gone, and that page has no such place"),
        ('<img src="pictures/x.png">', "b.html links to pictures/x.png, and there is no such file"),
        ('<script src="https://example.org/x.js"></script>', "b.html loads https://example.org/x.js from elsewhere"),
        ('<script src="//example.org/x.js"></script>', "b.html loads //example.org/x.js from elsewhere"),
        ('<link rel="stylesheet" href="http://example.org/x.css">', "b.html loads http://example.org/x.css"),
        ('<p style="background: url(https://example.org/x.png)">', "b.html loads https://example.org/x.png"),
    ],
)
def test_each_fault_of_a_page_is_named(folder, html, problem):
    (folder / "b.html").write_text(f'<h2 id="there">There</h2>{html}', encoding="utf-8")
    (found,) = broken(folder)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    "css", ["@import 'https://example.org/x.css';", "a { src: url('https://example.org/f.woff') }"]
)
def test_a_style_that_loads_from_elsewhere_is_named(folder, css):
    (folder / "style.css").write_text(css, encoding="utf-8")
    (found,) = broken(folder)
    assert found.startswith("style.css loads https://example.org/")
