"""Show how far a set-up is: pip's output condensed into one live line. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from course_utils.text import plural

REPEAT_S = 10.0  # where there is no terminal to redraw a line on, say where we are this often


class LiveLine:
    """One line that says what is going on: redrawn on a terminal, repeated now and then elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.redraws = stream.isatty() and os.environ.get("TERM") != "dumb"
        self.said_at = float("-inf")
        self.text = ""

    def show(self, text: str) -> None:
        """Show ``text`` in place of what was there."""
        if self.redraws:
            width = shutil.get_terminal_size().columns - 1
            self.stream.write(f"\r{text[:width].ljust(min(len(self.text), width))}")
            self.stream.flush()
            self.text = text[:width]
        elif text != self.text and time.monotonic() >= self.said_at + REPEAT_S:
            self.stream.write(f"{text}\n")
            self.stream.flush()
            self.text, self.said_at = text, time.monotonic()

    def say(self, text: str) -> None:
        """Write ``text`` to stay, on a line of its own."""
        self.close()
        self.stream.write(f"{text}\n")
        self.stream.flush()
        self.said_at = time.monotonic()

    def close(self) -> None:
        """Take away what is shown, so that the next text starts on an empty line."""
        if self.redraws and self.text:
            self.stream.write(f"\r{' ' * len(self.text)}\r")
            self.stream.flush()
        self.text = ""


class PipProgress:
    """Condenses pip's output into what a person wants to know: which package, how far, how long."""

    def __init__(self, downloads: Path, site: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.downloads = downloads
        self.site = site
        self.clock = clock
        self.started = clock()
        self.doing = "looking for packages"
        self.total_mb = 0.0
        self.bytes_before = 0
        self.to_install = 0
        self.installed_before = 0

    def read(self, line: str) -> None:
        """Take in one line of pip's output."""
        if match := re.match(r"\s*(?:Downloading|Using cached) (\S+)(?: \(([\d.]+) ([kMG]?)B\))?", line):
            self.doing = f"downloading {package_name(match[1])}"
            self.total_mb = float(match[2]) * {"k": 1e-3, "": 1e-6, "M": 1, "G": 1e3}[match[3]] if match[2] else 0.0
            self.bytes_before = _size_bytes(self.downloads)
        elif match := re.match(r"\s*Collecting ([^\s(;]+)", line):
            self.doing, self.total_mb = f"looking at {match[1]}", 0.0
        elif match := re.match(r"\s*Installing collected packages: (.+)", line):
            self.to_install = match[1].count(",") + 1
            self.installed_before = len(self._installed())
            self.total_mb = 0.0

    def text(self) -> str:
        """Return the present state in one line."""
        minutes, seconds = divmod(int(self.clock() - self.started), 60)
        clock = f"{minutes}:{seconds:02}"
        if self.to_install:
            installed = self._installed()
            done = min(max(len(installed) - self.installed_before, 0), self.to_install)
            newest = f" ({installed[-1]})" if done else ""
            return f"installing {plural(self.to_install, 'package')}: {done} done{newest}, {clock}"
        if self.total_mb >= 1:
            got_mb = max(_size_bytes(self.downloads) - self.bytes_before, 0) / 1e6
            return f"{self.doing}: {min(got_mb, self.total_mb):.0f} of {self.total_mb:.0f} MB, {clock}"
        return f"{self.doing}, {clock}"

    def _installed(self) -> list[str]:
        """Return the installed packages, the newest last."""
        folders = list(self.site.glob("*.dist-info")) if self.site else []
        return [package_name(f.name.removesuffix(".dist-info")) for f in sorted(folders, key=_modified)]


def package_name(file: str) -> str:
    """Return ``name version`` for a wheel's or source archive's file name or address."""
    name, _, rest = file.rpartition("/")[2].partition("-")
    version = re.split(r"-|\.tar|\.zip|\.metadata|\.whl", rest)[0]
    return f"{name} {version}".strip()


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # pip has just moved it
        return 0.0


def _size_bytes(folder: Path) -> int:
    """Return the total size of the files in ``folder``; files that vanish meanwhile don't count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total
