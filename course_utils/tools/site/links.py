"""Is a folder of HTML pages whole? Every internal link leads somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes that make a browser load something at once; a link is loaded only when a reader follows it.
_LOADED = {
    ("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data"),
    ("video", "src"), ("audio", "src"), ("embed", "src"), ("image", "href"), ("use", "href"),
}  # fmt: skip
_CSS_LOADS = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
# Relations of <link> that load nothing.
_NAMED_ONLY = {"next", "prev", "canonical", "author", "license", "index", "search", "up"}


@dataclass
class Page:
    """What a page names: anchors of its own, links to follow, and things to load."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)


def read_page(text: str) -> Page:
    """Return what a page of HTML names."""
    reader = _Reader()
    reader.feed(text)
    return reader.page


def broken(folder: Path) -> list[str]:
    """Return what is wrong with the pages in ``folder``, one sentence each; an empty list if they are whole."""
    pages = {path: read_page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    found = [problem for path, page in pages.items() for problem in _problems(path, page, pages, folder)]
    for path in sorted(folder.rglob("*.css")):
        for loaded in _CSS_LOADS.findall(path.read_text(encoding="utf-8")):
            address = loaded[0] or loaded[1]
            if _is_elsewhere(address):
                found.append(f"{path.relative_to(folder)} loads {address} from elsewhere")
    return found


def _problems(path: Path, page: Page, pages: dict[Path, Page], folder: Path) -> list[str]:
    name, found = path.relative_to(folder), []
    for address in page.loads:
        if _is_elsewhere(address):
            found.append(f"{name} loads {address} from elsewhere")
    for address in [*page.links, *page.loads]:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or address in ("", "#"):
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not target.is_file():
            found.append(f"{name} links to {address}, and there is no such file")
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            found.append(f"{name} links to {address}, and that page has no such place")
    return found


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address.strip())
    return bool(parts.netloc) or parts.scheme not in ("", "data")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        for name in ("id", "name"):
            if values.get(name):
                self.page.anchors.add(values[name])
        for name, value in values.items():
            if (tag, name) in _LOADED and not (tag == "link" and values.get("rel") in _NAMED_ONLY):
                self.page.loads.append(value)
            elif name == "href":
                self.page.links.append(value)
            elif name == "style":
                self.page.loads += [one or other for one, other in _CSS_LOADS.findall(value)]
