"""The site as a folder: whole, without anything from elsewhere, to read and to search from a file."""

from __future__ import annotations

import re

import pytest

from course_utils import cli
from course_utils.errors import EnvironmentProblem, UsageError
from course_utils.exercises.registry import exercises_of
from course_utils.lessons import LESSONS
from course_utils.tools.site import write
from course_utils.tools.site.links import broken, read_page
from tests.browser.session import CHROMIUM_OPTIONS, chromium


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> write.Site:
    """The whole site, built once."""
    return write.site(tmp_path_factory.mktemp("web") / "site")


def page(built: write.Site, name: str) -> str:
    return (built.folder / f"{name}.html").read_text(encoding="utf-8")


def test_sphinx_has_nothing_to_complain_about_and_no_link_is_broken(built):
    assert built.warnings == ()
    assert broken(built.folder) == []
    assert built.pages >= len(LESSONS) + 4  # front, claims, doctor, search
    assert not list(built.folder.parent.glob(".site.*"))


def test_the_front_page_leads_to_every_page(built):
    links = set(read_page(page(built, "index")).links)
    assert {f"{lesson.stem}.html" for lesson in LESSONS} | {"claims.html", "doctor.html"} <= links


def test_each_lesson_leads_to_the_one_before_and_after(built):
    for before, lesson, after in zip(LESSONS, LESSONS[1:], LESSONS[2:], strict=False):
        found = re.findall(r'class="(left-prev|right-next)"\s+href="([^"]+)"', page(built, lesson.stem))
        assert found == [("left-prev", f"{before.stem}.html"), ("right-next", f"{after.stem}.html")]


def test_solutions_and_hints_are_folded(built):
    for lesson in LESSONS:
        html = page(built, lesson.stem)
        assert html.count("<summary>Solution</summary>") == len(exercises_of(lesson))
        assert html.count("<details><summary>Hint 1 of 3") == len(exercises_of(lesson))
        assert "<details open" not in html


def test_every_picture_is_described(built):
    for lesson in LESSONS:
        for picture in re.findall(r"<img[^>]*_images[^>]*>", page(built, lesson.stem)):
            assert re.search(r'alt="[^"]{10,}"', picture), picture


@pytest.mark.browser
@pytest.mark.skipif(chromium() is None, reason="there is no Chromium; install it, or name one in COURSE_CHROMIUM")
def test_it_is_read_and_searched_from_a_file_in_a_browser(built):
    from playwright.sync_api import sync_playwright

    asked, complaints = [], []
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_OPTIONS))
        try:
            tab = browser.new_page(viewport={"width": 800, "height": 900}, color_scheme="dark")
            tab.on("request", lambda request: asked.append(request.url))
            tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
            tab.goto((built.folder / "index.html").as_uri())
            assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
            assert tab.evaluate("document.documentElement.scrollWidth") <= 800
            tab.keyboard.press("Control+k")
            tab.keyboard.type("is_leaf")
            tab.keyboard.press("Enter")
            tab.wait_for_selector("#search-results li a", timeout=20_000)
            section = tab.locator('#search-results .found-sections a[href^="02_autograd.html#"]').first
            anchor = section.get_attribute("href", timeout=20_000).partition("#")[2]
            section.click()
            tab.wait_for_selector(f"section#{anchor}:target", timeout=20_000)
        finally:
            browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert complaints == []


# Where it can't go


def test_a_folder_that_holds_something_is_refused_in_one_sentence(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert cli.run(["site", "--out", str(tmp_path)]) == 2
    assert (
        capsys.readouterr().err
        == f"{tmp_path} holds something already. Empty it, or choose another folder with --out.\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        write.site(tmp_path / "file")
    with pytest.raises(EnvironmentProblem, match="can't be written to"):
        write.site(tmp_path / "file" / "below")


def test_what_sphinx_says_when_it_fails_is_passed_on_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setitem(write.SETTINGS, "extensions", ["no_such_extension"])
    monkeypatch.setattr(write, "write_pages", lambda folder, lessons: (folder / "lesson.png").write_bytes(b""))
    with pytest.raises(EnvironmentProblem, match=r"could not make the site: .*no_such_extension"):
        write.site(tmp_path / "site")
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_leads_nowhere_stops_the_site(tmp_path, monkeypatch):
    def one_page(work, made, lessons):
        (made / "index.html").write_text('<a href="gone.html">gone</a>')
        return []

    monkeypatch.setattr(write, "_set", one_page)
    with pytest.raises(EnvironmentProblem, match=r"index\.html links to gone.html, and there is no such file"):
        write.site(tmp_path / "site")
    assert list(tmp_path.iterdir()) == []
