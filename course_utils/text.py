"""Align, shorten and count in text meant for people. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def shorten(text: str, width: int = 120) -> str:
    """Return ``text`` on one line of at most ``width`` characters, cut in the middle."""
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[head + 1 - width :]}"


def without_passwords(text: str) -> str:
    """Return ``text`` with ``***`` for the password, or the token, in each ``scheme://user:password@host``."""
    return re.sub(r"(://(?:[^\s/:@]*:)?)[^\s/@]+@", r"\1***@", text)


def plural(count: int, noun: str) -> str:
    """Return ``count`` with its noun: ``1 cell``, ``2 cells``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def human_bytes(size_bytes: float) -> str:
    """Return a size in bytes with a binary unit: ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024 or unit == "GiB":
            return f"{size_bytes:,.0f} B" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("unreachable")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the sentence that helps after a misspelt name, from the closest known names."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(known)}."


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Return rows as aligned plain text under a header; numbers are aligned to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *texts]) for i in range(len(header))]
    is_number = [bool(rows) and all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(header))]

    def align(line: Sequence[str]) -> str:
        cells = [c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, is_number, strict=True)]
        return "  ".join(cells).rstrip()

    return "\n".join([align(header), align(["-" * w for w in widths]), *map(align, texts)])
