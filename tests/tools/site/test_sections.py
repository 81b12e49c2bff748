"""What the search can show of a page: its sections with their own text, and no solution."""

from __future__ import annotations

from course_utils.tools.site.sections import sections_of, write_sections

PAGE = """<html><body><p>around</p><section id="lesson"><h1>Lesson<a href="#lesson">#</a></h1><p>First
words.</p><section id="part"><h2>A <em>part</em></h2><p>Inside.</p><details><summary>Solution</summary>secret
</details><script>var x;</script><table><tr><td>a</td><td>b</td></tr></table></section><p>After.</p></section>"""


def test_each_section_has_its_title_and_the_text_that_is_its_own():
    assert sections_of("a.html", PAGE) == [
        ("a.html", "lesson", "Lesson", "First words. After."),
        ("a.html", "part", "A part", "Inside. a b"),
    ]


def test_they_are_written_as_a_script(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "a.html").write_text(PAGE, encoding="utf-8")
    write_sections(tmp_path)
    text = (tmp_path / "_static" / "sections.js").read_text(encoding="utf-8")
    assert text.startswith('const COURSE_SECTIONS = [["a.html","lesson","Lesson","First words.')
    assert "secret" not in text
