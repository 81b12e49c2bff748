"""The sections of the pages, with their text: what the search shows below each page that it finds."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

_SILENT = {"script", "style", "button", "svg", "details"}  # details: no excerpt may show a folded solution
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
Section = tuple[str, str, str, str]  # page, anchor, title, text


def sections_of(name: str, html: str) -> list[Section]:
    """Return the sections of a page, in order; each has the text that stands in no section below it."""
    reader = _Reader()
    reader.feed(html)
    found = [(anchor, " ".join("".join(title).split()), " ".join("".join(text).split())) for anchor, title, text in
             reader.sections]  # fmt: skip
    return [(name, anchor, title.removesuffix("#"), text) for anchor, title, text in found]


def write_sections(folder: Path) -> None:
    """Write ``_static/sections.js`` for the pages in ``folder``: a script, since files can't be fetched from a file."""
    found = [
        section
        for path in sorted(folder.glob("*.html"))
        for section in sections_of(path.name, path.read_text(encoding="utf-8"))
    ]
    script = f"const COURSE_SECTIONS = {json.dumps(found, ensure_ascii=False, separators=(',', ':'))};\n"
    (folder / "_static" / "sections.js").write_text(script, encoding="utf-8")


class _Reader(HTMLParser):
    """Collects [anchor, title pieces, text pieces] of each <section>."""

    def __init__(self) -> None:
        super().__init__()
        self.sections: list[tuple[str, list[str], list[str]]] = []
        self._open: list[tuple[str, list[str], list[str]]] = []
        self._silent = 0
        self._title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "section":
            self._open.append((dict(attrs).get("id") or "", [], []))
            self.sections.append(self._open[-1])
        elif tag in _SILENT:
            self._silent += 1
        elif tag in _HEADINGS:
            self._title = True
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "section" and self._open:
            self._open.pop()
        elif tag in _SILENT:
            self._silent -= 1
        elif tag in _HEADINGS:
            self._title = False
        self._break(tag)

    def handle_data(self, data: str) -> None:
        if self._open and not self._silent:
            _, title, text = self._open[-1]
            (title if self._title else text).append(data)

    def _break(self, tag: str) -> None:
        if self._open and tag not in ("span", "em", "strong", "code", "a", "b"):
            self._open[-1][2].append(" ")
